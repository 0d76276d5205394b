"""Steps that add reductions and matrix multiplications."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.fuzz.graphs.evaluate import Refused
from tests.fuzz.graphs.maker import Maker, Value

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33)


def reduction(maker: Maker) -> None:
    """A reduction over some axes, or all."""
    op = maker.rng.choice(REDUCTIONS)
    value = maker.pick_float(lambda v: v.array.size > 0)
    if op == "ReduceLogSumExp" and value.high > 30:
        raise Refused("overflows")
    keep = maker.rng.randrange(2)
    if maker.chance(0.15):
        maker.node(op, [value], keepdims=keep)
        return
    axes = [axis for axis in range(value.rank) if maker.chance(0.5)]
    if not axes:
        raise Refused("no axes")
    if op == "ReduceProd" and math.prod(value.shape[a] for a in axes) > 12:
        raise Refused("a product of too many")
    axes = [axis - value.rank if maker.chance(0.5) else axis for axis in axes]
    maker.node(op, [value, maker.ints(*axes)], keepdims=keep)


def arg_reduction(maker: Maker) -> None:
    """Index of the greatest or least of exact values."""
    value = maker.pick(
        lambda v: v.exact and v.rank >= 1 and v.array.size > 0 and v.dtype == "float32"
    )
    op = maker.rng.choice(("ArgMax", "ArgMin"))
    axis = maker.rng.randrange(-value.rank, value.rank)
    maker.node(op, [value], "int64", axis=axis, keepdims=maker.rng.randrange(2))


def cumsum(maker: Maker) -> None:
    """Running sums."""
    value = maker.pick(lambda v: v.rank >= 1 and v.dtype in ("float32", "float64"))
    axis = maker.weight(maker.rng.randrange(value.rank), "int64")
    attrs = {"exclusive": maker.rng.randrange(2), "reverse": maker.rng.randrange(2)}
    maker.node("CumSum", [value, axis], **attrs)


def _features(maker: Maker) -> Value:
    return maker.pick_float(lambda v: 2 <= v.rank <= 4 and v.array.size > 0 and v.shape[-1] > 0)


def linear(maker: Maker, value: Value, width: int, bias: bool = True, swap: bool = False) -> Value:
    """``value @ W [+ b]``; ``swap`` adds from the left, as exporters do."""
    depth = value.shape[-1]
    weight = maker.random((depth, width), value.dtype, 1 / math.sqrt(depth))
    result: Value = maker.node("MatMul", [value, weight])
    if bias:
        operands = [result, maker.random((width,), value.dtype, 0.3)]
        result = maker.node("Add", operands[::-1] if swap else operands)
    return result


def activation(maker: Maker, value: Value) -> Value:
    """One of the usual activations, as an operator."""
    op = maker.rng.choice(("Relu", "Tanh", "Sigmoid", "Gelu", "HardSwish", "LeakyRelu", "Identity"))
    result: Value = maker.node(op, [value])
    return result


def dense(maker: Maker) -> None:
    """A layer: matmul, bias, activation, maybe a residual."""
    value = _features(maker)
    same = maker.chance(0.3)
    width = value.shape[-1] if same else maker.rng.choice(WIDTHS)
    result = linear(maker, value, width, maker.chance(0.8), maker.chance(0.5))
    if maker.chance(0.6):
        result = activation(maker, result)
    if same:
        maker.node("Add", [value, result] if maker.chance(0.5) else [result, value])


def shared_input(maker: Maker) -> None:
    """Several layers of one input, as in query, key, value."""
    value = _features(maker)
    width = maker.rng.choice(WIDTHS)
    parts = [
        linear(maker, value, width if maker.chance(0.8) else 5, maker.chance(0.7))
        for _ in range(maker.rng.randrange(2, 4))
    ]
    if maker.chance(0.5) and parts[0].shape == parts[1].shape:
        maker.node("Add", parts[:2])


def gated(maker: Maker) -> None:
    """A gated feed-forward block: ``(act(x W1) * (x W2)) W3``."""
    value = _features(maker)
    width = maker.rng.choice(WIDTHS)
    gate = linear(maker, value, width, bias=maker.chance(0.3))
    up = linear(maker, value, width, bias=maker.chance(0.3))
    if maker.chance(0.5):
        gate = maker.node("Mul", [gate, maker.node("Sigmoid", [gate])])
    else:
        gate = activation(maker, gate)
    product = maker.node("Mul", [gate, up])
    if maker.chance(0.7):
        down = linear(maker, product, value.shape[-1], bias=False)
        maker.node("Add", [value, down])


def gemm(maker: Maker) -> None:
    """Gemm with transposes and factors."""
    value = maker.pick_float(lambda v: v.rank == 2 and v.array.size > 0 and v.dtype != "bfloat16")
    width, trans_a, trans_b = maker.rng.choice(WIDTHS), maker.rng.randrange(2), maker.chance(0.5)
    depth = value.shape[0] if trans_a else value.shape[1]
    rows = value.shape[1] if trans_a else value.shape[0]
    shape = (width, depth) if trans_b else (depth, width)
    operands: list[Value | None] = [value, maker.random(shape, value.dtype, 1 / math.sqrt(depth))]
    if maker.chance(0.8):
        bias = maker.rng.choice(((width,), (1, width), (rows, 1), (rows, width), ()))
        operands.append(maker.random(bias, value.dtype))
    attrs: dict[str, Any] = {"transA": trans_a, "transB": int(trans_b)}
    if maker.chance(0.4):
        attrs |= {"alpha": 0.5, "beta": 2.0}
    maker.node("Gemm", operands, **attrs)


def matmul(maker: Maker) -> None:
    """Two computed operands, batched and broadcast, one of them transposed at times."""
    value = maker.pick_float(lambda v: v.rank >= 1 and v.array.size > 0)
    other = maker.pick(
        lambda v: (
            v.dtype == value.dtype
            and v.rank >= 1
            and v.array.size > 0
            and value.shape[-1] in v.shape[-2:]
        )
    )
    if other.rank >= 2 and other.shape[-2] != value.shape[-1]:
        order = list(range(other.rank))
        order[-1], order[-2] = order[-2], order[-1]
        other = maker.node("Transpose", [other], other.dtype, perm=order)
    result = maker.node("MatMul", [value, other])
    if maker.chance(0.3):
        maker.node("Mul", [result, maker.weight(0.25, value.dtype)])


def matmul_constant_left(maker: Maker) -> None:
    """A constant matrix times a computed one."""
    value = maker.pick_float(lambda v: v.rank >= 2 and v.array.size > 0)
    rows = maker.rng.choice(WIDTHS)
    depth = value.shape[-2]
    left = maker.random((rows, depth), value.dtype, 1 / math.sqrt(depth))
    maker.node("MatMul", [left, value])


def einsum(maker: Maker) -> None:
    """Scores and mixes spelled as an Einsum."""
    value = maker.pick(lambda v: v.rank == 3 and v.dtype == "float32" and v.array.size > 0)
    depth = value.shape[-1]
    equation, shape = maker.rng.choice(
        (
            ("bnd,de->bne", (depth, 6)),
            ("bnd,ed->bne", (6, depth)),
            ("bnd,bmd->bnm", (value.shape[0], 5, depth)),
        )
    )
    other = maker.random(shape, value.dtype, 1 / np.sqrt(depth))
    maker.node("Einsum", [value, other], equation=equation)
