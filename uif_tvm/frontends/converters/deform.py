"""DeformConv."""

from __future__ import annotations

import math

from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.conv import spatial, window_pads
from uif_tvm.frontends.converters.registry import converter


@converter("DeformConv", since=19)
def deform_conv(ctx: NodeContext) -> relax.Expr:
    """Convolution whose taps lie at their place plus an offset, weighted by a mask."""
    batch, channels, *extents = ctx.static_shape(0)
    filters, per_group, *kernel = ctx.static_shape(1)
    rank = len(extents)
    groups = int(ctx.attrs.get("group", 1))
    offset_groups = int(ctx.attrs.get("offset_group", 1))
    strides, dilations = spatial(ctx, "strides", rank, 1), spatial(ctx, "dilations", rank, 1)
    before, after = window_pads(ctx, tuple(extents), kernel, strides, dilations)
    out = [
        (n + lo + hi - (k - 1) * d - 1) // s + 1
        for n, lo, hi, k, d, s in zip(
            extents, before, after, kernel, dilations, strides, strict=True
        )
    ]
    taps = math.prod(kernel)
    if min(groups, offset_groups) < 1 or channels % offset_groups or filters % groups:
        raise ctx.invalid(f"{groups} groups and {offset_groups} of offsets do not divide channels")
    if per_group * groups != channels or 0 in extents:
        raise ctx.invalid(f"{channels} channels in {groups} groups of {per_group}")
    if ctx.static_shape(2) != (batch, offset_groups * taps * rank, *out):
        raise ctx.invalid(f"offset has shape {list(ctx.static_shape(2))}, output {out}")
    if ctx.has(4) and ctx.static_shape(4) != (batch, offset_groups * taps, *out):
        raise ctx.invalid(f"mask has shape {list(ctx.static_shape(4))}, output {out}")
    return ctx.op(  # type: ignore[no-any-return]
        "deform_conv",
        *[ctx.expr(index) if ctx.has(index) else None for index in range(5)],
        strides=tuple(strides),
        padding=(*ctx.static(before), *ctx.static(after)),
        dilation=tuple(dilations),
        groups=groups,
        offset_groups=offset_groups,
    )
