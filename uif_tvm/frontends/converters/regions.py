"""Operators on regions by known geometry: MaxRoiPool, AffineGrid."""

from __future__ import annotations

from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.ops.sampling import grid_points


@converter("MaxRoiPool")
def max_roi_pool(ctx: NodeContext) -> relax.Expr:
    """Maximum over each cell of each region; cells without a pixel are zero.

    Regions are rows (batch, x1, y1, x2, y2), scaled and rounded to whole pixels, ends included.
    """
    cells = [int(v) for v in ctx.attrs["pooled_shape"]]
    if len(cells) != 2 or min(cells) < 1:
        raise ctx.invalid(f"pooled_shape {cells} is no pair of positive numbers")
    if ctx.rank(0) != 4 or ctx.rank(1) != 2 or ctx.shape(1)[1] != 5:
        raise ctx.invalid("X must have shape (n, c, h, w), and rois (regions, 5)")
    if 0 in ctx.static_shape(0):
        raise ctx.invalid("X has no elements to pool")
    dtype = ctx.dtype(0)
    image, regions = (ctx.cast(ctx.expr(i), "float32") for i in (0, 1))
    scale = float(ctx.attrs.get("spatial_scale", 1.0))
    pooled = relax.op.vision.roi_pool(image, regions, (cells[0], cells[1]), scale)
    return ctx.cast(ctx.emit(pooled), dtype)


@converter("AffineGrid", since=20)
def affine_grid(ctx: NodeContext) -> relax.Expr:
    """``grid[n, i, j] = theta[n] @ (x_j, y_i, 1)``, with a z in front of the 1 for volumes.

    ONNX's own function body drops the batch axis when it is 1, so it is not used.
    """
    size = [int(v) for v in ctx.known(1, "size").reshape(-1)]
    spatial = size[2:]
    rank = len(spatial)
    if rank not in (2, 3) or min(size) < 1:
        raise ctx.invalid(f"size {size} is neither N, C, H, W nor N, C, D, H, W")
    if tuple(ctx.shape(0)) != (size[0], rank, rank + 1):
        raise ctx.invalid(f"theta must have shape {[size[0], rank, rank + 1]}")
    dtype = ctx.dtype(0)
    inner = "float64" if dtype == "float64" else "float32"
    points = ctx.const(grid_points(spatial, bool(ctx.attrs.get("align_corners", 0))), inner)
    theta = ctx.cast(ctx.expr(0), inner)
    moved = ctx.emit(relax.op.matmul(points, ctx.emit(relax.op.permute_dims(theta, [0, 2, 1]))))
    return ctx.cast(ctx.reshape(moved, [size[0], *spatial, rank]), dtype)
