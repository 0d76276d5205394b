"""Scalar TIR formulas shared by the converters."""

from __future__ import annotations

from typing import Any

from tvm import tirx


def dtype_of(x: Any) -> str:
    """Dtype name of a TIR expression."""
    return str(x.ty.dtype)


def like(value: float, x: Any) -> tirx.Expr:
    """A number in the dtype of ``x``."""
    return tirx.const(value, dtype_of(x))


def is_nan(x: Any) -> tirx.Expr:
    """``x != x``; false for integers."""
    if "float" not in dtype_of(x):
        return tirx.const(False, "bool")
    return tirx.isnan(x)


def not_equal(a: Any, b: Any) -> tirx.Expr:
    """``a != b``, true when either is NaN (TVM's own ``!=`` is false then)."""
    if "float" not in dtype_of(a):
        return a != b
    return tirx.any(tirx.isnan(a), tirx.isnan(b), a != b)


def nan_max(a: Any, b: Any) -> tirx.Expr:
    """The larger one, NaN when either is NaN (``max`` picks the second when unordered)."""
    if "float" not in dtype_of(a):
        return tirx.max(a, b)
    return tirx.Select(is_nan(a), a, tirx.Select(a > b, a, b))


def nan_min(a: Any, b: Any) -> tirx.Expr:
    """The smaller one, NaN when either is NaN."""
    if "float" not in dtype_of(a):
        return tirx.min(a, b)
    return tirx.Select(is_nan(a), a, tirx.Select(a < b, a, b))


def fmod(a: Any, b: Any) -> tirx.Expr:
    """C's ``fmod``: the exact remainder, with the sign of ``a``."""
    dtype = dtype_of(a)
    name = "fmod" if dtype == "float64" else "fmodf"
    return tirx.call_pure_extern(dtype, name, a, b)


def floor_remainder(a: Any, b: Any) -> tirx.Expr:
    """Python's ``%`` on floats: the sign of ``b``."""
    rest = fmod(a, b)
    zero = like(0, a)
    wrong = tirx.all(
        rest != zero, tirx.any(tirx.all(b < zero, rest > zero), tirx.all(b > zero, rest < zero))
    )
    return tirx.Select(wrong, rest + b, rest)


def floor_quotient(a: Any, b: Any) -> tirx.Expr:
    """Floor division of floats as c10's ``div_floor_floating`` does it."""
    zero, one = like(0, a), like(1, a)
    rest = fmod(a, b)
    quotient = (a - rest) / b
    crossed = tirx.all(rest != zero, differ(b < zero, rest < zero))
    quotient = tirx.Select(crossed, quotient - one, quotient)
    floor = tirx.floor(quotient)
    rounded = tirx.Select(quotient - floor > like(0.5, a), floor + one, floor)
    whole = tirx.Select(not_equal(quotient, zero), rounded, zero * (a / b))
    return tirx.Select(b == zero, a / b, whole)


def differ(a: Any, b: Any) -> tirx.Expr:
    """Exclusive or of two conditions (``!=`` on booleans has no code generator)."""
    return tirx.any(tirx.all(a, tirx.Not(b)), tirx.all(tirx.Not(a), b))


def safe_divisor(b: Any) -> tirx.Expr:
    """``b``, or 1 where dividing by it would trap: zero."""
    return tirx.Select(b == like(0, b), like(1, b), b)


def int_quotient(a: Any, b: Any, floor: bool) -> tirx.Expr:
    """Integer division that never traps: by zero gives 0, by -1 negates (wrapping)."""
    zero = like(0, a)
    if dtype_of(a).startswith("uint"):
        return tirx.Select(b == zero, zero, tirx.truncdiv(a, safe_divisor(b)))
    minus = like(-1, a)
    divisor = tirx.Select(tirx.any(b == zero, b == minus), like(1, a), b)
    quotient = tirx.truncdiv(a, divisor)
    if floor:
        rest = a - quotient * divisor
        down = tirx.all(rest != zero, differ(rest < zero, divisor < zero))
        quotient = tirx.Select(down, quotient - like(1, a), quotient)
    return tirx.Select(b == zero, zero, tirx.Select(b == minus, zero - a, quotient))


def int_remainder(a: Any, b: Any, floor: bool) -> tirx.Expr:
    """Integer remainder that never traps; the sign of ``b`` (floor) or of ``a``."""
    return tirx.Select(b == like(0, a), like(0, a), a - int_quotient(a, b, floor) * b)
