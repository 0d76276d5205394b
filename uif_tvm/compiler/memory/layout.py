"""The state in which values are assigned to tiers: who stays where and when, and what room is left.

Time has a slot before each kernel, for transfers, and one for the kernel itself: kernel ``k`` runs
in slot ``2 k + 1``, and what is brought in for it arrives in slot ``2 k`` or before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uif_tvm.compiler.memory.planner import plan
from uif_tvm.compiler.memory.problem import Buffer, Plan
from uif_tvm.compiler.memory.tiers import Value
from uif_tvm.target.spec import MemoryTier

#: For one plan of one tier, seconds.
_PLAN_SECONDS = 2.0


@dataclass(eq=False)
class Placed:
    """A stay in the making: ``value`` in ``tier`` for slots ``start`` up to ``end``.

    ``source`` is the stay that it is copied from in slot ``start``; ``None`` when a kernel writes
    it, or when it is a weight in the place where it lives between runs.
    """

    value: Value
    tier: MemoryTier
    start: int
    end: int
    reason: str
    source: Placed | None = None

    @property
    def uses(self) -> tuple[int, ...]:
        """Kernels that run meanwhile and use the value."""
        return tuple(use for use in self.value.uses if self.start <= 2 * use + 1 < self.end)

    @property
    def bytes(self) -> int:
        """Its size with the bytes lost to alignment."""
        step = self.value.alignment
        return -(-self.value.size // step) * step


def price(nbytes: float, tier: MemoryTier) -> float:
    """Microseconds that ``nbytes`` take at the tier's bandwidth (GB/s)."""
    return nbytes / (tier.gbps * 1e3)


class Layout:
    """Stays by value and bytes in use by tier and slot."""

    def __init__(self, kernels: int, tiers: Sequence[MemoryTier], launch_us: float) -> None:
        self.tiers = tiers
        self.slots = 2 * kernels + 1
        self.launch_us = launch_us
        self._stays: dict[str, list[Placed]] = {}
        #: Tier -> seconds that its last plan might take, and the plan; none after a change.
        self._plans: dict[str, tuple[float, Plan]] = {}
        self._used: dict[str, npt.NDArray[np.int64]] = {
            tier.name: np.zeros(self.slots, np.int64) for tier in tiers
        }

    def life(self, value: Value) -> tuple[int, int]:
        """Slots for which a value must be somewhere: weights for all of them."""
        if value.kind == "weights":
            return 0, self.slots
        return 2 * value.uses[0] + 1, 2 * value.uses[-1] + 2

    def transfer_us(self, value: Value, *ends: MemoryTier) -> float:
        """Price of one copy between two tiers."""
        return max(price(value.size, tier) for tier in ends) + self.launch_us

    def stays(self, tier: MemoryTier | None = None) -> Iterator[Placed]:
        """All stays, or those in one tier, in the order in which values were put."""
        for items in self._stays.values():
            yield from (item for item in items if tier is None or item.tier is tier)

    def of(self, value: Value) -> list[Placed]:
        """The stays of one value in time."""
        return self._stays.get(value.name, [])

    def put(self, value: Value, stays: Iterable[Placed]) -> None:
        """Replace all stays of a value."""
        for item in self.of(value):
            self._used[item.tier.name][item.start : item.end] -= item.bytes
            self._plans.pop(item.tier.name, None)
        self._stays[value.name] = sorted(stays, key=lambda item: (item.start, item.end))
        for item in self.of(value):
            self._used[item.tier.name][item.start : item.end] += item.bytes
            self._plans.pop(item.tier.name, None)

    def room(self, tier: MemoryTier, start: int, end: int) -> int:
        """Bytes of ``tier`` that are free in all slots from ``start`` up to ``end``."""
        return tier.bytes - int(self._used[tier.name][start:end].max(initial=0))

    def fullest(self, tier: MemoryTier) -> tuple[int, int]:
        """The most bytes in use at once, and the first slot with so many."""
        used = self._used[tier.name]
        slot = int(used.argmax())
        return int(used[slot]), slot

    def plan(self, tier: MemoryTier, seconds: float = _PLAN_SECONDS) -> Plan:
        """Offsets for the stays in ``tier`` over slots; see :func:`names` for their names."""
        known = self._plans.get(tier.name)
        if known is not None and (known[1].arena_bytes <= tier.bytes or known[0] >= seconds):
            return known[1]
        names = self.names()
        buffers = [
            Buffer(names[item], item.start, item.end, item.value.size, item.value.alignment)
            for item in self.stays(tier)
        ]
        found = plan(buffers, time_limit_s=seconds, capacity=tier.bytes)
        self._plans[tier.name] = seconds, found
        return found

    def names(self) -> dict[Placed, str]:
        """Unique names of all stays: ``value@tier``, numbered where there are several."""
        named = {}
        for items in self._stays.values():
            seen: dict[str, int] = {}
            for item in items:
                name = f"{item.value.name}@{item.tier.name}"
                count = seen[name] = seen.get(name, 0) + 1
                named[item] = f"{name}#{count}" if count > 1 else name
        return named

    def widen(self, tier: MemoryTier) -> None:
        """Keep what is brought in between two uses, and bring in earlier, where there is room.

        The first saves transfers, the second lets them overlap with the kernel before.
        """
        for items in list(self._stays.values()):
            value = items[0].value
            if any(item.tier is tier and item.source is not None for item in items):
                self.attempt(value, self._merged(self.of(value), tier))
                self.attempt(value, self._earlier(self.of(value), tier))

    def attempt(self, value: Value, stays: list[Placed]) -> None:
        """Put ``stays`` in place of what a value has, if their tiers' plans fit then."""
        before = self.of(value)
        if set(stays) == set(before):
            return
        self.put(value, stays)
        tiers = {item.tier.name: item.tier for item in stays}
        if any(self.plan(tier, 0.0).arena_bytes > tier.bytes for tier in tiers.values()):
            self.put(value, before)

    def _merged(self, stays: list[Placed], tier: MemoryTier) -> list[Placed]:
        """Neighbours that come from one stay as one, as far as there is room between them."""
        merged: list[Placed] = []
        for item in (item for item in stays if item.tier is tier and item.source is not None):
            last = merged[-1] if merged else item
            between = last.end, item.start
            if (
                last.source is item.source
                and last is not item
                and (self.room(tier, *between) >= item.bytes)
            ):
                item = Placed(item.value, tier, last.start, item.end, last.reason, last.source)
                merged.pop()
            merged.append(item)
        return [*(item for item in stays if item.tier is not tier or item.source is None), *merged]

    def _earlier(self, stays: list[Placed], tier: MemoryTier) -> list[Placed]:
        """What is brought in, one kernel earlier, where there is room and the source is there."""
        moved: list[Placed] = []
        replaced: dict[Placed, Placed] = {}
        for item in stays:
            source = item.source if item.source is None else replaced.get(item.source, item.source)
            start, reason = item.start, item.reason
            if source is not None and item.tier is tier:
                early = start - 2
                there = early >= source.start + (source.source is not None)
                apart = all(
                    other is item or other.tier is not tier or other.end <= early
                    for other in stays
                    if other.start < item.start
                )
                if early >= 0 and there and apart and self.room(tier, early, start) >= item.bytes:
                    start, reason = early, f"{reason}, one kernel early"
            if start != item.start or source is not item.source:
                replaced[item] = Placed(item.value, item.tier, start, item.end, reason, source)
            moved.append(replaced.get(item, item))
        return moved if replaced else stays
