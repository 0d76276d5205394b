"""GroupQueryAttention: what decoders exported for generation are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.microsoft_attention import (
    attend,
    heads_first,
    heads_joined,
    rotate,
)
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Dim, shape_of, simplify


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(ctx: NodeContext) -> list[Any]:
    """Causal attention over past and new keys, each sample with a past of its own length."""
    heads, key_heads = int(ctx.attrs["num_heads"]), int(ctx.attrs["kv_num_heads"])
    if any(ctx.has(place) for place in (9, 10, 11)) or ctx.wants(3):
        raise Unsupported("explicit positions, biases or sinks in GroupQueryAttention")
    if int(ctx.attrs.get("smooth_softmax", 0)) > 0 or not ctx.has(3):
        raise Unsupported("a smooth softmax, or no past")
    query, key, value = _split(ctx, heads, key_heads)
    ends = ctx.cast(ctx.reshape(ctx.expr(5), [shape_of(query)[0]]), "int64")
    new, past = shape_of(query)[2], ctx.shape(3)[2]
    last = ctx.const(ctx.static([new])[0] - 1, "int64")
    # A padded prompt, whose sequences are shorter than it, starts at 0 all the same.
    nothing = ctx.const(0, "int64")
    start = ctx.emit(relax.op.maximum(ctx.emit(relax.op.subtract(ends, last)), nothing))
    if ctx.attrs.get("do_rotary", 0):
        places = _positions(ctx, start, new)
        turn = bool(ctx.attrs.get("rotary_interleaved", 0))
        query, key = (rotate(ctx, x, places, ctx.expr(7), ctx.expr(8), turn) for x in (query, key))
    span = simplify(past + new)
    key = _appended(ctx, ctx.expr(3), key, start, span)
    value = _appended(ctx, ctx.expr(4), value, start, span)
    window = int(ctx.attrs.get("local_window_size", -1))
    seen = _seen(ctx, start, new, span, window)
    cap = float(ctx.attrs.get("softcap", 0.0))
    y = attend(ctx, query, key, value, [seen], ctx.attrs.get("scale"), cap)
    return [heads_joined(ctx, y), key, value]


def _split(ctx: NodeContext, heads: int, key_heads: int) -> tuple[Any, Any, Any]:
    if ctx.has(1):
        return (
            heads_first(ctx, ctx.expr(0), heads),
            heads_first(ctx, ctx.expr(1), key_heads),
            heads_first(ctx, ctx.expr(2), key_heads),
        )
    size = ctx.static([ctx.shape(0)[2]])[0] // (heads + 2 * key_heads)
    cuts = [heads * size, (heads + key_heads) * size]
    parts = ctx.emit(relax.op.split(ctx.expr(0), cuts, 2))
    items = [ctx.emit(relax.TupleGetItem(parts, place)) for place in range(3)]
    return tuple(  # type: ignore[return-value]
        heads_first(ctx, item, n)
        for item, n in zip(items, (heads, key_heads, key_heads), strict=True)
    )


def _positions(ctx: NodeContext, start: relax.Expr, new: Dim) -> relax.Expr:
    def compute(local: list[Any], first: te.Tensor) -> te.Tensor:
        return te.compute((first.shape[0], local[0]), lambda b, t: first(b) + t, name="positions")

    return ctx.te_dims(compute, [start], [new], "positions")


def _appended(
    ctx: NodeContext, past: relax.Expr, new: relax.Expr, start: relax.Expr, span: Dim
) -> relax.Expr:
    """Past states with the new ones from each sample's start on; what lies beyond is 0."""
    if shape_of(past)[2] == 0:
        return new

    def compute(local: list[Any], old: te.Tensor, fresh: te.Tensor, first: te.Tensor) -> te.Tensor:
        length, added = old.shape[2], fresh.shape[2]

        def at(b: Any, h: Any, t: Any, d: Any) -> Any:
            place = t - first(b)
            is_new = tirx.all(place >= 0, place < added)
            is_old = tirx.all(place < 0, t < length)
            nothing = tirx.const(0, str(old.dtype))
            kept = tirx.if_then_else(is_old, old(b, h, tirx.min(t, length - 1), d), nothing)
            return tirx.if_then_else(is_new, fresh(b, h, place, d), kept)

        shape = (fresh.shape[0], fresh.shape[1], local[0], fresh.shape[3])
        return te.compute(shape, at, name="append")

    return ctx.te_dims(compute, [past, new, start], [span], "append")


def _seen(ctx: NodeContext, start: relax.Expr, new: Dim, span: Dim, window: int) -> relax.Expr:
    """Additive mask: queries see keys up to their own position, within the window if any."""

    def compute(local: list[Any], first: te.Tensor) -> te.Tensor:
        def at(b: Any, _h: Any, i: Any, j: Any) -> Any:
            place = first(b) + i
            hidden = j > place
            if window > 0:
                hidden = tirx.any(hidden, j <= place - window)
            low = tirx.const(float(np.finfo(np.float32).min), "float32")
            return tirx.Select(hidden, low, tirx.const(0, "float32"))

        return te.compute((first.shape[0], 1, local[0], local[1]), at, name="seen")

    return ctx.te_dims(compute, [start], [new, span], "seen")
