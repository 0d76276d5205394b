"""Unary functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from uif_tvm.frontends.converters.broadcast import aligned
from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.elementwise import is_float
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import shape_of

RELAX_UNARY = {
    "Exp": relax.op.exp,
    "Log": relax.op.log,
    "Sqrt": relax.op.sqrt,
    "Floor": relax.op.floor,
    "Ceil": relax.op.ceil,
    "Sin": relax.op.sin,
    "Cos": relax.op.cos,
    "Tanh": relax.op.tanh,
    "Sigmoid": relax.op.sigmoid,
    "Erf": relax.op.erf,
    "Relu": relax.op.nn.relu,
    "Neg": relax.op.negative,
    "Abs": relax.op.abs,
}


@converter(*RELAX_UNARY)
def unary(ctx: NodeContext) -> relax.Expr:
    """Functions that Relax has under the same meaning."""
    return ctx.emit(RELAX_UNARY[ctx.op_type](ctx.expr(0)))


#: Functions of Relax whose kernels are ours.
RELAX_EXACT = {
    "Tan": "tan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Round": "round",
    "Sign": "sign",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Mish": "mish",
    "HardSwish": "hard_swish",
    "IsNaN": "isnan",
}


@converter(*RELAX_EXACT)
def standard(ctx: NodeContext) -> relax.Expr:
    """Standard operators without attributes."""
    return ctx.op(RELAX_EXACT[ctx.op_type], ctx.expr(0))


@converter("Reciprocal")
def reciprocal(ctx: NodeContext) -> relax.Expr:
    """1 / x."""
    return ctx.emit(relax.op.divide(ctx.const(1, ctx.dtype(0)), ctx.expr(0)))


@converter("IsInf")
def test_inf(ctx: NodeContext) -> relax.Expr:
    """Whether each element is infinite, of the signs asked for."""
    x = ctx.expr(0)
    positive = bool(ctx.attrs.get("detect_positive", 1))
    negative = bool(ctx.attrs.get("detect_negative", 1))
    if positive and negative:
        return ctx.op("isinf", x)
    if not positive and not negative:
        return ctx.emit(relax.op.full(ctx.shape(0), ctx.const(False, "bool"), "bool"))
    limit = ctx.const(math.inf if positive else -math.inf, ctx.dtype(0))
    return ctx.emit(relax.op.equal(x, limit))


#: Operator -> (standard operator, its attributes by ONNX's names).
PARAMETRIC: dict[str, tuple[str, dict[str, str]]] = {
    "Elu": ("elu", {"alpha": "alpha"}),
    "Selu": ("selu", {"alpha": "alpha", "gamma": "gamma"}),
    "Celu": ("celu", {"alpha": "alpha"}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": "alpha"}),
    "Swish": ("quick_gelu", {"alpha": "alpha"}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": "alpha", "beta": "beta"}),
    "LeakyRelu": ("leaky_relu", {"alpha": "alpha"}),
}


@converter(*PARAMETRIC)
def parametric(ctx: NodeContext) -> relax.Expr:
    """Activations with numeric parameters."""
    name, names = PARAMETRIC[ctx.op_type]
    attrs = {ours: float(ctx.attrs.get(theirs, 1.0)) for theirs, ours in names.items()}
    return ctx.op(name, ctx.expr(0), **attrs)


@converter("Shrink")
def shrink(ctx: NodeContext) -> relax.Expr:
    """Shrink towards zero; integers are computed in float64."""
    dtype = ctx.dtype(0)
    x = ctx.expr(0) if is_float(dtype) else ctx.cast(ctx.expr(0), "float64")
    bias, lambd = float(ctx.attrs.get("bias", 0.0)), float(ctx.attrs.get("lambd", 0.5))
    return ctx.cast(ctx.op("shrink", x, bias=bias, lambd=lambd), dtype)


@converter("PRelu")
def prelu(ctx: NodeContext) -> relax.Expr:
    """Leaky relu with a slope tensor, broadcast to the input."""
    slope = ctx.expr(1)
    if ctx.version < 9 and ctx.rank(1) == 1 and ctx.rank(0) > 2:
        slope = ctx.reshape(slope, [*shape_of(slope), *[1] * (ctx.rank(0) - 2)])
    return ctx.op("prelu", *aligned(ctx, ctx.expr(0), slope))


@converter("Gelu")
def gelu(ctx: NodeContext) -> relax.Expr:
    """Gelu, exact or with tanh."""
    if ctx.attrs.get("approximate", "none") == "tanh":
        return ctx.emit(relax.op.nn.gelu_tanh(ctx.expr(0)))
    return ctx.emit(relax.op.nn.gelu(ctx.expr(0)))


@converter("Gelu", "BiasGelu", domain=MICROSOFT)
def microsoft_gelu(ctx: NodeContext) -> relax.Expr:
    """Exact gelu, of the sum with a bias if there is one."""
    return ctx.emit(relax.op.nn.gelu(_with_bias(ctx)))


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(ctx: NodeContext) -> relax.Expr:
    """Gelu with tanh, of the sum with a bias if there is one."""
    return ctx.emit(relax.op.nn.gelu_tanh(_with_bias(ctx)))


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(ctx: NodeContext) -> relax.Expr:
    """x * sigmoid(alpha * x)."""
    return ctx.op("quick_gelu", ctx.expr(0), alpha=float(ctx.attrs.get("alpha", 1.702)))


def _with_bias(ctx: NodeContext) -> relax.Expr:
    if not ctx.has(1):
        return ctx.expr(0)
    return ctx.emit(relax.op.add(*aligned(ctx, ctx.expr(0), ctx.expr(1))))


@converter("Softmax", "LogSoftmax", since=13)
def softmax(ctx: NodeContext) -> relax.Expr:
    """Along one axis."""
    axis = ctx.axis(int(ctx.attrs["axis"]), ctx.rank(0))
    if ctx.rank(0) == 0:
        one = ctx.reshape(ctx.expr(0), (1,))
        return ctx.reshape(ctx.emit(_softmax(ctx)(one, 0)), ())
    return ctx.emit(_softmax(ctx)(ctx.expr(0), axis))


def _softmax(ctx: NodeContext) -> Callable[..., relax.Expr]:
    log = ctx.op_type == "LogSoftmax"
    op: Callable[..., relax.Expr] = relax.op.nn.log_softmax if log else relax.op.nn.softmax
    return op


@converter("Softmax", "LogSoftmax", until=12)
def softmax_flattened(ctx: NodeContext) -> relax.Expr:
    """Over all axes from ``axis`` on, taken together."""
    shape = ctx.shape(0)
    axis = ctx.axis(int(ctx.attrs["axis"]), max(ctx.rank(0), 1))
    if axis == len(shape) - 1:
        return ctx.emit(_softmax(ctx)(ctx.expr(0), axis))
    flat = ctx.reshape(ctx.expr(0), flattened(shape, axis))
    return ctx.reshape(ctx.emit(_softmax(ctx)(flat, 1)), shape)


def flattened(shape: Any, axis: int) -> list[Any]:
    """Two dimensions: the product before ``axis`` and the product from it on."""
    return [math.prod(shape[:axis]), math.prod(shape[axis:])]


@converter("Hardmax")
def hardmax(ctx: NodeContext) -> relax.Expr:
    """One at the first maximum along an axis, zero elsewhere."""
    shape, dtype = ctx.shape(0), ctx.dtype(0)
    axis = ctx.axis(int(ctx.attrs["axis"]), ctx.rank(0))
    x = ctx.expr(0)
    if ctx.version < 13:
        x, axis = ctx.reshape(x, flattened(shape, axis)), 1
    place = axis % len(shape_of(x))
    best = ctx.op("argmax", x, axis=place)
    values = ctx.const([0, 1], dtype)
    depth = ctx.static([shape_of(x)[place]])[0]
    return ctx.reshape(ctx.op("one_hot", best, values, depth=depth, axis=place), shape)
