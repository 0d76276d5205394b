"""Elementary functions of one element that TVM lacks, or computes inexactly.

Each takes and returns a scalar expression. float16 and bfloat16 compute in float32 and round once.
Comparisons are false for NaN; every formula is arranged so that NaN then passes through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from uif_tvm.kernels import wraparound
from uif_tvm.kernels.math import is_nan

Expr = Any
Function = Callable[[Any], Any]
_WIDE = ("float32", "float64")


def kind(v: Expr) -> str:
    """Element type of a scalar expression."""
    return str(v.ty.dtype)


def is_float(v: Expr) -> bool:
    """Whether an expression has a floating-point type."""
    return "float" in kind(v)


def const(v: Expr, value: float) -> Expr:
    """A number of the type of ``v``."""
    from tvm import tirx

    return tirx.const(value, kind(v))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """``yes`` where the condition holds; both sides are computed."""
    from tvm import tirx

    return tirx.Select(condition, yes, no)


def wide(fn: Callable[..., Expr]) -> Callable[..., Expr]:
    """``fn(v, *more, **attrs)`` computed in float32 for the 16-bit floats."""

    def apply(v: Expr, *more: Expr, **attrs: Any) -> Expr:
        dtype = kind(v)
        if dtype not in ("float16", "bfloat16"):
            return fn(v, *more, **attrs)
        widened = [item.astype("float32") for item in (v, *more)]
        return fn(*widened, **attrs).astype(dtype)

    return apply


def negate_below_zero(v: Expr, result: Expr) -> Expr:
    """An odd function from its values at magnitudes; zeros keep their sign."""
    return select(v < const(v, 0), const(v, 0) - result, select(v == const(v, 0), v, result))


def expm1(v: Expr) -> Expr:
    """exp(v) - 1 without cancellation near 0: in float32 Taylor to the 7th power below 0.25."""
    from tvm import tirx

    if kind(v) == "float64":
        return tirx.call_pure_extern("float64", "expm1", v)
    series: Expr = const(v, 1.0 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1):
        series = series * v + const(v, 1.0 / divisor)
    return select(tirx.abs(v) < const(v, 0.25), series * v, tirx.exp(v) - const(v, 1))


def sinh(v: Expr) -> Expr:
    """Halves are multiplied apart, so that results near the largest float do not overflow."""
    from tvm import tirx

    magnitude = tirx.abs(v)
    half = tirx.exp(magnitude * const(v, 0.5))
    large = (half * const(v, 0.5)) * half
    small = expm1(magnitude)
    middle = (small + small / (small + const(v, 1))) * const(v, 0.5)
    return negate_below_zero(v, select(magnitude > const(v, 20), large, middle))


def cosh(v: Expr) -> Expr:
    """Halves are multiplied apart, so that results near the largest float do not overflow."""
    from tvm import tirx

    half = tirx.exp(tirx.abs(v) * const(v, 0.5))
    return (half * const(v, 0.5)) * half + const(v, 0.5) / half / half


def atan(v: Expr) -> Expr:
    """Arguments above 1 are reflected, so that huge ones stay in range."""
    from tvm import tirx

    magnitude = tirx.abs(v)
    big = magnitude > const(v, 1)
    inner = tirx.atan(select(big, const(v, 1) / select(big, magnitude, const(v, 1)), magnitude))
    result = negate_below_zero(v, select(big, const(v, math.pi / 2) - inner, inner))
    return select(is_nan(v), v, result)


def asinh(v: Expr) -> Expr:
    """log(|v| + sqrt(v^2 + 1)) with the sign of v."""
    from tvm import tirx

    magnitude = tirx.abs(v)
    square = magnitude * magnitude
    small = tirx.log1p(magnitude + square / (const(v, 1) + tirx.sqrt(const(v, 1) + square)))
    far = tirx.log(magnitude) + const(v, math.log(2))
    return negate_below_zero(v, select(magnitude > const(v, 1e8), far, small))


def acosh(v: Expr) -> Expr:
    """log(v + sqrt(v^2 - 1)); NaN below 1."""
    from tvm import tirx

    rest = v - const(v, 1)
    near = tirx.log1p(rest + tirx.sqrt(rest * rest + const(v, 2) * rest))
    near = select(v < const(v, 1), const(v, math.nan), near)
    return select(v > const(v, 1e8), tirx.log(v) + const(v, math.log(2)), near)


def atanh(v: Expr) -> Expr:
    """(log(1 + v) - log(1 - v)) / 2."""
    from tvm import tirx

    return const(v, 0.5) * (tirx.log1p(v) - tirx.log1p(const(v, 0) - v))


def tan(v: Expr) -> Expr:
    """sin v / cos v."""
    from tvm import tirx

    return tirx.sin(v) / tirx.cos(v)


def round_half_even(v: Expr) -> Expr:
    """Nearest integer, ties to even."""
    from tvm import tirx

    return tirx.nearbyint(v)


def sign(v: Expr) -> Expr:
    """-1, 0 or 1; NaN stays NaN."""
    zero, one = const(v, 0), const(v, 1)
    if not kind(v).startswith(("int", "float", "bfloat")):
        return select(v > zero, one, zero)
    return select(v > zero, one, select(v < zero, const(v, -1), v if is_float(v) else zero))


def absolute(v: Expr) -> Expr:
    """|v|; unsigned numbers are their own, the smallest integer wraps to itself."""
    from tvm import tirx

    if kind(v).startswith("uint") or kind(v) == "bool":
        return v
    return tirx.abs(v) if is_float(v) else select(v < const(v, 0), negative(v), v)


def negative(v: Expr) -> Expr:
    """-v; integers wrap around."""
    return const(v, -0.0) - v if is_float(v) else wraparound.subtract(const(v, 0), v)


def is_infinite(v: Expr, positive: bool = True, negative: bool = True) -> Expr:
    """Whether v is infinite, of the signs asked for."""
    from tvm import tirx

    w = v if kind(v) in _WIDE else v.astype("float32")
    found = tirx.const(False, "bool")
    if positive:
        found = tirx.any(found, w == const(w, math.inf))
    return tirx.any(found, w == const(w, -math.inf)) if negative else found
