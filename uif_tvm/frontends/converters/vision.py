"""Operators on regions and boxes: RoiAlign, NonMaxSuppression."""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dynamic


@converter("RoiAlign", since=10)
def roi_align(ctx: NodeContext) -> relax.Expr:
    """Mean or maximum over bilinear samples of each cell of each region."""
    cells = (int(ctx.attrs.get("output_height", 1)), int(ctx.attrs.get("output_width", 1)))
    ratio = max(int(ctx.attrs.get("sampling_ratio", 0)), 0)
    default = "half_pixel" if ctx.version >= 16 else "output_half_pixel"
    half_pixel = ctx.attrs.get("coordinate_transformation_mode", default) == "half_pixel"
    batch, _, rows, columns = ctx.static_shape(0)
    regions = ctx.shape(1)[0]
    if ctx.shape(1)[1:] != (4,) or len(ctx.shape(2)) != 1:
        raise ctx.invalid("rois must have shape (n, 4), and batch_indices (n,)")
    if min(cells) < 1 or 0 in (batch, rows, columns):
        raise ctx.invalid(f"cells {list(cells)} of an image {list(ctx.static_shape(0))}")
    ctx.require_equal(regions, ctx.shape(2)[0])
    index = ctx.with_shape(ctx.cast(ctx.expr(2), "int64"), [regions])
    return ctx.op(  # type: ignore[no-any-return]
        "roi_align",
        ctx.expr(0),
        ctx.expr(1),
        index,
        output_size=cells,
        spatial_scale=float(ctx.attrs.get("spatial_scale", 1.0)),
        sampling_ratio=ratio,
        half_pixel=half_pixel,
        average=ctx.attrs.get("mode", "avg") == "avg",
    )


@converter("NonMaxSuppression")
def non_max_suppression(ctx: NodeContext) -> relax.Expr:
    """Kept (batch, class, box) rows; how many is known at run time only."""
    batch, boxes, _ = ctx.static_shape(0)
    classes = ctx.static_shape(1)[1]
    if ctx.static_shape(0)[2] != 4 or ctx.static_shape(1) != (batch, classes, boxes):
        raise ctx.invalid("boxes must be (batch, n, 4) and scores (batch, classes, n)")

    limits = [ctx.expr(index) if ctx.has(index) else None for index in range(2, 5)]
    kept, count = ctx.op(
        "non_max_suppression_padded",
        ctx.cast(ctx.expr(0), "float32"),
        ctx.cast(ctx.expr(1), "float32"),
        *limits,
        centred=bool(ctx.attrs.get("center_point_box", 0)),
    )
    found = ctx.settled(Dynamic(count), sizes=True)[0]

    def first(local: list[Any], a: te.Tensor) -> te.Tensor:
        return te.compute((local[0], 3), lambda i, j: a(i, j), name="kept")

    return ctx.te_dims(first, [kept], [found], "kept")
