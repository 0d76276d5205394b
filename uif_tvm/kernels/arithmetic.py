"""Arithmetic and comparison of two elements, exact at the edges of their types.

Each function takes scalar expressions of one type. Nothing here traps: integers divided by zero
give zero, and the smallest integer divided by -1 wraps.
"""

from __future__ import annotations

from typing import Any

from uif_tvm.kernels import wraparound
from uif_tvm.kernels.functions import const, is_float, kind, select
from uif_tvm.kernels.math import is_nan

Expr = Any


def _may_be_nan(v: Expr) -> bool:
    """Whether an expression is anything but a known number."""
    from tvm import tirx

    if not is_float(v):
        return False
    return not (isinstance(v, tirx.FloatImm) and v.value == v.value)


def _extreme(a: Expr, b: Expr, larger: bool) -> Expr:
    """The larger (smaller) one; NaN on either side wins, as NumPy and PyTorch have it."""
    from tvm import tirx

    if not _may_be_nan(a):
        a, b = b, a
    if not _may_be_nan(b):  # where nothing is known to be NaN, one comparison lets it through
        return select(a < b if larger else a > b, b, a)
    better = a > b if larger else a < b
    return select(tirx.Or(better, is_nan(a)), a, b)


def add(a: Expr, b: Expr) -> Expr:
    """``a + b``; integers wrap around."""
    return a + b if is_float(a) else wraparound.add(a, b)


def multiply(a: Expr, b: Expr) -> Expr:
    """``a * b``; integers wrap around."""
    return a * b if is_float(a) else wraparound.multiply(a, b)


