"""Steps that add elementwise nodes, comparisons, casts, broadcasts and branches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.graphs.evaluate import Refused
from tests.fuzz.graphs.maker import Maker, Value, onnx_dtype

#: Functions of one float, with the range in which each is well behaved.
UNARY: dict[str, tuple[float, float]] = {
    "Abs": (-1e9, 1e9),
    "Atan": (-1e9, 1e9),
    "Celu": (-1e9, 1e9),
    "Cos": (-30, 30),
    "Elu": (-1e9, 1e9),
    "Erf": (-1e9, 1e9),
    "Exp": (-20, 4),
    "Gelu": (-1e9, 1e9),
    "HardSigmoid": (-1e9, 1e9),
    "HardSwish": (-1e9, 1e9),
    "Identity": (-1e9, 1e9),
    "LeakyRelu": (-1e9, 1e9),
    "Log": (0.05, 1e9),
    "Mish": (-30, 30),
    "Neg": (-1e9, 1e9),
    "Relu": (-1e9, 1e9),
    "Selu": (-1e9, 1e9),
    "Sigmoid": (-1e9, 1e9),
    "Sin": (-30, 30),
    "Softplus": (-30, 30),
    "Softsign": (-1e9, 1e9),
    "Sqrt": (0.01, 1e9),
    "Tanh": (-1e9, 1e9),
}
#: Jump between values, so they only take what carries no rounding.
JUMPS = ("Ceil", "Floor", "Round", "Sign")
INTEGERS = ("int32", "int64", "int8", "uint8")


def unary(maker: Maker) -> None:
    """A function of one float."""
    op = maker.rng.choice(sorted(UNARY))
    low, high = UNARY[op]
    value = maker.pick_float(lambda v: maker.special or (v.low >= low and v.high <= high))
    attrs: dict[str, Any] = {}
    if op in ("LeakyRelu", "Elu", "Celu") and maker.chance(0.5):
        attrs["alpha"] = maker.rng.choice((0.1, 0.5, 2.0))
    if op == "Gelu":
        attrs["approximate"] = maker.rng.choice(("none", "tanh"))
    maker.node(op, [value], **attrs)


def jump(maker: Maker) -> None:
    """Rounding to integers, of exact values."""
    maker.node(maker.rng.choice(JUMPS), [maker.pick_float(lambda v: v.exact)])


def safe_domain(maker: Maker) -> None:
    """Log, square root, reciprocal or power of what was made positive first."""
    value = maker.pick_float()
    kind = maker.rng.choice(("Log", "Sqrt", "Reciprocal", "Pow", "Exp"))
    if kind == "Exp":
        maker.node("Exp", [maker.node("Tanh", [value])])
        return
    shift = maker.weight(maker.rng.choice((0.5, 1.0)), value.dtype)
    positive = maker.node("Add", [maker.node("Abs", [value]), shift])
    if kind == "Pow":
        power = maker.weight(maker.rng.choice((0.5, -0.5, 2.0, 3.0, -1.0, 1.0, 1.5)), value.dtype)
        maker.node("Pow", [positive, power])
    else:
        maker.node(kind, [positive])


def constant_for(maker: Maker, value: Value) -> Value:
    """A constant that broadcasts to ``value`` or with it."""
    kind = maker.rng.randrange(6)
    if kind == 0 or not value.rank:
        number = maker.rng.choice((0.0, 1.0, -1.0, 0.5, 2.0, -0.25, 3.0))
        return maker.weight(number, value.dtype)
    if kind == 1:
        return maker.random((1,) * maker.rng.randrange(1, value.rank + 1), value.dtype)
    if kind == 2:
        return maker.random(value.shape, value.dtype)
    if kind == 3 and value.rank > 1:
        shape = (value.shape[1],) + (1,) * (value.rank - 2)
        return maker.random(shape, value.dtype)
    if kind == 4:
        return maker.random(value.shape[-1:], value.dtype)
    mask = [extent if maker.chance(0.5) else 1 for extent in value.shape]
    return maker.random(mask, value.dtype)


def partner(maker: Maker, value: Value) -> Value:
    """A value or constant of the same type that broadcasts with ``value``."""
    if maker.chance(0.4):
        return constant_for(maker, value)
    if maker.chance(0.1):
        return value

    def fits(other: Value) -> bool:
        if other.dtype != value.dtype:
            return False
        try:
            np.broadcast_shapes(value.shape, other.shape)
        except ValueError:
            return False
        return True

    return maker.pick(fits)


def binary(maker: Maker) -> None:
    """Arithmetic of two floats."""
    op = maker.rng.choice(("Add", "Sub", "Mul", "Div", "Max", "Min", "Add", "Mul", "PRelu"))
    value = maker.pick_float()
    other = partner(maker, value)
    if op == "Div" and not maker.special and other.nearest_zero < 0.1:
        one = maker.weight(1.0, value.dtype)
        other = maker.node("Add", [maker.node("Abs", [other]), one])
    operands = [value, other]
    if op in ("Add", "Mul", "Max", "Min") and maker.chance(0.4):
        operands.reverse()
    if op == "PRelu":
        operands = [value, constant_for(maker, value)]
    maker.node(op, operands)


def many(maker: Maker) -> None:
    """Operators of three operands of one type."""
    value = maker.pick_float()
    op = maker.rng.choice(("Sum", "Max", "Min", "Mean"))
    maker.node(op, [value, partner(maker, value), partner(maker, value)])


def clip(maker: Maker) -> None:
    """Clip with bounds, or without one of them."""
    value = maker.pick_float()
    low = maker.weight(-0.5, value.dtype) if maker.chance(0.8) else None
    high = maker.weight(maker.rng.choice((0.75, 6.0)), value.dtype) if maker.chance(0.8) else None
    maker.node("Clip", [value, low, high])


def compare(maker: Maker) -> None:
    """A comparison of exact values, and maybe a choice by it."""
    value = maker.pick(lambda v: v.exact and v.dtype in ("float32", "int32", "int64", "float16"))
    op = maker.rng.choice(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"))
    if value.is_float:
        other = constant_for(maker, value)
    else:
        other = maker.weight(maker.rng.randrange(-2, 4), value.dtype)
    flag = maker.node(op, [value, other], "bool")
    if maker.chance(0.3):
        flag = maker.node("Not", [flag], "bool")
    if maker.chance(0.3):
        try:
            again = maker.pick(lambda v: v.dtype == "bool" and v.shape == flag.shape)
            flag = maker.node(maker.rng.choice(("And", "Or", "Xor")), [flag, again], "bool")
        except Refused:
            pass
    if maker.chance(0.7):
        where(maker, flag)


def where(maker: Maker, flag: Value | None = None) -> None:
    """A choice between two values."""
    chosen = flag or maker.pick(lambda v: v.dtype == "bool")
    value = maker.pick_float(lambda v: _broadcasts(v.shape, chosen.shape))
    other = partner(maker, value)
    maker.node("Where", [chosen, value, other], value.dtype)


def _broadcasts(*shapes: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def cast(maker: Maker) -> None:
    """Between floats, to integers (of exact values) and from bool and integers."""
    value = maker.pick()
    if value.is_float:
        to = maker.rng.choice(("float32", "float16", "float64", "bfloat16", "int32", "bool"))
        if to in ("int32", "bool") and (not value.exact or maker.special):
            raise Refused("truncation of a rounded value")
    else:
        to = maker.rng.choice(("float32", "float32", "int64", "int32", "float16"))
    if to == value.dtype:
        raise Refused("no cast")
    maker.node("Cast", [value], to, to=onnx_dtype(to))


def integer(maker: Maker) -> None:
    """Integer arithmetic that does not overflow."""
    value = maker.pick(
        lambda v: v.dtype in ("int32", "int64") and bool((np.abs(v.array) < 1000).all())
    )
    op = maker.rng.choice(("Add", "Sub", "Mul", "Max", "Min", "Abs", "Neg", "Mod", "Div"))
    if op in ("Abs", "Neg"):
        maker.node(op, [value], value.dtype)
        return
    number = maker.rng.choice((1, 2, 3, 7))
    other = maker.weight(number, value.dtype)
    if op in ("Add", "Sub", "Mul", "Max", "Min") and maker.chance(0.5):
        other = maker.pick(
            lambda v: (
                v.dtype == value.dtype
                and _broadcasts(v.shape, value.shape)
                and bool((np.abs(v.array) < 1000).all())
            )
        )
    if op == "Div" and value.low < 0:
        raise Refused("division of negative integers")
    maker.node(op, [value, other], value.dtype)


def special_test(maker: Maker) -> None:
    """IsNaN or IsInf."""
    value = maker.pick(lambda v: v.dtype in ("float32", "float64", "float16") and v.exact)
    maker.node(maker.rng.choice(("IsNaN", "IsInf")), [value], "bool")


def branch(maker: Maker) -> None:
    """An ``If`` on data: one of two short chains, both of the same type."""
    decider = maker.pick(lambda v: v.dtype == "float32" and v.exact and v.array.size > 0)
    top = maker.node("ReduceMax", [decider], keepdims=0)
    limit = maker.weight(float(top.array) + maker.rng.choice((-0.5, 0.5)), "float32")
    flag = maker.node("Greater", [top, limit], "bool")
    value = maker.pick_float()
    start = len(maker.nodes)
    ends = []
    for _ in range(2):
        end = value
        for _ in range(maker.rng.randrange(1, 4)):
            op = maker.rng.choice(("Relu", "Tanh", "Add", "Mul", "Sigmoid", "Neg"))
            operands = [end]
            if op in ("Add", "Mul"):
                operands.append(maker.weight(maker.rng.choice((0.5, 2.0, -1.0)), end.dtype))
            end = maker.node(op, operands)
        ends.append(end)
    maker.branch(flag, ends[0], ends[1], start)
