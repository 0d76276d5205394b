"""ONNX Runtime's attention operators: what its transformer optimiser and its exporters write.

All meet in :func:`attend`: heads first, past states in front of the keys, masks as additive
biases. Forms that their specifications allow and no exporter writes are declined.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.broadcast import aligned
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Dim, shape_of, simplify

MASKED = -10000.0
"""What these operators add where a mask says no, unless told otherwise."""


def heads_first(ctx: NodeContext, x: relax.Expr, heads: int) -> relax.Expr:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, hidden = shape_of(x)
    if isinstance(hidden, int) and hidden % heads:
        raise ctx.invalid(f"{heads} heads do not divide a hidden size of {hidden}")
    split = ctx.reshape(x, [batch, length, heads, simplify(hidden // heads)])
    return ctx.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def heads_joined(ctx: NodeContext, x: relax.Expr) -> relax.Expr:
    """Inverse of :func:`heads_first`."""
    batch, heads, length, size = shape_of(x)
    moved = ctx.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return ctx.reshape(moved, [batch, length, simplify(heads * size)])


def attend(
    ctx: NodeContext,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    biases: list[relax.Expr],
    scale: float | None,
    softcap: float = 0.0,
) -> relax.Expr:
    """softmax(query key^T * scale + biases) value, all of shape (batch, heads, length, size).

    Keys and values of fewer heads are shared by groups of queries.
    """
    batch, heads, length, size = shape_of(query)
    key_heads, span = shape_of(key)[1], shape_of(key)[2]
    factor = scale or 1 / math.sqrt(ctx.static([size])[0])
    dtype = str(query.ty.dtype)
    query = ctx.emit(relax.op.multiply(query, ctx.const(factor, dtype)))
    if key_heads != heads:
        shared = ctx.static([heads])[0] // ctx.static([key_heads])[0]
        key, value = (ctx.emit(relax.op.repeat(x, shared, 1)) for x in (key, value))
    turned = ctx.emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
    scores = ctx.cast(emit_matmul(ctx, query, turned), "float32")
    if softcap:
        ratio = ctx.emit(relax.op.divide(scores, ctx.const(softcap, "float32")))
        limited = ctx.emit(relax.op.tanh(ratio))
        scores = ctx.emit(relax.op.multiply(limited, ctx.const(softcap, "float32")))
    scores = ctx.with_shape(scores, [batch, heads, length, span])
    for bias in biases:
        pair = aligned(ctx, scores, ctx.cast(bias, "float32"))
        scores = ctx.emit(relax.op.add(*pair))
    weights = ctx.cast(ctx.emit(relax.op.nn.softmax(scores, -1)), dtype)
    return emit_matmul(ctx, weights, value)


def later_keys_masked(ctx: NodeContext, length: Dim, span: Dim, fill: float) -> relax.Expr:
    """Additive mask (length, span) under which a query sees no later key; queries come last."""

    def compute(dims: list[Any]) -> te.Tensor:
        rows, columns = dims
        return te.compute(
            (rows, columns),
            lambda i, j: tirx.Select(
                j > i + (columns - rows), tirx.const(fill, "float32"), tirx.const(0, "float32")
            ),
            name="causal",
        )

    return ctx.te_dims(compute, [], [length, span], "causal")


def padding_bias(ctx: NodeContext, index: int, length: Dim, span: Dim, fill: float) -> relax.Expr:
    """Additive mask of a mask input: lengths (batch,), or 0/1 of (batch, [length,] span)."""
    mask, dims = ctx.expr(index), ctx.shape(index)
    if len(dims) == 1:
        if dims[0] != shape_of_batch(ctx):
            raise Unsupported("key masks by start and end positions")

        def from_lengths(local: list[Any], ends: te.Tensor) -> te.Tensor:
            def at(b: Any, _h: Any, _i: Any, j: Any) -> Any:
                hidden = j >= ends(b).astype("int64")
                no, yes = tirx.const(fill, "float32"), tirx.const(0, "float32")
                return tirx.Select(hidden, no, yes)

            return te.compute((ends.shape[0], 1, 1, local[0]), at, name="padding")

        return ctx.te_dims(from_lengths, [mask], [span], "padding")
    if len(dims) not in (2, 3):
        raise Unsupported(f"a key mask of rank {len(dims)}")
    shape = [dims[0], 1, 1, dims[1]] if len(dims) == 2 else [dims[0], 1, dims[1], dims[2]]
    kept = ctx.cast(ctx.reshape(mask, shape), "float32")
    dropped = ctx.emit(relax.op.subtract(ctx.const(1.0, "float32"), kept))
    return ctx.emit(relax.op.multiply(dropped, ctx.const(fill, "float32")))


def shape_of_batch(ctx: NodeContext) -> Dim:
    """The batch, the first dimension of the first input."""
    return ctx.shape(0)[0]


@converter("Attention", domain=MICROSOFT)
def attention(ctx: NodeContext) -> list[Any]:
    """Self-attention with the projection of queries, keys and values in front."""
    heads = int(ctx.attrs["num_heads"])
    if ctx.has(6) or int(ctx.attrs.get("do_rotary", 0)):
        raise Unsupported("shared past buffers or rotary positions in Attention")
    sizes = [int(v) for v in ctx.attrs.get("qkv_hidden_sizes") or []]
    projected = emit_matmul(ctx, ctx.expr(0), ctx.expr(1))
    if ctx.has(2):
        projected = ctx.emit(relax.op.add(projected, ctx.expr(2)))
    hidden = ctx.static([shape_of(projected)[-1]])[0]
    sizes = sizes or [hidden // 3] * 3
    if sum(sizes) != hidden:
        raise ctx.invalid(f"qkv_hidden_sizes {sizes} for {hidden} columns")
    cuts = [sizes[0], sizes[0] + sizes[1]]
    parts = ctx.emit(relax.op.split(projected, cuts, 2))
    query, key, value = (
        heads_first(ctx, ctx.emit(relax.TupleGetItem(parts, place)), heads) for place in range(3)
    )
    present = None
    if ctx.has(4):
        key, value = (
            ctx.emit(relax.op.concat([_past(ctx, 4, side), fresh], 2))
            for side, fresh in enumerate((key, value))
        )
    if ctx.wants(1):
        present = ctx.emit(relax.op.stack([key, value], 0))
    fill = float(ctx.attrs.get("mask_filter_value", MASKED))
    length, span = shape_of(query)[2], shape_of(key)[2]
    biases = [padding_bias(ctx, 3, length, span, fill)] if ctx.has(3) else []
    if ctx.attrs.get("unidirectional", 0):
        biases.append(later_keys_masked(ctx, length, span, float(np.finfo(np.float32).min)))
    if ctx.has(5):
        biases.append(ctx.expr(5))
    y = heads_joined(ctx, attend(ctx, query, key, value, biases, ctx.attrs.get("scale")))
    return [y, present if present is not None else y]


def _past(ctx: NodeContext, index: int, side: int) -> relax.Expr:
    """Keys (0) or values (1) of a past of shape (2, batch, heads, length, size)."""
    _, *dims = ctx.shape(index)
    part = ctx.emit(relax.op.strided_slice(ctx.expr(index), [0], [side], [side + 1]))
    return ctx.reshape(part, dims)


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(ctx: NodeContext) -> list[Any]:
    """Attention over queries, keys and values that are projected already."""
    heads = int(ctx.attrs["num_heads"])
    if ctx.has(8) or ctx.has(9) or ctx.wants(3):
        raise Unsupported("shared past buffers, beams or raw scores in MultiHeadAttention")
    if ctx.rank(0) != 3 or not ctx.has(1) or not ctx.has(2):
        raise Unsupported("packed queries, keys and values")
    query, key, value = (_biased(ctx, place) for place in range(3))
    query = heads_first(ctx, query, heads)
    key, value = (x if len(shape_of(x)) == 4 else heads_first(ctx, x, heads) for x in (key, value))
    if ctx.has(6):
        key = ctx.emit(relax.op.concat([ctx.expr(6), key], 2))
        value = ctx.emit(relax.op.concat([ctx.expr(7), value], 2))
    length, span = shape_of(query)[2], shape_of(key)[2]
    fill = float(ctx.attrs.get("mask_filter_value", MASKED))
    biases = [padding_bias(ctx, 4, length, span, fill)] if ctx.has(4) else []
    if ctx.has(5):
        biases.append(ctx.expr(5))
    if ctx.attrs.get("unidirectional", 0):
        biases.append(later_keys_masked(ctx, length, span, float(np.finfo(np.float32).min)))
    y = heads_joined(ctx, attend(ctx, query, key, value, biases, ctx.attrs.get("scale")))
    return [y, key, value, y]


def _biased(ctx: NodeContext, place: int) -> relax.Expr:
    """Query, key or value plus its share of the bias."""
    x = ctx.expr(place)
    if not ctx.has(3):
        return x
    if len(shape_of(x)) != 3:
        raise Unsupported("a bias on keys that are split into heads")
    widths = [ctx.static([ctx.shape(i)[-1]])[0] for i in range(3)]
    start = sum(widths[:place])
    share = relax.op.strided_slice(ctx.expr(3), [0], [start], [start + widths[place]])
    return ctx.emit(relax.op.add(x, ctx.emit(share)))


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(ctx: NodeContext) -> relax.Expr:
    """Pairs of each head's elements turned by an angle that follows the position."""
    x, dims = ctx.expr(0), ctx.shape(0)
    half = ctx.static([ctx.shape(2)[-1]])[0]
    heads = int(ctx.attrs.get("num_heads", 0))
    turned = int(ctx.attrs.get("rotary_embedding_dim", 0)) or 2 * half
    if len(dims) == 3:
        count = heads or ctx.static([dims[2]])[0] // turned
        x = heads_first(ctx, x, count)
    factor = float(ctx.attrs.get("scale", 1.0))
    if factor != 1.0:
        raise Unsupported("scaled rotary positions")
    y = rotate(ctx, x, ctx.expr(1), ctx.expr(2), ctx.expr(3), bool(ctx.attrs.get("interleaved", 0)))
    return heads_joined(ctx, y) if len(dims) == 3 else y


