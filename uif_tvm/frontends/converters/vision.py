"""Operators on regions and boxes: RoiAlign, NonMaxSuppression, GridSample."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.indexing import inside
from uif_tvm.frontends.converters.kernels import call_kernel
from uif_tvm.frontends.converters.nms_kernel import nms_kernel
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dynamic


def bilinear(read: Any, y: Any, x: Any, height: Any, width: Any) -> Any:
    """Value at (y, x) between four pixels; coordinates must lie within the image."""
    dtype = kind(y)
    one = tirx.const(1, dtype)
    top, left = tirx.floor(y), tirx.floor(x)
    dy, dx = y - top, x - left
    y0, x0 = top.astype("int64"), left.astype("int64")
    y1, x1 = tirx.min(y0 + 1, height - 1), tirx.min(x0 + 1, width - 1)
    upper = read(y0, x0) * (one - dx) + read(y0, x1) * dx
    lower = read(y1, x0) * (one - dx) + read(y1, x1) * dx
    return upper * (one - dy) + lower * dy


@converter("RoiAlign")
def roi_align(ctx: NodeContext) -> relax.Expr:
    """Mean or maximum over bilinear samples of each cell of each region."""
    height = int(ctx.attrs.get("output_height", 1))
    width = int(ctx.attrs.get("output_width", 1))
    ratio = int(ctx.attrs.get("sampling_ratio", 0))
    scale = float(ctx.attrs.get("spatial_scale", 1.0))
    average = ctx.attrs.get("mode", "avg") == "avg"
    default = "half_pixel" if ctx.version >= 16 else "output_half_pixel"
    mode = ctx.attrs.get("coordinate_transformation_mode", default)
    shift = 0.5 if mode == "half_pixel" else 0.0
    batch, channels, rows, columns = ctx.static_shape(0)
    regions = ctx.shape(1)[0]
    if ctx.shape(1)[1:] != (4,) or len(ctx.shape(2)) != 1:
        raise ctx.invalid("rois must have shape (n, 4), and batch_indices (n,)")
    if ratio <= 0:
        raise Unsupported("a sampling ratio that follows each region's size (sampling_ratio = 0)")
    dtype = ctx.dtype(0)

    def compute(x: te.Tensor, rois: te.Tensor, index: te.Tensor) -> te.Tensor:
        def number(value: float) -> Any:
            return tirx.const(value, dtype)

        def sample(r: Any, c: Any, i: Any, j: Any, a: Any, b: Any) -> Any:
            image = inside(index(r), batch)
            edges = [rois(r, k) * number(scale) - number(shift) for k in range(4)]
            span_w, span_h = edges[2] - edges[0], edges[3] - edges[1]
            if mode != "half_pixel":
                span_w, span_h = tirx.max(span_w, number(1)), tirx.max(span_h, number(1))
            cell_h, cell_w = span_h / number(height), span_w / number(width)
            half = number(0.5)
            y = edges[1] + (i.astype(dtype) + (a.astype(dtype) + half) / number(ratio)) * cell_h
            z = edges[0] + (j.astype(dtype) + (b.astype(dtype) + half) / number(ratio)) * cell_w
            off = tirx.any(y < number(-1), y > number(rows), z < number(-1), z > number(columns))
            y = tirx.max(tirx.min(y, number(rows - 1)), number(0))
            z = tirx.max(tirx.min(z, number(columns - 1)), number(0))
            value = bilinear(lambda p, q: x(image, c, inside(p, rows), inside(q, columns)),
                             y, z, rows, columns)  # fmt: skip
            return tirx.Select(off, number(0), value)

        def cell(r: Any, c: Any, i: Any, j: Any) -> Any:
            items = [sample(r, c, i, j, tirx.const(a, "int64"), tirx.const(b, "int64"))
                     for a in range(ratio) for b in range(ratio)]  # fmt: skip
            total = items[0]
            for item in items[1:]:
                total = total + item if average else tirx.max(total, item)
            return total / number(ratio * ratio) if average else total

        return te.compute((regions, channels, height, width), cell, name="roi_align")

    return ctx.te(compute, ctx.expr(0), ctx.expr(1), ctx.expr(2), name="roi_align")


@converter("NonMaxSuppression")
def non_max_suppression(ctx: NodeContext) -> relax.Expr:
    """Kept (batch, class, box) rows; how many is known at run time only."""
    batch, boxes, _ = ctx.static_shape(0)
    classes = ctx.static_shape(1)[1]
    if ctx.static_shape(0)[2] != 4 or ctx.static_shape(1) != (batch, classes, boxes):
        raise ctx.invalid("boxes must be (batch, n, 4) and scores (batch, classes, n)")

    def scalar(index: int, default: float, dtype: str) -> relax.Expr:
        if not ctx.has(index):
            return ctx.const([default], dtype)
        return ctx.cast(ctx.reshape(ctx.expr(index), (1,)), dtype)

    kernel = nms_kernel(batch, classes, boxes, bool(ctx.attrs.get("center_point_box", 0)))
    rows = batch * classes * boxes
    args = [
        ctx.cast(ctx.expr(0), "float32"),
        ctx.cast(ctx.expr(1), "float32"),
        scalar(2, 0, "int64"),
        scalar(3, 0.0, "float32"),
        scalar(4, float(np.finfo(np.float32).min), "float32"),
    ]
    kept, count = call_kernel(
        ctx, kernel, args, [[rows, 3], [1]], ["int64", "int64"], "non_max_suppression"
    )
    found = ctx.settled(Dynamic(count), sizes=True)[0]

    def first(local: list[Any], a: te.Tensor) -> te.Tensor:
        return te.compute((local[0], 3), lambda i, j: a(i, j), name="kept")

    return ctx.te_dims(first, [kept], [found], "kept")


@converter("GridSample")
def grid_sample(ctx: NodeContext) -> relax.Expr:
    """Sampling of a 4-D tensor at normalised coordinates."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        ctx.attrs.get("mode", "linear"), ctx.attrs.get("mode", "linear")
    )
    if ctx.rank(0) != 4 or mode not in ("linear", "nearest"):
        raise Unsupported(f"mode {mode!r} over {ctx.rank(0) - 2} axes")
    padding = ctx.attrs.get("padding_mode", "zeros")
    align = bool(ctx.attrs.get("align_corners", 0))
    batch, channels, rows, columns = ctx.static_shape(0)
    n, out_rows, out_columns, two = ctx.static_shape(1)
    if n != batch or two != 2:
        raise ctx.invalid("grid must have shape (batch, rows, columns, 2)")
    dtype = ctx.dtype(0)

    def place(value: Any, extent: int) -> Any:
        """Pixel coordinate of a normalised one, folded back where the mode says so."""

        def c(number: float) -> Any:
            return tirx.const(number, dtype)

        at = (value + c(1)) * c((extent - 1) / 2 if align else extent / 2)
        at = at if align else at - c(0.5)
        if padding == "border":
            at = tirx.max(tirx.min(at, c(extent - 1)), c(0))
        if padding == "reflection":
            low, span = (0.0, extent - 1.0) if align else (-0.5, float(extent))
            if span <= 0:
                return c(0)
            away = tirx.abs(at - c(low))
            turns = tirx.floor(away / c(span))
            rest = away - turns * c(span)
            odd = turns - c(2) * tirx.floor(turns / c(2))
            at = tirx.Select(odd > c(0.5), c(span) - rest, rest) + c(low)
            at = tirx.max(tirx.min(at, c(extent - 1)), c(0))
        return at

    def compute(x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        def pixel(b: Any, c: Any, y: Any, z: Any) -> Any:
            ok = tirx.all(y >= 0, y < rows, z >= 0, z < columns)
            near = [tirx.max(tirx.min(y, rows - 1), 0), tirx.max(tirx.min(z, columns - 1), 0)]
            value = x(b, c, *near)
            return tirx.Select(ok, value, tirx.const(0, dtype)) if padding == "zeros" else value

        def at(b: Any, c: Any, i: Any, j: Any) -> Any:
            z, y = place(grid(b, i, j, 0), columns), place(grid(b, i, j, 1), rows)
            if mode == "nearest":
                whole = [tirx.nearbyint(v).astype("int64") for v in (y, z)]
                return pixel(b, c, *whole)
            top, left = tirx.floor(y), tirx.floor(z)
            dy, dz = y - top, z - left
            p, q = top.astype("int64"), left.astype("int64")
            one = tirx.const(1, dtype)
            upper = pixel(b, c, p, q) * (one - dz) + pixel(b, c, p, q + 1) * dz
            lower = pixel(b, c, p + 1, q) * (one - dz) + pixel(b, c, p + 1, q + 1) * dz
            return upper * (one - dy) + lower * dy

        return te.compute((batch, channels, out_rows, out_columns), at, name="grid_sample")

    return ctx.te(compute, ctx.expr(0), ctx.cast(ctx.expr(1), dtype), name="grid_sample")
