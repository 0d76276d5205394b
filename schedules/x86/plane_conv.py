"""Convolutions over extents of run time: register tiles over plain layout, tails peeled.

Work is cut into (filter panel, image, row): these are the parallel tasks, panel outermost, so
that a core keeps one panel of weights in its L2 over all rows. Within a row, tiles of pixels are
summed in registers; see ``uif_tvm.kernels.plane_conv``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.schedules._common.blocks import (
    child_blocks,
    family_of,
    find_anchor,
    inline_epilogue,
    open_schedule,
)
from uif_tvm.schedules._common.parallel import fuse_all
from uif_tvm.schedules._common.tails import peel_tails

from uif_tvm.target.schedule import OTHER_FAMILY, Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

#: Taps of a depthwise window that are unrolled; more would only fill the instruction cache.
_UNROLLED_TAPS = 9


def _opened(func: PrimFunc, family: str) -> tuple[Schedule, Any] | Refusal:
    if family_of(func) != family:
        return Refusal(OTHER_FAMILY, f"no {family} in this kernel")
    sch = open_schedule(func)
    if isinstance(sch, Refusal):
        return sch
    anchor = find_anchor(sch, family)
    return anchor if isinstance(anchor, Refusal) else (sch, anchor)


def _frame_rows(sch: Schedule) -> None:
    """The padded copy, one parallel loop over channels; LLVM vectorises its rows with masks."""
    for facts in child_blocks(sch):
        if facts.name.startswith("framed"):
            n, c, *_ = sch.get_loops(facts.rv)
            sch.parallel(sch.fuse(n, c))


class PlaneConv:
    """Dense and grouped convolution, with its epilogue."""

    name = "plane-conv"
    version = 1
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        opened = _opened(func, "plane_conv2d")
        if isinstance(opened, Refusal):
            return opened
        sch, anchor = opened
        (parked,) = sch.get_consumers(anchor.rv)
        result = inline_epilogue(sch, parked)
        if isinstance(result, Refusal):
            return result
        pixels, block = (int(extent) for extent in anchor.writes.shape[-2:])
        lanes = target.machine.lanes(str(anchor.writes.dtype))

        n, o, *rows, w = sch.get_loops(result)
        panel, filter_in = sch.split(o, [None, block])
        tile, pixel = sch.split(w, [None, pixels])
        sch.reorder(panel, n, *rows, tile, filter_in, pixel)
        sch.parallel(fuse_all(sch, [panel, n, *rows]))
        sch.vectorize(pixel)
        sch.compute_at(parked, tile, preserve_unit_loops=True)
        sch.compute_at(anchor.rv, tile, preserve_unit_loops=True)
        _in_registers(sch, anchor.rv, lanes)
        *_, row, column = sch.get_loops(parked)
        vector, lane = sch.split(column, [None, lanes])
        for loop in (row, vector):
            sch.unroll(loop)
        sch.vectorize(lane)
        sch.set_scope(parked, 0, "local")
        _frame_rows(sch)
        return Scheduled(peel_tails(sch.mod["main"]), f"register tile {pixels}x{block}")


def _in_registers(sch: Schedule, anchor: Any, lanes: int) -> None:
    """Sum a tile in registers: the window outside, all of the tile unrolled inside."""
    *_, pixel, column, c, i, j = sch.get_loops(anchor)
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(c, i, j, pixel, vector, lane)
    for loop in (pixel, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.set_scope(anchor, 0, "local")
    sch.decompose_reduction(anchor, c)


class PlaneDepthwise:
    """One filter per channel, with its epilogue."""

    name = "plane-depthwise"
    version = 1
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text; a vector of pixels is one register."""
        opened = _opened(func, "plane_depthwise")
        if isinstance(opened, Refusal):
            return opened
        sch, anchor = opened
        result = inline_epilogue(sch, anchor.rv)
        if isinstance(result, Refusal):
            return result
        pixels = int(anchor.writes.shape[-1])
        n, c, *_, w = sch.get_loops(result)
        tile, pixel = sch.split(w, [None, pixels])
        sch.parallel(sch.fuse(n, c))
        sch.vectorize(pixel)
        sch.compute_at(anchor.rv, tile, preserve_unit_loops=True)
        *_, lane, i, j = sch.get_loops(anchor.rv)
        sch.reorder(i, j, lane)
        if int(sch.get(i).extent) * int(sch.get(j).extent) <= _UNROLLED_TAPS:
            sch.unroll(i)
            sch.unroll(j)
        sch.vectorize(lane)
        sch.set_scope(anchor.rv, 0, "local")
        sch.decompose_reduction(anchor.rv, i)
        _frame_rows(sch)
        return Scheduled(peel_tails(sch.mod["main"]), f"vectors of {pixels} pixels")


RULES = (PlaneConv(), PlaneDepthwise())
