"""Attention, rotary positions, caches of keys and values, and recurrent (linear) attention.

Tensors are ``[batch, heads, positions, features]``; sums and softmax of 16-bit floats are kept in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.linear import WIDE, array, exactly, normal
from uif_tvm.ops.spec import (
    ALL,
    LOOSE,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder


def visible(
    queries: int, keys: int, causal: bool, offset: int, before: int, after: int
) -> Array | None:
    """Which keys each query may see by its position, ``None`` if all.

    Query ``i`` stands at ``i + offset``; ``causal`` hides what comes later, ``before`` and
    ``after`` bound the distance to either side where they are not negative.
    """
    distance = np.arange(queries)[:, None] + offset - np.arange(keys)[None]
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= distance >= 0
    if before >= 0:
        seen &= distance <= before
    if after >= 0:
        seen &= -distance <= after
    return None if seen.all() else seen


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    scale: float,
    causal: bool,
    offset: int,
    softcap: float,
    before: int,
    after: int,
) -> Array:
    """softmax(query key^T scale + mask) value; a query that sees no key gives zeros.

    Heads of keys and values serve ``query heads / key heads`` query heads each. ``softcap`` limits
    scores to c tanh(score / c). A boolean mask tells which keys are seen, any other is added.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, groups, 1), np.repeat(value, groups, 1)
    scale = scale or 1 / math.sqrt(query.shape[-1])
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    queries, keys = scores.shape[-2:]
    seen = visible(queries, keys, causal, offset, before, after)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    if not scores.shape[-1]:
        return np.zeros((*scores.shape[:-1], value.shape[-1]), value.dtype)
    peak = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = powers.sum(-1, keepdims=True)
    return np.matmul(powers / np.where(total == 0, 1, total), value)


def rope(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotate pairs of features by the angle of their position.

    The first ``2 r`` features turn, where tables are ``[batch or 1, positions, r]``; pairs are
    neighbours if ``interleaved``, else ``i`` and ``i + r``. The others pass.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    one, two = first * cos - second * sin, first * sin + second * cos
    if interleaved:
        pairs = np.stack([one, two], -1).reshape(turned.shape)
    else:
        pairs = np.concatenate([one, two], -1)
    return np.concatenate([pairs, rest], -1)


def cache_append(past: Array, new: Array) -> Array:
    """Keys or values of earlier positions, then the new ones."""
    return np.concatenate([past, new], 2)


def cache_scatter(cache: Array, update: Array, start: Array, axis: int, circular: bool) -> Array:
    """``cache`` with ``update`` written from position ``start[b]`` of its axis on.

    ``circular`` goes on at the front where the end is reached; otherwise what lies past the end
    is left out.
    """
    axis %= cache.ndim
    result, size = np.moveaxis(cache.copy(), axis, 1), cache.shape[axis]
    moved = np.moveaxis(update, axis, 1)
    for batch, first in enumerate(start):
        for step in range(moved.shape[1]):
            at = int(first) + step
            at = at % size if circular else at
            if 0 <= at < size:
                result[batch, at] = moved[batch, step]
    return np.moveaxis(result, 1, axis)


def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    state: Array | None,
    decay: Array | None,
    beta: Array | None,
    scale: float,
) -> tuple[Array, Array]:
    """Attention as a recurrence over a state ``[batch, heads, key features, value features]``.

    At each position: state *= e^decay; v = beta (v - state^T k) where ``beta`` is given;
    state += k v^T; the result is scale state^T q.
    """
    groups = query.shape[1] // key.shape[1]
    scale = scale or 1 / math.sqrt(query.shape[-1])
    batch, heads, steps, features = key.shape
    if state is None:
        state = np.zeros((batch, heads, features, value.shape[-1]), key.dtype)
    out = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)
    for t in range(steps):
        k, v = key[:, :, t], value[:, :, t]
        if decay is not None:
            state = state * np.exp(decay[:, :, t])[..., None]
        if beta is not None:
            v = beta[:, :, t] * (v - np.einsum("bhdm,bhd->bhm", state, k))
        state = state + k[..., :, None] * v[..., None, :]
        read = np.repeat(state, groups, 1)
        out[:, :, t] = scale * np.einsum("bhd,bhdm->bhm", query[:, :, t], read)
    return out, state


