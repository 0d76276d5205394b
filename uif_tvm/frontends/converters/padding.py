"""Pad in all its modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dim
from uif_tvm.kernels import movement
from uif_tvm.relax_util import constant_array


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
    if not all(isinstance(amount, int) for amount in [*before, *after]):
        if any(isinstance(amount, int) and amount < 0 for amount in [*before, *after]):
            raise Unsupported("negative pads beside pads that arrive at run time")
    elif not any(before) and not any(after):
        return x
    return emit_pad(ctx, x, before, after, mode, fill)


def emit_pad(
    ctx: NodeContext,
    x: relax.Expr,
    low: list[Dim],
    high: list[Dim],
    mode: str,
    fill: relax.Expr | None,
) -> relax.Expr:
    """Padding as one operator; amounts that are dimensions are not negative."""
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ctx.invalid(f"mode {mode!r} does not exist")
    known = constant_array(fill) if mode == "constant" and fill is not None else None
    if mode != "constant" or (known is not None and not known.any()):
        fill = None
    if all(isinstance(amount, int) for amount in [*low, *high]):
        return ctx.op("pad", x, fill, before=tuple(low), after=tuple(high), mode=mode)
    fills = [] if fill is None else [fill]

    def compute(local: list[Any], a: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        before, after = local[: len(low)], local[len(low) :]
        return movement.pad(a, rest[0] if rest else 0, before, after, mode)

    return ctx.te_dims(compute, [x, *fills], [*low, *high], "pad")


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
