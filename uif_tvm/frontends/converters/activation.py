"""Unary functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.converters.broadcast import aligned
from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.elementwise import each, is_float, is_unsigned, pairwise
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import shape_of
from uif_tvm.kernels.math import is_nan

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
    x = ctx.expr(0)
    if ctx.op_type == "Abs" and is_unsigned(ctx.dtype(0)):
        return x
    if ctx.op_type == "Neg" and not is_float(ctx.dtype(0)):
        return each(ctx, x, lambda v: tirx.const(0, kind(v)) - v, "negative")
    return ctx.emit(RELAX_UNARY[ctx.op_type](x))


def wide(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``fn`` computed in float32 for the small floats."""

    def apply(v: Any) -> Any:
        dtype = kind(v)
        if dtype in ("float32", "float64"):
            return fn(v)
        return fn(v.astype("float32")).astype(dtype)

    return apply


def const(v: Any, value: float) -> Any:
    """A constant of ``v``'s dtype."""
    return tirx.const(value, kind(v))


def _expm1(v: Any) -> Any:
    """exp(v) - 1 without cancellation near 0: Taylor to the 7th power below 0.25."""
    series: Any = const(v, 1.0 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1):
        series = series * v + const(v, 1.0 / divisor)
    return tirx.Select(tirx.abs(v) < const(v, 0.25), series * v, tirx.exp(v) - const(v, 1))


def _sinh(v: Any) -> Any:
    """Halves are multiplied apart, so that results near the largest float do not overflow."""
    magnitude = tirx.abs(v)
    half = tirx.exp(magnitude * const(v, 0.5))
    large = (half * const(v, 0.5)) * half
    small = _expm1(magnitude)
    middle = (small + small / (small + const(v, 1))) * const(v, 0.5)
    result = tirx.Select(magnitude > const(v, 20), large, middle)
    return tirx.Select(v < const(v, 0), const(v, 0) - result, result)


def _cosh(v: Any) -> Any:
    half = tirx.exp(tirx.abs(v) * const(v, 0.5))
    return (half * const(v, 0.5)) * half + const(v, 0.5) / half / half


def _softplus(v: Any) -> Any:
    """max(v, 0) + log1p(exp(-|v|)), which never overflows."""
    positive = tirx.Select(v > const(v, 0), v, const(v, 0))
    return positive + tirx.log1p(tirx.exp(const(v, 0) - tirx.abs(v)))


def _mish(v: Any) -> Any:
    """v tanh(log(1 + e^v)) = v w / (w + 2) with w = e^v (e^v + 2); v itself from 20 on."""
    grown = tirx.exp(tirx.Select(v > const(v, 20), const(v, 20), v))
    w = grown * (grown + const(v, 2))
    return tirx.Select(v > const(v, 20), v, v * (w / (w + const(v, 2))))


def _atan(v: Any) -> Any:
    """Arguments above 1 are reflected, so that huge ones stay in range."""
    magnitude = tirx.abs(v)
    big = magnitude > const(v, 1)
    inner = tirx.atan(
        tirx.Select(big, const(v, 1) / tirx.Select(big, magnitude, const(v, 1)), magnitude)
    )
    result = tirx.Select(big, const(v, math.pi / 2) - inner, inner)
    result = tirx.Select(v < const(v, 0), const(v, 0) - result, result)
    return tirx.Select(is_nan(v), v, result)


def _asinh(v: Any) -> Any:
    magnitude = tirx.abs(v)
    square = magnitude * magnitude
    small = tirx.log1p(magnitude + square / (const(v, 1) + tirx.sqrt(const(v, 1) + square)))
    result = tirx.Select(
        magnitude > const(v, 1e8), tirx.log(magnitude) + const(v, math.log(2)), small
    )
    return tirx.Select(v < const(v, 0), const(v, 0) - result, result)


def _acosh(v: Any) -> Any:
    rest = v - const(v, 1)
    near = tirx.log1p(rest + tirx.sqrt(rest * rest + const(v, 2) * rest))
    return tirx.Select(v > const(v, 1e8), tirx.log(v) + const(v, math.log(2)), near)


def _sign(v: Any) -> Any:
    zero, one = tirx.const(0, kind(v)), tirx.const(1, kind(v))
    if is_unsigned(kind(v)):
        return tirx.Select(v > zero, one, zero)
    signed = tirx.Select(v > zero, one, tirx.Select(v < zero, tirx.const(-1, kind(v)), zero))
    return tirx.Select(is_nan(v), v, signed) if is_float(kind(v)) else signed


def _sigmoid(v: Any) -> Any:
    return const(v, 1) / (const(v, 1) + tirx.exp(const(v, 0) - v))


TE_UNARY: dict[str, Callable[[Any], Any]] = {
    "Tan": lambda v: tirx.sin(v) / tirx.cos(v),
    "Sinh": _sinh,
    "Cosh": _cosh,
    "Asin": tirx.asin,
    "Acos": tirx.acos,
    "Atan": _atan,
    "Asinh": _asinh,
    "Acosh": _acosh,
    "Atanh": lambda v: const(v, 0.5) * (tirx.log1p(v) - tirx.log1p(const(v, 0) - v)),
    "Reciprocal": lambda v: const(v, 1) / v,
    "Round": tirx.nearbyint,
    "Softplus": _softplus,
    "Softsign": lambda v: v / (const(v, 1) + tirx.abs(v)),
    "Mish": _mish,
    "HardSwish": lambda v: (
        v * tirx.max(const(v, 0), tirx.min(const(v, 1), v / const(v, 6) + const(v, 0.5)))
    ),
}