def _attention_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    query, key, value = types[:3]
    mask = types[3] if len(types) > 3 else None
    if {query.rank, key.rank, value.rank} != {4}:
        raise ShapeError("operands must be [batch, heads, positions, features]")
    heads, groups = query.shape[1], key.shape[1]
    if isinstance(heads, int) and isinstance(groups, int) and (not groups or heads % groups):
        raise ShapeError(f"{heads} query heads cannot share {groups} key heads")
    if mask is not None:
        infer.broadcast(mask.shape, (*query.shape[:3], key.shape[2]))
    return (TensorType((*query.shape[:3], value.shape[3]), query.dtype),)


def _attention_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    query, key, value = types[:3]
    keys = key.shape[2] if isinstance(key.shape[2], int) else 1
    features = sum(n for n in (query.shape[3], value.shape[3]) if isinstance(n, int))
    rows = elements(TensorType(query.shape[:3], query.dtype))
    return rows * keys * (2.0 * features + 15)


def _rope_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, cos, sin = types
    if x.rank != 4 or cos.rank != 3 or cos.shape != sin.shape:
        raise ShapeError(
            "x must be [batch, heads, positions, features], tables of rank 3 and alike"
        )
    features, half = x.shape[3], cos.shape[2]
    if isinstance(features, int) and isinstance(half, int) and 2 * half > features:
        raise ShapeError(f"tables for {2 * half} features, x has {features}")
    return (x,)


def _append_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    past, new = types
    shape = (*past.shape[:2], past.shape[2] + new.shape[2], *past.shape[3:])
    return (TensorType(shape, past.dtype),)


def _scatter_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    infer.axis_of(attrs["axis"], types[0].rank)
    return (types[0],)


def _linear_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    query, key, value = types[:3]
    state = (types[3] if len(types) > 3 else None) or TensorType(
        (key.shape[0], key.shape[1], key.shape[3], value.shape[3]), query.dtype
    )
    return TensorType((*query.shape[:3], value.shape[3]), query.dtype), state


def _linear_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    depth = types[0].shape[3] if isinstance(types[0].shape[3], int) else 1
    return 8.0 * elements(results[0]) * depth


