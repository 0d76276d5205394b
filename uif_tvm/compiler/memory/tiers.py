"""What a program with tiered memory looks like: values, their stays in tiers, and transfers.

The program is a line of kernels, numbered from 0. Assigning values to tiers puts transfers between
the kernels: ``Tiering.schedule`` is the new line, and every stay's ``first`` and ``end`` count its
positions. A value has one or more *stays*, each a buffer in one tier; a transfer copies one stay
into another of the same value. With one tier the schedule is the kernels as they were and every
value is one stay.

    weights in the host tier      w@host ----------------------------.
                                         \\ transfer (position 4)      \\ transfer (9)
    kernels read them here              w@device#1 [4, 6)           w@device#2 [9, 11)

The lowering makes one arena per tier out of ``Tiering.plans``, one copy per transfer, and gives a
kernel at position ``p`` the stay that :meth:`Tiering.stay_at` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from uif_tvm.compiler.memory.problem import ALIGNMENT, Plan
from uif_tvm.target.spec import MemoryTier

#: Kinds of values, named as ``MemoryTier.holds`` names them.
KINDS = ("weights", "activations", "workspace")

#: Kernels cannot address a tier of this scope: what lives there is brought in for each use.
HOST_SCOPE = "host"


def reachable(tier: MemoryTier) -> bool:
    """Whether kernels read and write the tier in place."""
    return tier.scope != HOST_SCOPE


@dataclass(frozen=True)
class Value:
    """Something that kernels use.

    Args:
        name: unique in its program.
        kind: one of ``KINDS``.
        size: bytes, at least 1.
        uses: kernels that use it, ascending, at least one. The first one of an activation or a
            workspace writes it; weights are there before the first kernel and are never written.
        accesses: times that each of its bytes goes to or from memory in one use.
        alignment: as in :class:`~uif_tvm.compiler.memory.problem.Buffer`.
    """

    name: str
    kind: str
    size: int
    uses: tuple[int, ...]
    accesses: float = 1.0
    alignment: int = ALIGNMENT

    @property
    def traffic(self) -> float:
        """Bytes that all uses move in one run."""
        return self.size * self.accesses * len(self.uses)


@dataclass(frozen=True)
class Stay:
    """One buffer in one tier that holds a value from position ``first`` up to ``end``.

    Args:
        name: unique; names the buffer in the tier's plan.
        value: name of the value.
        tier: name of the tier.
        first, end: positions of the schedule. Weights that are never brought in stay for all of
            them and keep their bytes between runs.
        reason: why the value is here and not in another tier.
    """

    name: str
    value: str
    tier: str
    first: int
    end: int
    reason: str


@dataclass(frozen=True)
class Transfer:
    """A copy of one stay into another, done when the next position begins at the latest.

    Args:
        value: name of the value.
        source, destination: names of the stays.
        source_tier, destination_tier: names of their tiers.
        bytes: copied.
        us: its price, microseconds: bytes at the slower tier's bandwidth, and a launch.
    """

    value: str
    source: str
    destination: str
    source_tier: str
    destination_tier: str
    bytes: int
    us: float


@dataclass(frozen=True)
class Tiering:
    """Where every value is at every position.

    Args:
        schedule: the number of a kernel, or a transfer, at each position.
        stays: all of them.
        plans: tier name -> offsets of its stays; tiers without stays are left out.
        saved_us: time of memory traffic saved per run against all values in the slowest tier
            that kernels can address.
        notes: what could not be done as wished, and why.
    """

    schedule: tuple[int | Transfer, ...]
    stays: tuple[Stay, ...]
    plans: Mapping[str, Plan]
    saved_us: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def transfers(self) -> tuple[tuple[int, Transfer], ...]:
        """All transfers with their positions."""
        return tuple(
            (position, item)
            for position, item in enumerate(self.schedule)
            if isinstance(item, Transfer)
        )

    @cached_property
    def _by_value(self) -> dict[str, list[Stay]]:
        found: dict[str, list[Stay]] = {}
        for stay in self.stays:
            found.setdefault(stay.value, []).append(stay)
        return found

    def stay_at(self, value: str, position: int, tiers: Mapping[str, MemoryTier]) -> Stay:
        """The stay of ``value`` that the kernel at ``position`` uses.

        Raises:
            KeyError: the value is in no tier there that kernels can address.
        """
        for stay in self._by_value[value]:
            if stay.first <= position < stay.end and reachable(tiers[stay.tier]):
                return stay
        raise KeyError(f"{value} is in no addressable tier at position {position}")
