"""Operators on regions and boxes: RoiAlign, NonMaxSuppression."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.kernels import call_kernel, dim
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dynamic
from uif_tvm.kernels.nms import nms_kernel
from uif_tvm.kernels.roi import roi_align_kernel


@converter("RoiAlign", since=10)
def roi_align(ctx: NodeContext) -> relax.Expr:
    """Mean or maximum over bilinear samples of each cell of each region."""
    cells = (int(ctx.attrs.get("output_height", 1)), int(ctx.attrs.get("output_width", 1)))
    ratio = max(int(ctx.attrs.get("sampling_ratio", 0)), 0)
    default = "half_pixel" if ctx.version >= 16 else "output_half_pixel"
    half_pixel = ctx.attrs.get("coordinate_transformation_mode", default) == "half_pixel"
    batch, channels, rows, columns = ctx.static_shape(0)
    regions, dtype = ctx.shape(1)[0], ctx.dtype(0)
    if ctx.shape(1)[1:] != (4,) or len(ctx.shape(2)) != 1:
        raise ctx.invalid("rois must have shape (n, 4), and batch_indices (n,)")
    if min(cells) < 1 or 0 in (batch, rows, columns):
        raise ctx.invalid(f"cells {list(cells)} of an image {list(ctx.static_shape(0))}")
    ctx.require_equal(regions, ctx.shape(2)[0])
    kernel = roi_align_kernel(
        (batch, channels, rows, columns),
        dim(regions, "regions"),
        cells,
        float(ctx.attrs.get("spatial_scale", 1.0)),
        ratio,
        half_pixel,
        ctx.attrs.get("mode", "avg") == "avg",
    )
    args = [ctx.cast(ctx.expr(i), "float32") for i in (0, 1)]
    args.append(ctx.with_shape(ctx.cast(ctx.expr(2), "int64"), [regions]))
    shape = [regions, channels, *cells]
    (y,) = call_kernel(ctx, kernel, args, [shape], ["float32"], "roi_align")
    return ctx.cast(y, dtype)


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
