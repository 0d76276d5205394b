"""GridSample over any number of spatial axes."""

from __future__ import annotations

from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of before version 20."""
PADDINGS = ("zeros", "border", "reflection")


@converter("GridSample", since=16)
def grid_sample(ctx: NodeContext) -> relax.Expr:
    """X sampled at normalised coordinates: x over the last axis first, then y, then z."""
    given = ctx.attrs.get("mode", "linear")
    mode = MODES.get(given, given)
    padding = ctx.attrs.get("padding_mode", "zeros")
    align = bool(ctx.attrs.get("align_corners", 0))
    batch, _, *extents = ctx.static_shape(0)
    n, *out, parts = ctx.static_shape(1)
    if n != batch or parts != len(extents) or len(out) != len(extents):
        raise ctx.invalid(f"a grid of shape {[n, *out, parts]} for {len(extents)} spatial axes")
    if mode not in ("linear", "nearest", "cubic") or padding not in PADDINGS:
        raise ctx.invalid(f"mode {mode!r} with padding_mode {padding!r}")
    dtype = ctx.dtype(0)
    if mode != "nearest" and "float" not in dtype:
        raise Unsupported(f"{mode} interpolation of {dtype}")
    if 0 in extents:
        raise ctx.invalid("X has no elements to sample")
    return ctx.op(  # type: ignore[no-any-return]
        "grid_sample",
        ctx.expr(0),
        ctx.expr(1),
        mode=mode,
        padding_mode=padding,
        align_corners=align,
    )
