"""Steps that add norms, softmax, activations and attention, as operators and spelled out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.fuzz.graphs.evaluate import Refused
from tests.fuzz.graphs.maker import Maker, Value
from tests.fuzz.graphs.steps_conv import batch_norm
from tests.fuzz.graphs.steps_linear import linear


def _scalar(maker: Maker, number: float, like: Value) -> Value:
    return maker.weight(number, like.dtype)


def softmax(maker: Maker) -> None:
    """Softmax or LogSoftmax over any axis, or spelled out."""
    value = maker.pick_float(lambda v: v.rank >= 1 and v.array.size > 0)
    axis = maker.rng.randrange(-value.rank, value.rank) if maker.chance(0.5) else -1
    kind = maker.rng.choice(("Softmax", "Softmax", "LogSoftmax", "spelled", "unshifted"))
    if kind in ("Softmax", "LogSoftmax"):
        maker.node(kind, [value], axis=axis)
        return
    axes = maker.ints(axis)
    if kind == "spelled":
        top = maker.node("ReduceMax", [value, axes], keepdims=1)
        value = maker.node("Sub", [value, top])
    elif value.high > 4:
        raise Refused("overflows")
    exponents = maker.node("Exp", [value])
    maker.node("Div", [exponents, maker.node("ReduceSum", [exponents, axes], keepdims=1)])


def spelled_activation(maker: Maker) -> None:
    """Gelu, Silu, HardSwish, Mish and friends from simpler nodes."""
    value = maker.pick_float(lambda v: v.high < 30 and v.low > -30)
    kind = maker.rng.choice(("erf", "erf2", "tanh", "silu", "hardswish", "mish", "relu6", "quick"))
    half, one = _scalar(maker, 0.5, value), _scalar(maker, 1.0, value)
    if kind in ("erf", "erf2"):
        root = _scalar(maker, math.sqrt(2), value)
        inner = maker.node("Add", [maker.node("Erf", [maker.node("Div", [value, root])]), one])
        if kind == "erf":
            maker.node("Mul", [maker.node("Mul", [value, inner]), half])
        else:
            maker.node("Mul", [maker.node("Mul", [value, half]), inner])
    elif kind == "tanh":
        cube = maker.node("Pow", [value, _scalar(maker, 3.0, value)])
        cube = maker.node("Mul", [cube, _scalar(maker, 0.044715, value)])
        inner = maker.node("Add", [value, cube])
        inner = maker.node("Mul", [inner, _scalar(maker, math.sqrt(2 / math.pi), value)])
        inner = maker.node("Add", [maker.node("Tanh", [inner]), one])
        maker.node("Mul", [maker.node("Mul", [half, value]), inner])
    elif kind in ("silu", "quick"):
        inner = value
        if kind == "quick":
            inner = maker.node("Mul", [value, _scalar(maker, 1.702, value)])
        gate = maker.node("Sigmoid", [inner])
        maker.node("Mul", [gate, value] if maker.chance(0.5) else [value, gate])
    elif kind == "hardswish":
        inner = maker.node("Add", [value, _scalar(maker, 3.0, value)])
        inner = maker.node("Clip", [inner, _scalar(maker, 0.0, value), _scalar(maker, 6.0, value)])
        product = maker.node("Mul", [value, inner])
        if maker.chance(0.5):
            maker.node("Div", [product, _scalar(maker, 6.0, value)])
        else:
            maker.node("Mul", [product, _scalar(maker, 1 / 6, value)])
    elif kind == "mish":
        maker.node("Mul", [value, maker.node("Tanh", [maker.node("Softplus", [value])])])
    else:
        maker.node("Clip", [value, _scalar(maker, 0.0, value), _scalar(maker, 6.0, value)])


def norm(maker: Maker) -> None:
    """Layer, RMS, instance, group, batch or L2 normalisation as one operator."""
    kind = maker.rng.choice(("layer", "layer", "rms", "instance", "group", "batch", "lp"))
    if kind in ("layer", "rms"):
        value = maker.pick_float(lambda v: v.rank >= 2 and v.array.size > 0 and v.shape[-1] > 1)
        axis = -1 if maker.chance(0.7) else maker.rng.randrange(1, value.rank)
        shape = value.shape[axis:]
        operands = [value, maker.random(shape, value.dtype)]
        if kind == "layer" and maker.chance(0.7):
            operands.append(maker.random(shape, value.dtype))
        op = "LayerNormalization" if kind == "layer" else "RMSNormalization"
        maker.node(op, operands, axis=axis, epsilon=1e-3)
        return
    if kind == "lp":
        value = maker.pick(lambda v: v.dtype == "float32" and v.rank >= 1 and v.nearest_zero > 0)
        maker.node("LpNormalization", [value], axis=maker.rng.randrange(value.rank))
        return
    value = maker.pick_float(lambda v: v.rank in (3, 4) and v.array.size > 0)
    channels = value.shape[1]
    if kind == "batch":
        batch_norm(maker, value)
        return
    if math.prod(value.shape[2:]) < 2:
        raise Refused("nothing to normalise")
    gamma, beta = (maker.random((channels,), value.dtype) for _ in range(2))
    if kind == "instance":
        maker.node("InstanceNormalization", [value, gamma, beta], epsilon=1e-3)
    else:
        groups = maker.rng.choice([d for d in (1, 2, 3, 4) if channels % d == 0])
        maker.node("GroupNormalization", [value, gamma, beta], epsilon=1e-3, num_groups=groups)


def spelled_norm(maker: Maker) -> None:
    """Layer or RMS normalisation from simpler nodes, in the spellings that exporters use."""
    value = maker.pick_float(lambda v: v.rank >= 2 and v.array.size > 0 and v.shape[-1] > 1)
    axis = -1 if maker.chance(0.8) else maker.rng.randrange(1, value.rank)
    axes, centred = maker.ints(axis), value
    if maker.chance(0.6):
        centred = maker.node("Sub", [value, maker.node("ReduceMean", [value, axes], keepdims=1)])
    if maker.chance(0.5):
        square = maker.node("Pow", [centred, _scalar(maker, 2.0, value)])
    else:
        square = maker.node("Mul", [centred, centred])
    variance = maker.node("ReduceMean", [square, axes], keepdims=1)
    shifted = maker.node("Add", [variance, _scalar(maker, 1e-3, value)])
    kind = maker.rng.randrange(3)
    root = maker.node("Sqrt", [shifted])
    if kind == 0:
        result = maker.node("Div", [centred, root])
    elif kind == 1:
        result = maker.node("Mul", [centred, maker.node("Reciprocal", [root])])
    else:
        inverse = maker.node("Div", [_scalar(maker, 1.0, value), root])
        result = maker.node("Mul", [inverse, centred])
    if maker.chance(0.8):
        gamma = maker.random((value.shape[-1],), value.dtype)
        result = maker.node("Mul", [gamma, result] if maker.chance(0.5) else [result, gamma])
        if maker.chance(0.6):
            maker.node("Add", [result, maker.random((value.shape[-1],), value.dtype)])


def _mask(maker: Maker, rows: int, columns: int, dtype: str) -> Value:
    low = maker.rng.choice((-np.inf, -1e4))
    mask = np.triu(np.full((rows, columns), low), 1)
    if maker.chance(0.3):
        mask = np.random.default_rng(maker.rng.randrange(99)).standard_normal((rows, columns))
    return maker.weight(mask, dtype)


def attention(maker: Maker) -> None:
    """Self-attention from (batch, length, width), spelled out or by the operator."""
    value = maker.pick_float(
        lambda v: v.rank == 3 and v.array.size > 0 and v.shape[1] <= 40 and v.shape[2] <= 48
    )
    batch, _length, _ = value.shape
    heads, depth = maker.rng.choice((1, 2, 3, 4)), maker.rng.choice((2, 4, 5, 8, 16))
    source = value
    if maker.chance(0.2):
        source = maker.pick(
            lambda v: (
                v.rank == 3 and v.dtype == value.dtype and v.shape[0] == batch and v.array.size > 0
            )
        )
    width = heads * depth
    query = linear(maker, value, width, maker.chance(0.6))
    key, content = (linear(maker, source, width, maker.chance(0.6)) for _ in range(2))
    if maker.chance(0.25) and value.dtype == "float32":
        mixed = maker.node(
            "Attention",
            [query, key, content],
            q_num_heads=heads,
            kv_num_heads=heads,
            is_causal=int(maker.chance(0.3)),
        )
    else:
        mixed = _spelled(maker, (query, key, content), heads, depth)
    if maker.chance(0.7):
        out = linear(maker, mixed, value.shape[2])
        maker.node("Add", [out, value])


def _heads(maker: Maker, value: Value, heads: int, depth: int, order: list[int]) -> Value:
    first = 0 if maker.chance(0.5) else value.shape[0]
    shape = maker.ints(first, value.shape[1], heads, depth)
    split = maker.node("Reshape", [value, shape], value.dtype)
    result: Value = maker.node("Transpose", [split], value.dtype, perm=order)
    return result


def _spelled(maker: Maker, parts: tuple[Value, Value, Value], heads: int, depth: int) -> Value:
    query = _heads(maker, parts[0], heads, depth, [0, 2, 1, 3])
    content = _heads(maker, parts[2], heads, depth, [0, 2, 1, 3])
    rope = maker.chance(0.3) and depth % 2 == 0
    if maker.chance(0.5) or rope:
        key = _heads(maker, parts[1], heads, depth, [0, 2, 1, 3])
        if rope:
            query, key = rotated(maker, query), rotated(maker, key)
        key = maker.node("Transpose", [key], key.dtype, perm=[0, 1, 3, 2])
    else:
        key = _heads(maker, parts[1], heads, depth, [0, 2, 3, 1])
    scale = _scalar(maker, 1 / math.sqrt(depth), query)
    early = maker.chance(0.3)
    if early:
        query = maker.node("Mul", [query, scale])
    scores = maker.node("MatMul", [query, key])
    if not early:
        if maker.chance(0.5):
            scores = maker.node("Mul", [scores, scale])
        else:
            scores = maker.node("Div", [scores, _scalar(maker, math.sqrt(depth), query)])
    if maker.chance(0.4):
        rows, columns = scores.shape[2:]
        special, maker.special = maker.special, True  # minus infinity is what masks hold
        try:
            scores = maker.node("Add", [scores, _mask(maker, rows, columns, scores.dtype)])
        finally:
            maker.special = special
        maker.offered.remove(scores)
    weights = maker.node("Softmax", [scores], axis=-1)
    mixed = maker.node("MatMul", [weights, content])
    back = maker.node("Transpose", [mixed], mixed.dtype, perm=[0, 2, 1, 3])
    shape = maker.ints(0, 0, heads * depth)
    result: Value = maker.node("Reshape", [back, shape], back.dtype)
    return result


def rotated(maker: Maker, value: Value) -> Value:
    """Rotary positions of (..., length, depth): halves or neighbours turned."""
    length, depth = value.shape[-2:]
    if depth % 2:
        raise Refused("odd depth")
    half = depth // 2
    angle = np.outer(np.arange(length), 1.0 / 100 ** (np.arange(half) / half))
    table = np.concatenate([angle, angle], -1)
    cosine, sine = (maker.weight(f(table), value.dtype) for f in (np.cos, np.sin))
    axis = maker.ints(-1)
    first = maker.node("Slice", [value, maker.ints(0), maker.ints(half), axis], value.dtype)
    second = maker.node("Slice", [value, maker.ints(half), maker.ints(1 << 40), axis], value.dtype)
    turned = maker.node(
        "Concat", [maker.node("Neg", [second]), first], value.dtype, axis=value.rank - 1
    )
    result: Value = maker.node(
        "Add", [maker.node("Mul", [value, cosine]), maker.node("Mul", [turned, sine])]
    )
    return result


def rope(maker: Maker) -> None:
    """Rotary positions, spelled out or as the operator."""
    value = maker.pick_float(
        lambda v: v.rank in (3, 4) and v.array.size > 0 and v.shape[-1] % 2 == 0 and v.shape[-1]
    )
    if value.rank == 4 and value.dtype == "float32" and maker.chance(0.4):
        length, half = value.shape[2], value.shape[3] // 2
        angle = np.outer(np.arange(length), 1.0 / 100 ** (np.arange(half) / half))
        caches = [
            maker.weight(np.broadcast_to(f(angle), (value.shape[0], *angle.shape)), "float32")
            for f in (np.cos, np.sin)
        ]
        attrs: dict[str, Any] = {"interleaved": maker.rng.randrange(2)}
        maker.node("RotaryEmbedding", [value, *caches], **attrs)
        return
    rotated(maker, value)