@converter(*TE_UNARY)
def te_unary(ctx: NodeContext) -> relax.Expr:
    """Functions that Relax lacks, or computes inexactly."""
    return each(ctx, ctx.expr(0), wide(TE_UNARY[ctx.op_type]), ctx.op_type.lower())


@converter("Sign")
def sign(ctx: NodeContext) -> relax.Expr:
    """-1, 0 or 1; NaN stays NaN."""
    return each(ctx, ctx.expr(0), _sign, "sign")


@converter("IsNaN")
def test_nan(ctx: NodeContext) -> relax.Expr:
    """Whether each element is not a number."""
    return each(ctx, ctx.expr(0), is_nan, "isnan")


@converter("IsInf")
def test_inf(ctx: NodeContext) -> relax.Expr:
    """Whether each element is infinite, of the signs asked for."""
    positive = bool(ctx.attrs.get("detect_positive", 1))
    negative = bool(ctx.attrs.get("detect_negative", 1))

    def test(v: Any) -> Any:
        w = v if kind(v) in ("float32", "float64") else v.astype("float32")
        top = tirx.const(float("inf"), kind(w))
        bottom = tirx.const(float("-inf"), kind(w))
        found = tirx.const(False, "bool")
        if positive:
            found = tirx.any(found, w == top)
        return tirx.any(found, w == bottom) if negative else found

    return each(ctx, ctx.expr(0), test, "isinf")


def _parametric(ctx: NodeContext) -> Callable[[Any], Any]:
    attrs = ctx.attrs
    alpha = float(attrs.get("alpha", 1.0))
    if ctx.op_type == "Elu":
        return lambda v: tirx.Select(v < const(v, 0), const(v, alpha) * _expm1(v), v)
    if ctx.op_type == "Selu":
        gamma = float(attrs["gamma"])
        return lambda v: (
            const(v, gamma) * tirx.Select(v > const(v, 0), v, const(v, alpha) * _expm1(v))
        )
    if ctx.op_type == "Celu":
        return lambda v: tirx.Select(
            v > const(v, 0), v, const(v, alpha) * _expm1(v / const(v, alpha))
        )
    if ctx.op_type == "ThresholdedRelu":
        return lambda v: tirx.Select(v > const(v, alpha), v, const(v, 0))
    if ctx.op_type == "Swish":
        return lambda v: v * _sigmoid(const(v, alpha) * v)
    bias, lambd = float(attrs.get("bias", 0.0)), float(attrs.get("lambd", 0.5))
    return lambda v: tirx.Select(
        v < const(v, -lambd),
        v + const(v, bias),
        tirx.Select(v > const(v, lambd), v - const(v, bias), const(v, 0)),
    )


@converter("Elu", "Selu", "Celu", "ThresholdedRelu", "Swish")
def parametric(ctx: NodeContext) -> relax.Expr:
    """Activations with numeric parameters."""
    return each(ctx, ctx.expr(0), wide(_parametric(ctx)), ctx.op_type.lower())


@converter("Shrink")
def shrink(ctx: NodeContext) -> relax.Expr:
    """Shrink towards zero; integers are computed in float64."""
    rule = _parametric(ctx)
    dtype = ctx.dtype(0)
    if is_float(dtype):
        return each(ctx, ctx.expr(0), wide(rule), "shrink")
    return each(ctx, ctx.expr(0), lambda v: rule(v.astype("float64")).astype(dtype), "shrink")


@converter("HardSigmoid")
def hard_sigmoid(ctx: NodeContext) -> relax.Expr:
    """clip(alpha * x + beta, 0, 1)."""
    dtype = ctx.dtype(0)
    scaled = ctx.emit(relax.op.multiply(ctx.expr(0), ctx.const(ctx.attrs["alpha"], dtype)))
    shifted = ctx.emit(relax.op.add(scaled, ctx.const(ctx.attrs["beta"], dtype)))

    low = each(ctx, shifted, lambda v: tirx.Select(v < const(v, 0), const(v, 0), v), "clip")
    return each(ctx, low, lambda v: tirx.Select(v > const(v, 1), const(v, 1), v), "clip")


@converter("LeakyRelu")
def leaky_relu(ctx: NodeContext) -> relax.Expr:
    """x, or alpha * x where x is negative."""
    return ctx.emit(relax.op.nn.leakyrelu(ctx.expr(0), float(ctx.attrs["alpha"])))


@converter("PRelu")
def prelu(ctx: NodeContext) -> relax.Expr:
    """Leaky relu with a slope tensor, broadcast to the input."""
    slope = ctx.expr(1)
    if ctx.version < 9 and ctx.rank(1) == 1 and ctx.rank(0) > 2:
        slope = ctx.reshape(slope, [*shape_of(slope), *[1] * (ctx.rank(0) - 2)])
    return pairwise(
        ctx,
        ctx.expr(0),
        slope,
        lambda a, b: tirx.Select(a < tirx.const(0, kind(a)), a * b, a),
        "prelu",
    )


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
    x = ctx.expr(0)
    alpha = ctx.const(ctx.attrs.get("alpha", 1.702), ctx.dtype(0))
    return ctx.emit(
        relax.op.multiply(x, ctx.emit(relax.op.sigmoid(ctx.emit(relax.op.multiply(x, alpha)))))
    )


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
    best = ctx.emit(relax.op.argmax(x, axis, keepdims=True))

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        def pick(*i: Any) -> Any:
            at = [*i[:axis], 0, *i[axis + 1 :]]
            return tirx.Select(
                b(*at) == i[axis].astype("int64"), tirx.const(1, dtype), tirx.const(0, dtype)
            )

        return te.compute(a.shape, pick, name="hardmax")

    return ctx.reshape(ctx.te(compute, x, best, name="hardmax"), shape)
