"""A memory plan as a problem and its answer: buffers with lifetimes, offsets in one arena."""

from __future__ import annotations

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
        arena_bytes: the end of the highest buffer.
        bound_bytes: no arena can be smaller: the most bytes alive at one step.
        method: what found it, such as ``"best-fit by size"`` or ``"cp-sat, optimal"``.
    """

    offsets: Mapping[str, int]
    arena_bytes: int
    bound_bytes: int
    method: str


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are alive at one step, each buffer rounded up to its alignment."""
    changes: dict[int, int] = {}
    for item in buffers:
        size = -(-item.size // item.alignment) * item.alignment
        changes[item.first] = changes.get(item.first, 0) + size
        changes[item.end] = changes.get(item.end, 0) - size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most
