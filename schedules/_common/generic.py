"""The last rule of every CPU target: any kernel made parallel and vectorised as far as is legal.

It must take whatever arrives (several blocks, reductions over any axes, opaque bodies, symbolic
or zero extents, scalars) and never change what a kernel computes. So each step asks TVM for one
legality-checked primitive and goes on without it when refused:

1. element-wise blocks are inlined into their only use, unless that repeats costly work;
2. a reduction keeps a register tile: data-parallel loops outside, reduction loops next, then the
   tile, whose innermost loop runs along contiguous memory as one vector; where only the reduction
   runs along contiguous memory, it is split into partial results side by side;
3. other blocks run their contiguous axis as vectors;
4. outer data-parallel loops become one parallel loop when the kernel is long enough.

Loops that no vector length divides stay serial: LLVM's loop vectoriser does those with a tail.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules._common.access import Body, body_of, same_index, stride
from uif_tvm.schedules._common.blocks import (
    BlockFacts,
    child_blocks,
    open_schedule,
    static_extents,
)
from uif_tvm.schedules._common.parallel import (
    fuse_all,
    fuse_until,
    parallel_pays,
    vector_factor,
)

from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Machine, Refusal

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

#: Tasks per core: enough to even out a late core, few enough to keep each one long.
_TASKS_PER_CORE = 4
#: Rows of a reduction's register tile: loads of the vector operand are shared between them.
_TILE_ROWS = (4, 3, 2)
#: Largest vector that no power of two divides; LLVM splits it into legal pieces.
_ODD_VECTOR = 16


class Generic:
    """See the module text. Always applies."""

    name = "generic"
    version = 2
    kind = "generic"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """Schedule any function; what cannot be scheduled is returned as it is, and said so."""
        sch = open_schedule(func)
        if isinstance(sch, Refusal):
            return Scheduled(func, f"left as written: {sch.detail}")
        inline_elementwise(sch)
        notes = [schedule_block(sch, facts, target.machine) for facts in child_blocks(sch)]
        if not notes:
            return Scheduled(func, "left as written: no blocks")
        return Scheduled(sch.mod["main"], "; ".join(notes))


def _attempt(primitive: Any, *args: Any, **kwargs: Any) -> Any:
    """Result of a schedule primitive, or ``None`` when TVM finds it illegal here.

    Primitives check before they change anything, so a refused one leaves the schedule intact.
    """
    from tvm.s_tir.schedule import ScheduleError

    try:
        result = primitive(*args, **kwargs)
    except (ScheduleError, RuntimeError, ValueError, TypeError):
        return None
    return True if result is None else result


def inline_elementwise(sch: Schedule) -> None:
    """Fold element-wise blocks into their consumers where that repeats no costly work."""
    for facts in child_blocks(sch):
        if facts.spatial and facts.simple and _inlining_pays(sch, facts):
            _attempt(sch.compute_inline, facts.rv)


def _inlining_pays(sch: Schedule, facts: BlockFacts) -> bool:
    body = body_of(sch.get(facts.rv))
    consumers = _attempt(sch.get_consumers, facts.rv) or []
    if body is None or len(consumers) == 0:
        return False
    costly = body.operations > 4 or bool(body.calls)
    if not costly:
        return True
    if len(consumers) > 1:
        return False
    (consumer,) = consumers
    reader = body_of(sch.get(consumer))
    if reader is None:
        return False
    uses = [load for load in reader.loads if load.buffer.same_as(body.store.buffer)]
    # Costly work may move, but not be repeated: one load of it per iteration (or several of the
    # same element), and no more iterations than elements.
    mine = static_extents(sch, sch.get_loops(facts.rv))
    theirs = static_extents(sch, sch.get_loops(consumer))
    once = bool(uses) and same_index(uses)
    return once and mine is not None and theirs is not None and prod(theirs) <= prod(mine)


def schedule_block(sch: Schedule, facts: BlockFacts, machine: Machine) -> str:
    """Loops of one block; returns a short description."""
    body = body_of(sch.get(facts.rv)) if facts.simple else None
    loops = sch.get_loops(facts.rv)
    extents = static_extents(sch, loops)
    if extents is not None and 0 in extents:
        return f"{facts.name}: empty"
    if body is None or not loops:
        note = "scalar" if not loops else "as written"
        return f"{facts.name}: {note}{_parallel_outer(sch, loops, 1 << 20, machine)}"
    if facts.spatial:
        return f"{facts.name}: {_spatial(sch, facts, body, machine)}"
    if facts.reduction:
        return f"{facts.name}: {_reduction(sch, facts, body, machine)}"
    return f"{facts.name}: as written"


def _spatial(sch: Schedule, facts: BlockFacts, body: Body, machine: Machine) -> str:
    """Element-wise and injective blocks: outer loops parallel, contiguous loop as vectors."""
    loops = sch.get_loops(facts.rv)
    extents = static_extents(sch, loops)
    lanes = body.lanes(machine)
    steps = _steps(extents, body, lanes)
    uneven = extents is not None and len(loops) > 1 and extents[-1] % lanes != 0
    if uneven and not body.branching and same_index([body.store, *body.loads]):
        # Rows that are not whole vectors, but every buffer is walked the same way: one long row.
        loops, extents = [sch.fuse(*loops)], [prod(extents or [])]
    *outer, last = loops
    width = 1
    contiguous = len(loops) == 1 or stride(body.store, _var(sch, facts.rv)) == 1
    if extents is not None and contiguous and not body.branching:
        width = vector_factor(extents[-1], lanes)
    if width > 1:
        last, lane = sch.split(last, [None, width])
        _attempt(sch.vectorize, lane)
    note = f"vectors of {width}" if width > 1 else "loop"
    return note + _parallel_outer(sch, [*outer, last], steps, machine)


def _var(sch: Schedule, block: Any) -> Any:
    """The block variable bound to the innermost loop (blocks made by TE keep loop order)."""
    return sch.get(block).iter_vars[-1].var


def _reduction(sch: Schedule, facts: BlockFacts, body: Body, machine: Machine) -> str:
    """Reductions: parallel outside, then the reduction loops, then a tile held in registers."""
    from tvm import tirx

    block = sch.get(facts.rv)
    loops = sch.get_loops(facts.rv)
    if len(loops) != len(block.iter_vars):
        return "as written"
    kinds = [var.iter_type for var in block.iter_vars]
    spatial = [lp for lp, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    reduce = [lp for lp, kind in zip(loops, kinds, strict=True) if kind != tirx.IterVar.DataPar]
    spatial_vars = [var.var for var in block.iter_vars if var.iter_type == tirx.IterVar.DataPar]
    extents = static_extents(sch, loops)
    lanes = body.lanes(machine)
    steps = _steps(extents, body, lanes)
    tile: list[Any] = []
    outer, width, rows = spatial, 1, 1
    if spatial and static_extents(sch, spatial[-1:]) is not None and not body.branching:
        tile, outer, width, rows = _register_tile(sch, body, spatial, spatial_vars, lanes)
    if not tile and spatial:
        note = _partial_sums(sch, facts, body, reduce[-1], steps, machine)
        if note is not None:
            return note
    _attempt(sch.reorder, *outer, *reduce, *tile)
    note = f"tile {rows}x{width}" if tile else "loop"
    note += _parallel_outer(sch, outer, steps if tile else steps * lanes, machine)
    if tile:
        for loop in tile[:-1]:
            sch.unroll(loop)
        _attempt(sch.vectorize, tile[-1])
    _attempt(sch.decompose_reduction, facts.rv, reduce[0])
    return note


def _register_tile(
    sch: Schedule, body: Body, spatial: list[Any], spatial_vars: list[Any], lanes: int
) -> tuple[list[Any], list[Any], int, int]:
    """(tile loops, loops left outside, vector length, rows); no tile when nothing is contiguous."""
    inner = spatial_vars[-1]
    (extent,) = static_extents(sch, spatial[-1:]) or [1]
    moves = [stride(load, inner) for load in body.loads]
    if stride(body.store, inner) != 1 or any(move not in (0, 1, 2) for move in moves):
        return [], spatial, 1, 1
    width = vector_factor(extent, 2 * lanes)
    if width == 1 and 4 <= extent <= _ODD_VECTOR:
        width = extent
    if width == 1:
        return [], spatial, 1, 1
    outer = list(spatial)
    last, lane = sch.split(outer[-1], [None, width])
    outer[-1] = last
    # A second axis in registers, where some load does not move with it and so is shared.
    for at in range(len(spatial) - 2, -1, -1):
        extents = static_extents(sch, spatial[at : at + 1])
        shares = any(stride(load, spatial_vars[at]) == 0 for load in body.loads)
        rows = next((r for r in _TILE_ROWS if extents and extents[0] % r == 0), 1)
        if shares and rows > 1:
            outer[at], row = sch.split(spatial[at], [None, rows])
            return [row, lane], outer, width, rows
    return [lane], outer, width, 1


def _partial_sums(
    sch: Schedule, facts: BlockFacts, body: Body, last: Any, steps: float, machine: Machine
) -> str | None:
    """Dot products: partial results side by side along the contiguous reduction axis.

    Returns a note, or ``None`` when nothing was changed. Sums are then taken in another order
    than written, with a smaller rounding error; integer results are the same.
    """
    from tvm import tirx

    k = sch.get(facts.rv).iter_vars[-1].var
    moves = [stride(load, k) for load in body.loads]
    extents = static_extents(sch, [last])
    if body.branching or extents is None or 1 not in moves or any(m not in (0, 1) for m in moves):
        return None
    width = vector_factor(extents[0], body.lanes(machine))
    if width == 1:
        return None
    _, lane = sch.split(last, [None, width])
    rank = sum(var.iter_type == tirx.IterVar.DataPar for var in sch.get(facts.rv).iter_vars)
    partial = _attempt(sch.rfactor, lane, rank)
    if partial is None:
        return None
    total = sch.get_sblock(facts.name)
    note = f"partial results of {width}"
    note += _parallel_outer(sch, sch.get_loops(total)[:rank], steps, machine)
    *leading, _ = sch.get_loops(total)
    if _attempt(sch.compute_at, partial, leading[-1]) is None:
        return note
    lane, *reduce = sch.get_loops(partial)[len(leading) :]
    if reduce and static_extents(sch, [lane]) == [width]:
        _attempt(sch.reorder, *reduce, lane)
        _attempt(sch.vectorize, lane)
        _attempt(sch.decompose_reduction, partial, reduce[0])
    return note


def _steps(extents: list[int] | None, body: Body, lanes: int) -> float:
    """Vector steps of the whole block; symbolic extents count as long."""
    if extents is None:
        return float(1 << 20)
    per_iteration = 1 + len(body.loads) + body.operations + 8 * len(body.calls)
    return float(prod(extents) * per_iteration / lanes)


def _parallel_outer(sch: Schedule, outer: list[Any], steps: float, machine: Machine) -> str:
    """Make the leading data-parallel loops one parallel loop, if the work is worth it."""
    if not outer or not parallel_pays(steps, machine.cores):
        return ""
    extents = static_extents(sch, outer)
    if extents is None:
        return ", parallel" if _attempt(sch.parallel, outer[0]) else ""
    count = fuse_until(extents, _TASKS_PER_CORE * machine.cores)
    leading = fuse_all(sch, outer[:count])
    if prod(extents[:count]) <= 1:
        return ""
    return ", parallel" if _attempt(sch.parallel, leading) else ""
