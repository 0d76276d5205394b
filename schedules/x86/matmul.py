"""Matmul schedules: a register tile over packed panels, the epilogue on the tile while it is hot.

Layout of the work (see ``uif_tvm.kernels.matmul``): the right-hand side lies in panels
``[N/nb, K, nb]``; a panel fits L2 and is read once per row tile, a row tile's left-hand rows fit
L1. So panels are the outer loop, row tiles the inner one, and K runs inside the register tile.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules._common.blocks import (
    family_of,
    find_anchor,
    inline_epilogue,
    open_schedule,
    static_extents,
)
from uif_tvm.schedules._common.parallel import fuse_all, parallel_pays
from uif_tvm.schedules._common.tails import peel_tails
from uif_tvm.schedules.x86.prefetch import MIN_ROW_TILES, prefetch_next_panel

from uif_tvm.target.schedule import COLUMNS_ATTR, OTHER_FAMILY, Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

#: Packed panels up to this many elements live on the stack (32 KiB of float32).
_STACK_ELEMENTS = 8192
#: Depth assumed when it is only known at run time.
_UNKNOWN_DEPTH = 64


class PackedMatmul:
    """``x [..., M, K]`` times a right-hand side packed at export, with its epilogue."""

    name = "packed-matmul"
    version = 3
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        if family_of(func) != "packed_matmul":
            return Refusal(OTHER_FAMILY, "no packed matmul in this kernel")
        sch = open_schedule(func)
        if isinstance(sch, Refusal):
            return sch
        anchor = find_anchor(sch, "packed_matmul")
        if isinstance(anchor, Refusal):
            return anchor
        result = inline_epilogue(sch, anchor.rv)
        if isinstance(result, Refusal):
            return result
        mb, nb = (int(extent) for extent in anchor.writes.shape[-2:])
        # Two factors of one column may lie in a panel, so it has fewer columns of the result.
        columns = int(sch.get(anchor.rv).annotations.get(COLUMNS_ATTR, nb))
        lanes = target.machine.lanes(str(anchor.writes.dtype))
        depth = _reduce_extent(sch, anchor.rv)

        *outer, m, n = sch.get_loops(result)
        row_tile, row_in = sch.split(m, [None, mb])
        panel, column = sch.split(n, [None, columns])
        sch.reorder(panel, *outer, row_tile, row_in, column)
        tile = [panel, *outer, row_tile]
        extents = static_extents(sch, tile)
        if extents is not None:
            # One task list over (panel, row tile): balanced for any number of either, and each
            # core walks a panel's row tiles one after the other, so the panel stays in its L2.
            tile = [sch.fuse(*tile)]
            steps = prod(extents) * (depth or _UNKNOWN_DEPTH) * mb * (nb // lanes) / 2
            if parallel_pays(steps, target.machine.cores):
                sch.parallel(tile[0])
        else:
            sch.parallel(panel)
        sch.compute_at(anchor.rv, tile[-1], preserve_unit_loops=True)
        register_tile(sch, anchor.rv, lanes)
        store_tile(sch, row_in, column, lanes)
        func = peel_tails(sch.mod["main"])
        note = f"register tile {mb}x{nb}, K {depth or 'open'}"
        if extents is not None and extents[-1] >= MIN_ROW_TILES and prod(extents[1:-1]) == 1:
            return Scheduled(prefetch_next_panel(func), f"{note}, next panel prefetched")
        return Scheduled(func, note)


class BatchMatmul:
    """``x [..., M, K]`` times ``y [..., K, N]``, both computed at run time, with its epilogue."""

    name = "batch-matmul"
    version = 1
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text; a panel of ``y`` is packed just before its row tiles need it."""
        if family_of(func) != "batch_matmul":
            return Refusal(OTHER_FAMILY, "no batched matmul in this kernel")
        sch = open_schedule(func)
        if isinstance(sch, Refusal):
            return sch
        anchor = find_anchor(sch, "batch_matmul")
        if isinstance(anchor, Refusal):
            return anchor
        result = inline_epilogue(sch, anchor.rv)
        if isinstance(result, Refusal):
            return result
        mb, nb = (int(extent) for extent in anchor.writes.shape[-2:])
        lanes = target.machine.lanes(str(anchor.writes.dtype))
        depth = _reduce_extent(sch, anchor.rv)
        (pack,) = sch.get_producers(anchor.rv)

        *batch, m, n = sch.get_loops(result)
        row_tile, row_in = sch.split(m, [None, mb])
        panel, column = sch.split(n, [None, nb])
        sch.reorder(*batch, panel, row_tile, row_in, column)
        tile_extents = static_extents(sch, [*batch, panel, row_tile])
        # Batches and panels are independent and each packs its own operand: the parallel tasks.
        task = fuse_all(sch, [*batch, panel])
        steps = None
        if tile_extents is not None and depth is not None:
            steps = prod(tile_extents) * depth * mb * nb / lanes / 2
        if steps is None or parallel_pays(steps, target.machine.cores):
            sch.parallel(task)
        sch.compute_at(anchor.rv, row_tile, preserve_unit_loops=True)
        if tile_extents is not None and tile_extents[-1] == 1:
            # Each panel is used once: reading it in place is cheaper than packing it first.
            sch.compute_inline(pack)
        else:
            small = depth is not None and depth * nb <= _STACK_ELEMENTS
            _pack_panel(sch, pack, task, lanes, on_stack=small)
        register_tile(sch, anchor.rv, lanes)
        store_tile(sch, row_in, column, lanes)
        note = f"register tile {mb}x{nb}, K {depth or 'open'}"
        return Scheduled(peel_tails(sch.mod["main"]), note)


def _pack_panel(sch: Schedule, pack: Any, task: Any, lanes: int, *, on_stack: bool) -> None:
    """Copy one panel of the right-hand side into ``[K, nb]``."""
    sch.compute_at(pack, task, preserve_unit_loops=True)
    *_, column = sch.get_loops(pack)
    _, lane = sch.split(column, [None, lanes])
    sch.vectorize(lane)
    if on_stack:
        sch.set_scope(pack, 0, "local")


def register_tile(sch: Schedule, anchor: Any, lanes: int) -> None:
    """Accumulate ``[mb, nb]`` in registers: K outside, all of the tile unrolled inside."""
    *_, row_in, column, k = sch.get_loops(anchor)
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(k, row_in, vector, lane)
    for loop in (row_in, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    # A local buffer that is only indexed by constants is promoted to registers by LLVM.
    sch.set_scope(anchor, 0, "local")
    sch.decompose_reduction(anchor, k)


def store_tile(sch: Schedule, row_in: Any, column: Any, lanes: int) -> None:
    """Write the tile out with the epilogue applied, a vector at a time."""
    vector, lane = sch.split(column, [None, lanes])
    sch.unroll(row_in)
    sch.unroll(vector)
    sch.vectorize(lane)


def _reduce_extent(sch: Schedule, block: Any) -> int | None:
    """Extent of the block's only reduction axis; ``None`` when it is symbolic."""
    from tvm import tirx

    for var in sch.get(block).iter_vars:
        if var.iter_type == tirx.IterVar.CommReduce and isinstance(var.dom.extent, tirx.IntImm):
            return int(var.dom.extent)
    return None


RULES = (PackedMatmul(), BatchMatmul())
