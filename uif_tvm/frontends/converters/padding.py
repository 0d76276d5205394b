"""Pad in all its modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.converters.slicing import cut
from uif_tvm.frontends.onnx.values import Dim, shape_of, simplify


@converter("Pad", since=2)
def pad(ctx: NodeContext) -> Any:
    """Grow, or cut where pads are negative, on both sides of each axis."""
    rank = ctx.rank(0)
    before, after = _amounts(ctx, rank)
    mode = ctx.attrs.get("mode", "constant")
    fill = ctx.const(ctx.attrs.get("value", 0.0), ctx.dtype(0)) if ctx.version < 11 else None
    if ctx.version >= 11:
        fill = ctx.reshape(ctx.expr(2), ()) if ctx.has(2) else ctx.const(0, ctx.dtype(0))
    x = ctx.expr(0)
    dims = shape_of(x)
    ranges = {
        axis: (
            max(-lo, 0) if isinstance(lo, int) else 0,
            simplify(dims[axis] - (max(-hi, 0) if isinstance(hi, int) else 0)),
            1,
        )
        for axis, (lo, hi) in enumerate(zip(before, after, strict=True))
        if (isinstance(lo, int) and lo < 0) or (isinstance(hi, int) and hi < 0)
    }
    if ranges:
        x = ctx.as_expr(cut(ctx, x, ranges)) if mode == "constant" else x
        if mode != "constant":
            raise Unsupported(f"negative pads in mode {mode}")
    low = [max(v, 0) if isinstance(v, int) else v for v in before]
    high = [max(v, 0) if isinstance(v, int) else v for v in after]
    if all(isinstance(v, int) and v == 0 for v in [*low, *high]):
        return x
    return emit_pad(ctx, x, low, high, mode, fill)


def emit_pad(
    ctx: NodeContext,
    x: relax.Expr,
    low: list[Dim],
    high: list[Dim],
    mode: str,
    fill: relax.Expr | None,
) -> relax.Expr:
    """Non-negative padding as one kernel."""
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ctx.invalid(f"mode {mode!r} does not exist")
    if mode == "reflect":
        for dim, amount in [
            *zip(shape_of(x), low, strict=True),
            *zip(shape_of(x), high, strict=True),
        ]:
            if isinstance(dim, int) and isinstance(amount, int) and amount and dim < 2:
                raise ctx.invalid(f"reflect padding of a dimension of {dim}")
    fills = [fill] if mode == "constant" and fill is not None else []

    def compute(local: list[Any], a: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        before, after = local[: len(low)], local[len(low) :]
        shape = [d + lo + hi for d, lo, hi in zip(a.shape, before, after, strict=True)]

        def at(*index: Any) -> Any:
            inside, source = [], []
            for i, d, lo, hi in zip(index, a.shape, before, after, strict=True):
                if isinstance(lo, int) and isinstance(hi, int) and lo == hi == 0:
                    source.append(i)
                    continue
                place = i - lo
                if mode == "constant":
                    inside += [place >= 0, place < d]
                source.append(_source(place, d, mode))
            if mode == "constant" and inside:
                return tirx.if_then_else(tirx.all(*inside), a(*source), rest[0]())
            return a(*source)

        return te.compute(shape, at, name="pad")

    return ctx.te_dims(compute, [x, *fills], [*low, *high], "pad")


def _source(place: Any, extent: Any, mode: str) -> Any:
    """Which element of an axis stands at a place outside or inside of it."""
    if mode == "edge":
        return tirx.max(tirx.min(place, extent - 1), 0)
    if mode == "wrap":
        return tirx.floormod(place, extent)
    if mode == "reflect":
        period = 2 * (extent - 1)
        folded = tirx.floormod(place, tirx.max(period, 1))
        return tirx.min(folded, period - folded)
    return place


def _amounts(ctx: NodeContext, rank: int) -> tuple[list[Dim], list[Dim]]:
    if ctx.version < 11:
        pads: list[Dim] = list(ctx.attrs.get("pads", ctx.attrs.get("paddings", [])))
        axes = list(range(rank))
    else:
        pads = ctx.dims(1)
        axes = list(range(rank))
        if ctx.has(3):
            axes = [ctx.axis(int(a), rank) for a in np.ravel(ctx.known(3, "axes"))]
    if len(pads) != 2 * len(axes):
        raise ctx.invalid(f"{len(pads)} pads for {len(axes)} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for number, axis in enumerate(axes):
        before[axis], after[axis] = pads[number], pads[number + len(axes)]
    return before, after