def rotate(
    ctx: NodeContext,
    x: relax.Expr,
    positions: relax.Expr,
    cos: relax.Expr,
    sin: relax.Expr,
    interleaved: bool,
) -> relax.Expr:
    """(batch, heads, length, size) turned; positions are (1,) as a start, or (batch, length)."""
    half = ctx.static([shape_of(cos)[-1]])[0]
    longest = shape_of(cos)[0]
    whole = len(shape_of(positions)) == 2

    def compute(
        local: list[Any], a: te.Tensor, p: te.Tensor, c: te.Tensor, s: te.Tensor
    ) -> te.Tensor:
        def at(b: Any, h: Any, t: Any, d: Any) -> Any:
            given = (p(b, t) if whole else p(0) + t).astype("int64")
            row = tirx.max(tirx.min(given, local[0] - 1), 0)
            pair = tirx.floordiv(d, 2) if interleaved else tirx.floormod(d, half)
            first = tirx.floormod(d, 2) == 0 if interleaved else d < half
            step = 1 if interleaved else half
            other = a(b, h, t, tirx.max(tirx.Select(first, d + step, d - step), 0))
            column = tirx.min(pair, half - 1)
            signed = tirx.Select(first, -other, other)
            value = a(b, h, t, d) * c(row, column) + signed * s(row, column)
            return tirx.Select(d < 2 * half, value, a(b, h, t, d))

        return te.compute(a.shape, at, name="rotary")

    return ctx.te_dims(compute, [x, positions, cos, sin], [longest], "rotary")
