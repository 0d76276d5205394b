"""Schedule of row kernels (softmax, layer norm, RMS norm, reductions over the last axes).

One parallel loop over rows; every stage of a row runs below it while the row is in L1. Partial
sums and element-wise stages run as vectors; per-row scalars stay in registers.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules._common.access import body_of
from uif_tvm.schedules._common.blocks import (
    BlockFacts,
    child_blocks,
    family_of,
    open_schedule,
    static_extents,
)
from uif_tvm.schedules._common.parallel import fuse_all, parallel_pays, vector_factor
from uif_tvm.schedules._common.tails import peel_tails

from uif_tvm.target.schedule import OTHER_FAMILY, Scheduled
from uif_tvm.target.spec import Machine, Refusal

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

_FAMILY = "row"
#: Row temporaries up to this size live on the stack; above it they come from the workspace pool.
_STACK_BYTES = 32 << 10


class RowKernel:
    """See the module text."""

    name = "row-kernel"
    version = 1
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """Schedule a kernel of ``row`` stages, with what is fused before and after them."""
        from tvm.s_tir.schedule import ScheduleError

        if family_of(func) != _FAMILY:
            return Refusal(OTHER_FAMILY, "no row stages in this kernel")
        sch = open_schedule(func)
        if isinstance(sch, Refusal):
            return sch
        try:
            return _schedule(sch, target.machine)
        except ScheduleError as error:
            return Refusal("row-stages", str(error).strip().splitlines()[-1][:200])


def _schedule(sch: Schedule, machine: Machine) -> Scheduled | Refusal:
    blocks = child_blocks(sch)
    if not all(facts.simple and (facts.spatial or facts.reduction) for facts in blocks):
        return Refusal("row-stages", "a block is neither element-wise nor a plain reduction")
    outputs = sch.get_output_blocks(sch.get_sblock("root"))
    if len(outputs) != 1:
        return Refusal("several-results", f"{len(outputs)} result blocks, need 1")
    result = sch.get(outputs[0]).name_hint
    last_stage = max(at for at, facts in enumerate(blocks) if facts.family == _FAMILY)
    for facts in blocks[last_stage:]:
        if facts.name != result:
            sch.compute_inline(facts.rv)
    rank = _row_rank(sch, blocks)
    stages = [facts for facts in child_blocks(sch) if facts.name != result]
    loops = sch.get_loops(sch.get_sblock(result))
    if rank == 0 or len(loops) < rank:
        return Refusal("no-rows", f"{len(loops)} loops over the result, {rank} over rows")
    extents = static_extents(sch, loops)
    row = fuse_all(sch, loops[:rank])
    work = _row_steps(sch, blocks[0], stages, machine)
    if extents is None or parallel_pays(prod(extents[:rank]) * work, machine.cores):
        sch.parallel(row)
    for facts in reversed(stages):
        sch.compute_at(facts.rv, row, preserve_unit_loops=True)
    widths = [_vectorise(sch, facts, rank, machine) for facts in stages]
    widths.append(_vectorise_result(sch, sch.get_sblock(result), machine))
    return Scheduled(
        peel_tails(sch.mod["main"]), f"{len(stages) + 1} stages per row, vectors of {max(widths)}"
    )


def _row_rank(sch: Schedule, blocks: list[BlockFacts]) -> int:
    """Axes that number the rows: those of the first complete row fold."""
    for facts in blocks:
        if facts.family == _FAMILY and facts.name.endswith(("_total", "_all")):
            return len(sch.get(facts.rv).writes[0].region)
    return 0


def _row_steps(
    sch: Schedule, first: BlockFacts, stages: list[BlockFacts], machine: Machine
) -> float:
    """Vector steps of one row, roughly: every stage touches each element once."""
    reads = sch.get(first.rv).reads
    depth = int(reads[0].source.shape[-1]) if reads and _is_static(reads[0].source.shape[-1]) else 1
    return len(stages) * 3 * max(1, depth // machine.lanes("float32"))


def _is_static(extent: Any) -> bool:
    from tvm import tirx

    return isinstance(extent, tirx.IntImm)


def _vectorise(sch: Schedule, facts: BlockFacts, rank: int, machine: Machine) -> int:
    """Vectors along a stage's last axis; its buffer next to the core. Returns the width."""
    loops = sch.get_loops(facts.rv)
    body = body_of(sch.get(facts.rv))
    shape = facts.writes.shape
    tail = [int(extent) for extent in shape[rank:] if _is_static(extent)]
    if len(tail) == len(shape) - rank and prod(tail) * 8 <= _STACK_BYTES:
        sch.set_scope(facts.rv, 0, "local")
    if body is None or len(shape) == rank:
        return 1
    if facts.reduction:
        *_, lane, k = loops
        (extent,) = static_extents(sch, [lane]) or [1]
        width = vector_factor(extent, body.lanes(machine))
        vector, lane = sch.split(lane, [None, width])
        sch.reorder(k, vector, lane)
        sch.unroll(vector)
        sch.vectorize(lane)
        sch.decompose_reduction(facts.rv, k)
        return width
    return _vectorise_loop(sch, loops[-1], body.lanes(machine))


def _vectorise_result(sch: Schedule, block: Any, machine: Machine) -> int:
    loops = sch.get_loops(block)
    body = body_of(sch.get(block))
    if body is None or len(loops) < 2:
        return 1
    return _vectorise_loop(sch, loops[-1], body.lanes(machine))


def _vectorise_loop(sch: Schedule, loop: Any, lanes: int) -> int:
    """Cut ``loop`` into vectors; a remainder becomes a predicate, which ``peel_tails`` moves."""
    extents = static_extents(sch, [loop])
    if extents is None or extents[0] < 4:
        return 1
    width = lanes if extents[0] > lanes else vector_factor(extents[0], lanes)
    if width == 1:
        return 1
    _, lane = sch.split(loop, [None, width])
    sch.vectorize(lane)
    return width


RULES = (RowKernel(),)
