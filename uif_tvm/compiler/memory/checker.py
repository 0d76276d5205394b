"""Proof that a plan is sound, by a sweep over the steps that shares nothing with the planner.

At every step the buffers alive are kept in order of their offsets; a new one must fit between its
neighbours there. Buffers that end at a step leave before those that start at it enter.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import gcd
from typing import NoReturn

from uif_tvm.compiler.memory.problem import Buffer, Plan
from uif_tvm.errors import CompileError


def check(buffers: Sequence[Buffer], plan: Plan) -> None:
    """Raise unless no two buffers of ``plan`` that are alive at one step share a byte.

    Raises:
        CompileError: two buffers overlap (named, with the step and the bytes), one has no offset,
            a bad one or one that is not aligned, an offset belongs to no buffer, the arena does
            not end where the highest buffer does, or it is below its own lower bound.
    """
    known = {item.name: item for item in buffers}
    if len(known) != len(buffers):
        _refuse(f"{len(buffers) - len(known)} buffers have the name of another")
    missing, unknown = known.keys() - plan.offsets.keys(), plan.offsets.keys() - known.keys()
    if missing or unknown:
        _refuse(
            f"buffers without an offset: {_listed(missing)}; "
            f"offsets without a buffer: {_listed(unknown)}"
        )
    for item in buffers:
        _check_one(item, plan.offsets[item.name])
    _check_arena(buffers, plan)
    _sweep(buffers, plan)


def _check_arena(buffers: Sequence[Buffer], plan: Plan) -> None:
    # Nothing can start between a buffer's end and the next multiple of what alignments share.
    unit = gcd(*(item.alignment for item in buffers)) or 1
    ends = [(plan.offsets[item.name] + item.size, item.name) for item in buffers]
    end, last = max(ends, default=(0, "nothing"))
    arena = (end + unit - 1) // unit * unit
    if plan.arena_bytes != arena:
        _refuse(f"the arena has {plan.arena_bytes} bytes, but {last} needs it to have {arena}")
    if plan.bound_bytes > arena:
        _refuse(f"no arena was to be below {plan.bound_bytes} bytes, but this one has {arena}")


def _check_one(item: Buffer, offset: int) -> None:
    if item.size < 1 or item.end <= item.first or item.alignment < 1:
        _refuse(
            f"{item.name} has {item.size} bytes from step {item.first} to {item.end}, "
            f"aligned to {item.alignment}"
        )
    if offset < 0:
        _refuse(f"{item.name} has the offset {offset}")
    if offset % item.alignment:
        _refuse(f"{item.name} lies at {offset}, not at a multiple of {item.alignment}")


def _sweep(buffers: Sequence[Buffer], plan: Plan) -> None:
    events = [(item.end, 0, item) for item in buffers] + [(item.first, 1, item) for item in buffers]
    events.sort(key=lambda event: event[:2])
    alive: list[tuple[int, int, str]] = []  # (offset, end, name) in order, without overlaps
    for step, enters, item in events:
        start = plan.offsets[item.name]
        row = (start, start + item.size, item.name)
        place = bisect_left(alive, row)
        if not enters:
            del alive[place]
            continue
        for other in alive[max(place - 1, 0) : place + 1]:
            low, high = max(start, other[0]), min(row[1], other[1])
            if low < high:
                _refuse(
                    f"{item.name} and {other[2]} are both alive at step {step} and share bytes "
                    f"{low} to {high - 1}"
                )
        insort(alive, row)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (" ..." if len(names) > 5 else "") or "none"


def _refuse(what: str) -> NoReturn:
    raise CompileError(
        f"the memory plan is wrong: {what}",
        code="UIF-COMPILE-MEMORY",
        hint="report this with the model; optimize_level=0 plans no memory",
    )