def subtract(a: Expr, b: Expr) -> Expr:
    """``a - b``; integers wrap around.

    That of floats is written as ``a + b * -1``, which LLVM makes a subtraction again.

    TVM's simplifier takes floats for real numbers where it sees a difference: ``x - x`` becomes 0
    even for NaN, and ``(x + y) - y`` becomes ``x``, so that rounding by adding and taking away a
    large number did nothing once both were one kernel.
    """
    return a + b * const(b, -1.0) if is_float(a) else wraparound.subtract(a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    """The larger one; NaN on either side wins."""
    return _extreme(a, b, True)


def minimum(a: Expr, b: Expr) -> Expr:
    """The smaller one; NaN on either side wins."""
    return _extreme(a, b, False)


def not_equal(a: Expr, b: Expr) -> Expr:
    """``a != b``; true when either is NaN, where TVM's own ``!=`` is false."""
    from tvm import tirx

    found = a != b
    for v in (a, b):
        if _may_be_nan(v):
            found = tirx.Or(found, is_nan(v))
    return found


def equal(a: Expr, b: Expr) -> Expr:
    """``a == b``; of one value with itself too, which TVM's simplifier takes for true."""
    from tvm import tirx

    return tirx.And(a == b, tirx.Not(is_nan(a if _may_be_nan(a) else b))) if is_float(a) else a == b


def differ(a: Expr, b: Expr) -> Expr:
    """Exclusive or of two conditions (``!=`` on booleans has no code generator)."""
    from tvm import tirx

    return tirx.any(tirx.all(a, tirx.Not(b)), tirx.all(tirx.Not(a), b))


# -- division -------------------------------------------------------------------------------


def negation(v: Expr) -> Expr:
    """The opposite truth value, in a form in which ``not (x >= y)`` stays true for NaN.

    TVM's simplifier makes ``x < y`` of it, which is false.
    """
    from tvm import tirx

    return tirx.EQ(v.astype("int8"), tirx.const(0, "int8"))


def either(a: Expr, b: Expr) -> Expr:
    """Whether one of two truth values is true, in a form that the simplifier leaves alone.

    It takes ``x < y or x >= y`` for true, which is false for NaN.
    """
    from tvm import tirx

    together = tirx.bitwise_or(a.astype("int8"), b.astype("int8"))
    return tirx.NE(together, tirx.const(0, "int8"))


def divide(a: Expr, b: Expr) -> Expr:
    """The quotient; of integers, rounded toward zero."""
    return a / b if is_float(a) else _int_quotient(a, b, floor=False)


def floor_divide(a: Expr, b: Expr) -> Expr:
    """The quotient rounded down, as Python's ``//``."""
    return _float_floor(a, b) if is_float(a) else _int_quotient(a, b, floor=True)


def remainder(a: Expr, b: Expr) -> Expr:
    """C's remainder: the sign of ``a``."""
    return _fmod(a, b) if is_float(a) else _int_remainder(a, b, floor=False)


def floor_remainder(a: Expr, b: Expr) -> Expr:
    """Python's remainder: the sign of ``b``."""
    return _floor_fmod(a, b) if is_float(a) else _int_remainder(a, b, floor=True)


def _int_quotient(a: Expr, b: Expr, floor: bool) -> Expr:
    from tvm import tirx

    zero, one = const(a, 0), const(a, 1)
    if kind(a).startswith("uint"):
        return select(b == zero, zero, tirx.truncdiv(a, select(b == zero, one, b)))
    minus = const(a, -1)
    divisor = select(tirx.any(b == zero, b == minus), one, b)
    quotient = tirx.truncdiv(a, divisor)
    if floor:
        rest = a - quotient * divisor
        down = tirx.all(rest != zero, differ(rest < zero, divisor < zero))
        quotient = select(down, quotient - one, quotient)
    return select(b == zero, zero, select(b == minus, zero - a, quotient))


def _int_remainder(a: Expr, b: Expr, floor: bool) -> Expr:
    return select(b == const(a, 0), const(a, 0), a - _int_quotient(a, b, floor) * b)


def _fmod(a: Expr, b: Expr) -> Expr:
    """The exact remainder, by the C library."""
    from tvm import tirx

    dtype = kind(a)
    if dtype not in ("float32", "float64"):
        return _fmod(a.astype("float32"), b.astype("float32")).astype(dtype)
    return tirx.call_pure_extern(dtype, "fmod" if dtype == "float64" else "fmodf", a, b)


def _floor_fmod(a: Expr, b: Expr) -> Expr:
    from tvm import tirx

    rest = _fmod(a, b)
    zero = const(a, 0)
    wrong = tirx.all(
        rest != zero, tirx.any(tirx.all(b < zero, rest > zero), tirx.all(b > zero, rest < zero))
    )
    # Zeros take the sign of the divisor, as Python has it.
    signed_zero = select(b < zero, const(a, -0.0), select(b > zero, zero, rest))
    return select(wrong, rest + b, select(rest == zero, signed_zero, rest))


def _float_floor(a: Expr, b: Expr) -> Expr:
    """Python's ``//`` on floats: (a - remainder) / b, corrected to the whole number it is near."""
    from tvm import tirx

    zero, one = const(a, 0), const(a, 1)
    rest = _fmod(a, b)
    quotient = (a - rest) / b
    crossed = tirx.all(rest != zero, differ(b < zero, rest < zero))
    quotient = select(crossed, quotient - one, quotient)
    floor = tirx.floor(quotient)
    rounded = select(quotient - floor > const(a, 0.5), floor + one, floor)
    whole = select(not_equal(quotient, zero), rounded, zero * (a / b))
    return select(b == zero, a / b, whole)


# -- powers and bits ------------------------------------------------------------------------


def power(a: Expr, b: Expr) -> Expr:
    """a^b; of integers exact modulo the type's range."""
    from tvm import tirx

    if not is_float(a):
        return _int_power(a, b)
    if kind(a) in ("float32", "float64"):
        return tirx.pow(a, b.astype(kind(a)))
    return tirx.pow(a.astype("float32"), b.astype("float32")).astype(kind(a))


def _int_power(base: Expr, exponent: Expr) -> Expr:
    """Square and multiply over 6 bits.

    Exponents above 63 overflow every integer base but 0, 1 and -1, for which the low bits decide;
    negative ones give 1, -1 or 0.
    """
    from tvm import tirx

    one, zero = const(base, 1), const(base, 0)
    odd_exponent = tirx.bitwise_and(exponent, const(exponent, 1)) == const(exponent, 1)
    last = select(odd_exponent, const(exponent, 63), const(exponent, 62))
    rest = tirx.min(exponent, last)
    result, square = one, base
    for _ in range(6):
        odd = tirx.bitwise_and(rest, const(exponent, 1)) == const(exponent, 1)
        result = result * select(odd, square, one)
        square = square * square
        rest = tirx.shift_right(rest, const(exponent, 1))
    if kind(exponent).startswith("uint"):
        return result
    inverse = select(base == one, one, zero)
    if not kind(base).startswith("uint"):
        alternating = select(odd_exponent, const(base, -1), one)
        inverse = select(base == const(base, -1), alternating, inverse)
    return select(exponent < const(exponent, 0), inverse, result)


def shift_left(a: Expr, b: Expr) -> Expr:
    """a 2^b; 0 for shifts by the type's width or more, and by less than nothing."""
    from tvm import tirx

    inside, count = _shift_count(a, b)
    return select(inside, tirx.shift_left(a, count), const(a, 0))


def shift_right(a: Expr, b: Expr) -> Expr:
    """a / 2^b rounded down; what is shifted out altogether leaves the sign."""
    from tvm import tirx

    inside, count = _shift_count(a, b)
    beyond = const(a, 0)
    if not kind(a).startswith("uint"):
        beyond = tirx.shift_right(a, const(a, _width(a) - 1))
    return select(inside, tirx.shift_right(a, count), beyond)


def _width(a: Expr) -> int:
    return int("".join(c for c in kind(a) if c.isdigit()))


def _shift_count(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(whether the count is within the type's bits, the count or 0)."""
    from tvm import tirx

    inside = b < const(b, _width(a))
    if not kind(b).startswith("uint"):
        inside = tirx.all(b >= const(b, 0), inside)
    return inside, select(inside, b, const(b, 0)).astype(kind(a))
