"""A placement problem as the planner's algorithms want it: integers in units, conflicts listed.

Steps matter only as far as they tell which buffers are alive together, so they are replaced by
*sections*: the maximal sets of buffers that are alive together, numbered in time. A buffer lives in
a contiguous range of them. Sizes and offsets are counted in *units*: the greatest common divisor of
all alignments, and of the sizes when those are multiples of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from uif_tvm.compiler.memory.problem import Buffer, common_alignment


@dataclass(frozen=True)
class Scaled:
    """Parallel sequences over the buffers, which are sorted: the order of input has no influence.

    Args:
        names: of the buffers.
        size: units.
        alignment: units; all 1 in the usual case of equal alignments.
        low, high: the buffer lives in sections ``low`` up to, but not at, ``high``.
        life: steps that each is alive for.
        sections: buffers of each section.
        unit: bytes.
    """

    names: tuple[str, ...]
    size: tuple[int, ...]
    alignment: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    life: tuple[int, ...]
    sections: tuple[tuple[int, ...], ...]
    unit: int

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def meets(self) -> list[list[int]]:
        """For each buffer all others that are alive with it at some step, ascending."""
        found: list[set[int]] = [set() for _ in self.names]
        for section, members in enumerate(self.sections):
            fresh = [item for item in members if self.low[item] == section]
            for item in fresh:
                found[item].update(members)
                for other in members:
                    found[other].add(item)
        for item, others in enumerate(found):
            others.discard(item)
        return [sorted(others) for others in found]

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Units alive in each section."""
        return tuple(sum(self.size[item] for item in members) for members in self.sections)

    @cached_property
    def bound(self) -> int:
        """No arena is smaller, units."""
        return max(self.totals, default=0)

    @property
    def is_aligned(self) -> bool:
        """Whether every offset in whole units is aligned."""
        return max(self.alignment, default=1) == 1

    def height(self, offsets: Sequence[int]) -> int:
        """End of the arena, units."""
        return max(map(operator.add, offsets, self.size), default=0)

    def named(self, offsets: Sequence[int]) -> Mapping[str, int]:
        """Offsets in bytes by name."""
        return {name: offset * self.unit for name, offset in zip(self.names, offsets, strict=True)}


def scale(buffers: Sequence[Buffer]) -> Scaled:
    """The problem of ``buffers`` in units and sections."""
    items = sorted(buffers, key=lambda item: (item.first, item.end, -item.size, item.name))
    unit = common_alignment(items)
    sizes = [-(-item.size // unit) for item in items]
    aligned = [item.alignment // unit for item in items]
    # Where all offsets are sums of sizes, those may have a larger unit in common.
    coarse = math.gcd(*sizes) or 1
    if max(aligned, default=1) > 1:
        coarse = math.gcd(coarse, *aligned)
    low, high, sections = _sections(items)
    return Scaled(
        names=tuple(item.name for item in items),
        size=tuple(size // coarse for size in sizes),
        alignment=tuple(max(1, step // coarse) for step in aligned),
        low=tuple(low),
        high=tuple(high),
        life=tuple(item.end - item.first for item in items),
        sections=tuple(sections),
        unit=unit * coarse,
    )


def _sections(items: Sequence[Buffer]) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
    events = [(item.end, 0, index) for index, item in enumerate(items)]
    events += [(item.first, 1, index) for index, item in enumerate(items)]
    events.sort()
    low, high = [0] * len(items), [0] * len(items)
    sections: list[tuple[int, ...]] = []
    alive: dict[int, None] = {}
    grown = False
    for _, enters, index in events:
        if enters:
            alive[index] = None
            low[index] = len(sections)
            grown = True
            continue
        if grown:  # nothing larger contains this set
            sections.append(tuple(alive))
            grown = False
        del alive[index]
        high[index] = len(sections)
    return low, high, sections
