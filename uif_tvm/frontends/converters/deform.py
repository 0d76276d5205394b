"""DeformConv: samples at learned offsets as columns, then one matrix product per group."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.conv import add_bias, spatial, window_pads
from uif_tvm.frontends.converters.grid import axis_taps, read_pixel
from uif_tvm.frontends.converters.linear import emit_matmul
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
    dtype = ctx.dtype(0)
    inner = "float64" if dtype == "float64" else "float32"
    places = np.array(list(np.ndindex(*kernel)), np.int64).reshape(taps, rank)
    first = places * np.array(dilations) - np.array(before)
    share = channels // offset_groups

    def compute(x: te.Tensor, offset: te.Tensor, start: te.Tensor, *mask: te.Tensor) -> te.Tensor:
        def at(b: Any, c: Any, tap: Any, *o: Any) -> Any:
            shift = tirx.floordiv(c, share) * taps + tap
            axes = []
            for axis, extent in enumerate(extents):
                whole = (start(tap, axis) + o[axis] * strides[axis]).astype(inner)
                moved = whole + offset(b, shift * rank + axis, *o).astype(inner)
                axes.append(axis_taps(moved, extent, "linear", "zeros", True))
            total: Any = None
            for chosen in itertools.product(*axes):
                part = read_pixel(x, (b, c), [p for p, _ in chosen], extents, "zeros", True)
                part = part.astype(inner)
                for _, weight in chosen:
                    part = part * weight
                total = part if total is None else total + part
            if mask:
                total = total * mask[0](b, shift, *o).astype(inner)
            return total.astype(dtype)

        return te.compute((batch, channels, taps, *out), at, name="deform_columns")

    args = [ctx.expr(0), ctx.expr(2), ctx.importer.constant(first)]
    args += [ctx.expr(4)] if ctx.has(4) else []
    columns = ctx.te(compute, *args, name="deform_columns")
    depth, pixels = per_group * taps, math.prod(out)
    columns = ctx.reshape(columns, [batch, groups, depth, pixels])
    weights = ctx.reshape(ctx.expr(1), [1, groups, filters // groups, depth])
    y = ctx.reshape(emit_matmul(ctx, weights, columns), [batch, filters, *out])
    return add_bias(ctx, y, ctx.expr(3)) if ctx.has(3) else y