def decompose_attention(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """Two matrix products around a softmax, in float32 at least."""
    query, key, value, mask = (*operands, None)[:4]
    dtype, (batch, heads, queries, depth) = b.dtype(query), b.shape(query)
    groups, keys = b.shape(key)[1:3]
    wide = WIDE.get(dtype, dtype)
    query, key, value = (_cast(b, item, wide) for item in (query, key, value))
    if infer.equal(heads, groups):
        shared = False
    elif isinstance(heads, int) and isinstance(groups, int):
        shared = True
        query = b.op("reshape", query, shape=(batch, groups, heads // groups * queries, depth))
    else:
        raise ShapeError("grouped heads over extents that are settled at run time")
    scores = b.op("matmul", query, b.op("permute_dims", key, axes=(0, 1, 3, 2)))
    if shared:
        scores = b.op("reshape", scores, shape=(batch, heads, queries, keys))
    scale = attrs["scale"] or 1 / math.sqrt(depth)
    scores = b.op("multiply", scores, b.const(scale, wide))
    if attrs["softcap"]:
        cap = b.const(attrs["softcap"], wide)
        scores = b.op("multiply", b.op("tanh", b.op("divide", scores, cap)), cap)
    scores, hidden = _masked(b, scores, mask, (queries, keys), attrs)
    weights = b.op("softmax", scores, axis=-1)
    if shared:
        weights = b.op("reshape", weights, shape=(batch, groups, heads // groups * queries, keys))
    y = b.op("matmul", weights, value)
    if shared:
        y = b.op("reshape", y, shape=(batch, heads, queries, b.shape(value)[3]))
    y = y if hidden is None else b.op("where", hidden, b.const(0, wide), y)
    return _cast(b, y, dtype)


def _cast(b: Builder, value: Any, dtype: str) -> Any:
    return value if b.dtype(value) == dtype else b.op("astype", value, dtype=dtype)


def _masked(
    b: Builder, scores: Any, mask: Any, extents: tuple[Any, Any], attrs: Attrs
) -> tuple[Any, Any]:
    """Scores with minus infinity where a key is hidden, and which queries see none.

    The latter, ``None`` if all see some, follow from the masks alone: constant ones fold. Their
    rows of the softmax are NaN.
    """
    wide = b.dtype(scores)
    low = b.const(-math.inf, wide)
    seen = _seen(extents, attrs)
    if mask is None:
        if seen is None:
            return scores, None
        scores = b.op("where", b.const(seen, "bool"), scores, low)
        blind = ~seen.any(-1, keepdims=True)
        return scores, b.const(blind, "bool") if blind.any() else None
    if b.dtype(mask) == "bool":
        if seen is not None:
            mask = b.op("logical_and", mask, b.const(seen, "bool"))
        most = b.op("max", b.op("astype", mask, dtype="int32"), axis=(-1,), keepdims=True)
        hidden = b.op("equal", most, b.const(0, "int32"))
        return b.op("where", mask, scores, low), hidden
    bias = _cast(b, mask, wide)
    if seen is not None:
        bias = b.op("where", b.const(seen, "bool"), bias, low)
    hidden = b.op("equal", b.op("max", bias, axis=(-1,), keepdims=True), low)
    return b.op("add", scores, bias), hidden


def _seen(extents: tuple[Any, Any], attrs: Attrs) -> Array | None:
    """Which keys each query may see by its position, ``None`` if all."""
    if not attrs["causal"] and max(attrs["before"], attrs["after"]) < 0:
        return None
    if not all(isinstance(extent, int) for extent in extents):
        raise ShapeError("positions over an extent that is settled at run time")
    queries, keys = extents
    sight = (attrs["causal"], attrs["offset"], attrs["before"], attrs["after"])
    return visible(queries, keys, *sight)


def decompose_append(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """A concatenation."""
    return b.op("concat", *operands, axis=2)


def _attentions() -> Iterable[Case]:
    q, k, v = normal(2, 4, 5, 8), normal(2, 4, 6, 8, seed=1), normal(2, 4, 6, 7, seed=2)
    yield Case("plain", (q, k, v, None))
    yield Case("causal", (q, k, v, None), {"causal": True})
    yield Case("causal-after-past", (q, k, v, None), {"causal": True, "offset": 1})
    boolean = np.random.default_rng(3).random((2, 1, 5, 6)) > 0.4
    boolean[0, 0, 2] = False
    yield Case("boolean-mask-hidden-row", (q, k, v, boolean))
    additive = np.where(boolean, 0, -np.inf).astype(np.float32)
    yield Case("additive-mask", (q, k, v, additive), {"scale": 0.5})
    yield Case("mask-of-keys", (q, k, v, normal(6, seed=4)), {"softcap": 3.0})
    yield Case("grouped-heads", (q, k[:, :2], v[:, :2], None), {"causal": True})
    yield Case("one-key-head", (q, k[:, :1], v[:, :1], boolean))
    yield Case("window", (q, k, v, None), {"before": 1, "after": 2})
    half = tuple(item.astype(np.float16) for item in (q, k, v))
    yield Case("float16", (*half, None))
    nan = q.copy()
    nan[0, 0, 0, 0] = np.nan
    yield Case("nan", (nan, k, v, None))
    yield Case("one-position", (q[:, :, :1], k[:, :, :1], v[:, :, :1], None), {"causal": True})


def _ropes() -> Iterable[Case]:
    angles = normal(1, 5, 4, seed=1)
    tables = np.cos(angles), np.sin(angles)
    x = normal(2, 3, 5, 8)
    yield Case("half", (x, *tables))
    yield Case("interleaved", (x, *tables), {"interleaved": True})
    yield Case("partial", (normal(2, 3, 5, 11), *tables))
    yield Case("partial-interleaved", (normal(2, 3, 5, 11), *tables), {"interleaved": True})
    each = np.concatenate([tables[0], tables[1]]), np.concatenate([tables[1], tables[0]])
    yield Case("table-per-sample", (x, *each))


def _scatters() -> Iterable[Case]:
    cache, update, start = normal(2, 3, 6, 4), normal(2, 3, 2, 4, seed=1), array("int64", [4, 0])
    yield Case("linear", (cache, update, start))
    yield Case("circular", (cache, update, array("int64", [5, 1])), {"circular": True})
    yield Case("past-the-end", (cache, update, array("int64", [5, 6])))
    yield Case(
        "first-axis", (cache, update[:, :1].repeat(3, 2), array("int64", [1, 0])), {"axis": 1}
    )


def _linears() -> Iterable[Case]:
    q, k, v = normal(2, 4, 5, 3), normal(2, 2, 5, 3, seed=1), normal(2, 2, 5, 6, seed=2)
    state, decay = normal(2, 2, 3, 6, seed=3), -np.abs(normal(2, 2, 5, 3, seed=4))
    beta = np.abs(normal(2, 2, 5, 1, seed=5))
    yield Case("linear", (q, k, v, None, None, None))
    yield Case("gated", (q, k, v, state, decay, None), {"scale": 1.0})
    yield Case("gated-per-head", (q, k, v, None, decay[..., :1].copy(), None))
    yield Case("delta", (q, k, v, state, None, beta))
    yield Case("gated-delta", (q, k, v, state, decay, beta))


_QKV = (Operand("query"), Operand("key"), Operand("value"))

SPECS = (
    OpSpec(
        "attention",
        "attention",
        exactly(attention),
        _attention_type,
        operands=(*_QKV, Operand("mask", optional=True)),
        attributes=(
            Attribute("scale", 0.0),
            Attribute("causal", False),
            Attribute("offset", 0),
            Attribute("softcap", 0.0),
            Attribute("before", -1),
            Attribute("after", -1),
        ),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_attentions,
        decompose=decompose_attention,
        flops=_attention_flops,
        source="ONNX Attention-25, PyTorch scaled_dot_product_attention",
    ),
    OpSpec(
        "rope",
        "attention",
        exactly(rope),
        _rope_type,
        operands=(Operand("x"), Operand("cos"), Operand("sin")),
        attributes=(Attribute("interleaved", False),),
        tolerance=LOOSE,
        cases=_ropes,
        flops=3,
        source="ONNX RotaryEmbedding-23",
    ),
    OpSpec(
        "cache_append",
        "attention",
        cache_append,
        _append_type,
        operands=(Operand("past"), Operand("new")),
        dtypes=ALL,
        cases=lambda: (
            Case("plain", (normal(2, 3, 4, 5), normal(2, 3, 1, 5, seed=1))),
            Case("empty-past", (normal(2, 3, 0, 5), normal(2, 3, 2, 5))),
        ),
        decompose=decompose_append,
        flops=0,
    ),
    OpSpec(
        "cache_scatter",
        "attention",
        cache_scatter,
        _scatter_type,
        operands=(Operand("cache"), Operand("update"), Operand("start")),
        attributes=(Attribute("axis", -2), Attribute("circular", False)),
        dtypes=ALL,
        cases=_scatters,
        flops=0,
        source="ONNX TensorScatter-24",
    ),
    OpSpec(
        "linear_attention",
        "attention",
        exactly(linear_attention),
        _linear_type,
        operands=(
            *_QKV,
            Operand("state", optional=True),
            Operand("decay", optional=True),
            Operand("beta", optional=True),
        ),
        attributes=(Attribute("scale", 0.0),),
        results=2,
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_linears,
        flops=_linear_flops,
        source="ONNX LinearAttention-27",
    ),
)
