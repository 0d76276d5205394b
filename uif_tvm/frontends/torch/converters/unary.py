"""Elementwise functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from uif_tvm.frontends.torch.converters import scalar
from uif_tvm.frontends.torch.converters.arithmetic import _external
from uif_tvm.frontends.torch.dtypes import compute_dtype, is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import converts

#: Functions that Relax has; integers are converted to float first.
_RELAX: dict[str, Callable[..., Any]] = {
    "atan": relax.op.atan,
    "tan": relax.op.tan,
    "sinh": relax.op.sinh,
    "cosh": relax.op.cosh,
    "atanh": relax.op.atanh,
    "asinh": relax.op.asinh,
    "asin": relax.op.asin,
    "acosh": relax.op.acosh,
    "acos": relax.op.acos,
    "cos": relax.op.cos,
    "exp": relax.op.exp,
    "log": relax.op.log,
    "rsqrt": relax.op.rsqrt,
    "sigmoid": relax.op.sigmoid,
    "sin": relax.op.sin,
    "sqrt": relax.op.sqrt,
    "tanh": relax.op.tanh,
    "erf": relax.op.erf,
}
#: Functions taken from the C mathematical library.
_EXTERNAL = {
    "erfc": "erfc",
    "exp2": "exp2",
    "expm1": "expm1",
    "lgamma": "lgamma",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
}


def _register(name: str, op: Callable[..., Any]) -> None:
    @converts(f"aten.{name}.default")
    def unary(cx: Emitter, x: Any) -> Any:
        """A Relax function, in the dtype PyTorch computes in."""
        return cx.half_safe(op, x)


def _register_external(name: str, function: str) -> None:
    @converts(f"aten.{name}.default")
    def unary(cx: Emitter, x: Any) -> Any:
        """A C library function."""
        return _external(cx, function if cx.out_dtype == "float64" else f"{function}f", x)


for _name, _op in _RELAX.items():
    _register(_name, _op)
for _name, _function in _EXTERNAL.items():
    _register_external(_name, _function)


@converts("aten.abs.default")
def absolute(cx: Emitter, x: Any) -> Any:
    """Magnitude."""
    return x if cx.out_dtype in ("bool", "uint8") else cx.emit(relax.op.abs(x))


@converts("aten.neg.default")
def negate(cx: Emitter, x: Any) -> Any:
    """``-x``; unsigned integers wrap."""
    return cx.emit(relax.op.negative(x))


@converts("aten.reciprocal.default")
def reciprocal(cx: Emitter, x: Any) -> Any:
    """``1 / x`` as a float."""
    work = compute_dtype(cx.out_dtype)
    return cx.half_safe(lambda v: relax.op.divide(cx.const(1, work), v), x)


@converts("aten.sign.default", "aten.sgn.default")
def sign(cx: Emitter, x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    if cx.out_dtype == "bool":
        return x

    signs = cx.emit(relax.op.sign(x))
    if not is_float(cx.out_dtype):
        return signs
    unknown = cx.emit(relax.op.isnan(x))
    return cx.emit(relax.op.where(unknown, cx.const(0, cx.out_dtype), signs))


def _round_with(cx: Emitter, x: Any, op: Callable[..., Any]) -> Any:
    return cx.half_safe(op, x) if is_float(cx.out_dtype) else x


@converts("aten.ceil.default")
def ceil(cx: Emitter, x: Any) -> Any:
    """Round up."""
    return _round_with(cx, x, relax.op.ceil)


@converts("aten.floor.default")
def floor(cx: Emitter, x: Any) -> Any:
    """Round down."""
    return _round_with(cx, x, relax.op.floor)


@converts("aten.trunc.default")
def trunc(cx: Emitter, x: Any) -> Any:
    """Round towards zero."""
    return _round_with(cx, x, relax.op.trunc)


@converts("aten.round.default")
def round_even(cx: Emitter, x: Any) -> Any:
    """Round to nearest, halves to even."""
    if not is_float(cx.out_dtype):
        return x
    work = compute_dtype(cx.out_dtype)
    return cx.cast(cx.emit(relax.op.round(cx.cast(x, work))), cx.out_dtype)


@converts("aten.round.decimals")
def round_decimals(cx: Emitter, x: Any, decimals: int) -> Any:
    """Round to decimal places, halves to even after scaling."""
    if not is_float(cx.out_dtype):
        return x
    work = compute_dtype(cx.out_dtype)

    def formula(v: Any) -> Any:
        ten = scalar.like(10.0 ** abs(decimals), v)
        if decimals >= 0:
            return tirx.nearbyint(v * ten) / ten
        return tirx.nearbyint(v / ten) * ten

    return cx.cast(cx.elementwise(formula, cx.cast(x, work), name="round_decimals"), cx.out_dtype)


@converts("aten.frac.default")
def frac(cx: Emitter, x: Any) -> Any:
    """The part after the point, with the sign of ``x``."""
    return cx.half_safe(lambda v: relax.op.subtract(v, relax.op.trunc(v)), x)


@converts("aten._to_copy.default", "prims.convert_element_type.default", "aten.to.dtype")
def to_copy(cx: Emitter, x: Any, *_: Any) -> Any:
    """Convert the dtype; device and layout mean nothing here."""
    have, want = cx.dtype(x), cx.out_dtype
    if is_float(have) and want in ("uint8", "int8", "int16"):
        # PyTorch goes through a wide integer and wraps; a direct conversion saturates or worse.
        return cx.cast(cx.cast(x, "int64" if have == "float64" else "int32"), want)
    return cx.cast(x, want)


@converts("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default")
def clamp(cx: Emitter, x: Any, low: Any, high: Any) -> Any:
    """Limit to a range; NaN stays, and the upper limit wins where the limits cross."""
    return _clamp(cx, x, low, high)


@converts("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(cx: Emitter, x: Any, low: Any) -> Any:
    """Limit from below."""
    return _clamp(cx, x, low, None)


@converts("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(cx: Emitter, x: Any, high: Any) -> Any:
    """Limit from above."""
    return _clamp(cx, x, None, high)


def _clamp(cx: Emitter, x: Any, low: Any, high: Any) -> Any:
    # Booleans compare as small integers.
    dtype = "int8" if cx.out_dtype == "bool" else cx.out_dtype
    x = cx.tensor(x, dtype)
    for limit, op in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if limit is not None:
            x = cx.emit(op(x, cx.tensor(limit, dtype)))
    return cx.cast(x, cx.out_dtype)


@converts("aten.nan_to_num.default")
def nan_to_num(cx: Emitter, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    """Replace NaN and infinities."""
    dtype = cx.out_dtype
    if not is_float(dtype):
        return x
    import torch

    limits = torch.finfo(getattr(torch, dtype))

    def formula(v: Any) -> Any:
        infinite = scalar.like(math.inf, v)
        top = scalar.like(limits.max if posinf is None else posinf, v)
        bottom = scalar.like(limits.min if neginf is None else neginf, v)
        v_or = tirx.Select(v == -infinite, bottom, tirx.Select(v == infinite, top, v))
        return tirx.Select(scalar.is_nan(v), scalar.like(nan or 0.0, v), v_or)

    return cx.elementwise(formula, x, name="nan_to_num")


@converts("aten.real.default", "aten.conj.default", "aten._conj.default")
def real(cx: Emitter, x: Any) -> Any:
    """The tensor itself: only real numbers reach this point."""
    return x


@converts("aten.angle.default")
def angle(cx: Emitter, x: Any) -> Any:
    """0 for positive numbers, pi for negative ones; NaN stays."""

    def formula(v: Any) -> Any:
        zero = scalar.like(0, v)
        straight = tirx.Select(v < zero, scalar.like(math.pi, v), zero)
        return tirx.Select(scalar.is_nan(v), v, straight)

    return cx.elementwise(formula, cx.cast(x, cx.out_dtype), name="angle")
