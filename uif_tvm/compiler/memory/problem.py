"""A memory plan as a problem and its answer: buffers with lifetimes, offsets in one arena."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Alignment of every buffer unless said otherwise, bytes: a cache line, and the widest vector.
ALIGNMENT = 64


@dataclass(frozen=True)
class Buffer:
    """Something that needs ``size`` bytes from step ``first`` up to, but not at, step ``end``.

    Args:
        name: unique in its problem.
        first: step that writes it first.
        end: the step after its last use; ``end > first``.
        size: bytes, at least 1.
        alignment: its offset must be a multiple of this.
    """

    name: str
    first: int
    end: int
    size: int
    alignment: int = ALIGNMENT

    def meets(self, other: Buffer) -> bool:
        """Whether both are alive at some step."""
        return self.first < other.end and other.first < self.end


@dataclass(frozen=True)
class Plan:
    """Where every buffer lies.

    Args:
        offsets: buffer name -> bytes from the start of the arena.
        arena_bytes: the highest end of a buffer, rounded up to what all alignments share.
        bound_bytes: no arena can be smaller: see :func:`lower_bound`.
        method: what found it, such as ``"best fit, size"`` or ``"cp-sat, optimal"``.
    """

    offsets: Mapping[str, int]
    arena_bytes: int
    bound_bytes: int
    method: str


def common_alignment(buffers: Sequence[Buffer]) -> int:
    """The greatest common divisor of all alignments: every offset is a multiple of it."""
    return math.gcd(*(item.alignment for item in buffers)) or 1


def arena_of(buffers: Sequence[Buffer], offsets: Mapping[str, int]) -> int:
    """Bytes of the arena that holds ``buffers`` at ``offsets``, see :class:`Plan`."""
    unit = common_alignment(buffers)
    end = max((offsets[item.name] + item.size for item in buffers), default=0)
    return -(-end // unit) * unit


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes alive at one step, each buffer rounded up to the common alignment.

    The bytes from a buffer's end to the next multiple of it are lost to all others.
    """
    unit = common_alignment(buffers)
    changes: dict[int, int] = {}
    for item in buffers:
        size = -(-item.size // unit) * unit
        changes[item.first] = changes.get(item.first, 0) + size
        changes[item.end] = changes.get(item.end, 0) - size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most
