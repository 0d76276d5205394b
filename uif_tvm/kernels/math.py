"""Elementary functions as plain arithmetic, so that compilers can run them on vectors.

Calls of ``expf``, ``tanhf`` and the like are taken apart into one scalar library call per lane.
Kernels therefore keep ``T.exp(x)`` and its kin as single calls, which every pass sees as cheap
nodes; the last lowering step (``uif_tvm.compiler.vector_math``) replaces them by the formulas
here: multiply-adds, selects and bit operations on vectors of any length. They are for float32;
float16 computes in float32, and float64 keeps the library functions.

Largest errors over all of float32, in units in the last place (ULP) of the correctly rounded
result, with fused multiply-adds; subnormal results count in steps of the smallest subnormal:

    exp 1.1   log 1   log1p 3   tanh 5   erf 5   sigmoid 3

NaN gives NaN, and infinities, zeros of both signs and subnormals give what IEEE 754 asks for.

Sources: argument reductions and polynomials of exp and log from the Cephes library (S. Moshier,
single precision); rational forms of tanh and erf as used by Eigen's vectorised math.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Expr = Any
#: Names a value: stores it once and returns an expression that reads it. Formulas name whatever
#: they use more than once, since expressions are trees and every other use would be a copy.
Keep = Callable[[Expr], Expr]

_EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
    4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
)  # fmt: skip
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
#: Beyond these exp is 0 and infinity; within them 2^n stays representable in two factors.
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
#: 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits of the sum.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000

_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_SQRT_HALF = 0.707106781186547524
_SMALLEST_NORMAL = 1.17549435e-38

_TANH_TOP = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_BOTTOM = (
    1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03,
)  # fmt: skip
_TANH_ONE, _TANH_LINEAR = 7.90531110763549805, 4e-4

_ERF_TOP = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BOTTOM = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
_ERF_ONE = 4.0


def _lanes(x: Expr) -> int:
    from tvm.runtime import DataType

    return int(DataType(str(x.ty.dtype)).lanes)


def _like(x: Expr, value: float, dtype: str = "float32") -> Expr:
    """A constant with as many lanes as ``x``."""
    from tvm import tirx

    scalar = tirx.const(value, dtype)
    return scalar if _lanes(x) == 1 else tirx.Broadcast(scalar, _lanes(x))


def _typed(x: Expr, dtype: str) -> str:
    return dtype if _lanes(x) == 1 else f"{dtype}x{_lanes(x)}"


def _bits(x: Expr) -> Expr:
    from tvm import tirx

    return tirx.reinterpret(_typed(x, "int32"), x)


def _float(bits: Expr) -> Expr:
    from tvm import tirx

    return tirx.reinterpret(_typed(bits, "float32"), bits)


def _select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    from tvm import tirx

    return tirx.Select(condition, yes, no)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, highest power first."""
    result = _like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _like(x, coefficient)
    return result


def _clip(keep: Keep, x: Expr, low: float, high: float) -> Expr:
    """``x`` limited to ``low .. high``; comparisons are false for NaN, which so passes through."""
    raised = keep(_select(x < _like(x, low), _like(x, low), x))
    return keep(_select(raised > _like(x, high), _like(x, high), raised))


def _power_of_two(n: Expr) -> Expr:
    """2^n for an int32 ``n`` in -126 .. 127."""
    from tvm import tirx

    return _float(tirx.shift_left(n + _like(n, 127, "int32"), _like(n, 23, "int32")))


def exp(keep: Keep, x: Expr) -> Expr:
    """e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln(2) / 2."""
    from tvm import tirx

    c = _clip(keep, x, _EXP_LOWEST, _EXP_HIGHEST)
    bits = keep(_bits(c * _like(x, _LOG2_E) + _like(x, _ROUNDER)))
    n = keep(_float(bits) - _like(x, _ROUNDER))
    r = keep(c - n * _like(x, _LN2_HIGH))
    r = keep(r - n * _like(x, _LN2_LOW))
    value = _polynomial(r, _EXP) * (r * r) + r + _like(x, 1.0)
    whole = keep(bits - _like(x, _ROUNDER_BITS, "int32"))
    # Two factors, because 2^n itself overflows at the top and is subnormal at the bottom.
    half = keep(tirx.shift_right(whole, _like(x, 1, "int32")))
    return value * _power_of_two(half) * _power_of_two(whole - half)


def _log_of_mantissa(keep: Keep, m: Expr, e: Expr) -> Expr:
    """log(1 + m) + e ln 2 for 1 + m in [sqrt(1/2), sqrt 2)."""
    z = keep(m * m)
    y = _polynomial(m, _LOG) * m * z + e * _like(m, _LN2_LOW) - _like(m, 0.5) * z
    return m + y + e * _like(m, _LN2_HIGH)


def log(keep: Keep, x: Expr) -> Expr:
    """log(m 2^e) = log m + e ln 2 with m in [sqrt(1/2), sqrt 2); -inf at zero, NaN below."""
    from tvm import tirx

    def const(value: float) -> Expr:
        return _like(x, value)

    def whole(value: int) -> Expr:
        return _like(x, value, "int32")

    subnormal = keep(_select(x < const(_SMALLEST_NORMAL), const(2.0**23), const(1.0)))
    bits = keep(_bits(x * subnormal))
    exponent = tirx.shift_right(bits, whole(23)) - whole(126)
    fraction = tirx.bitwise_and(bits, whole(0x007FFFFF))
    mantissa = keep(_float(tirx.bitwise_or(fraction, whole(0x3F000000))))
    below = mantissa < const(_SQRT_HALF)
    m = keep(_select(below, mantissa + mantissa, mantissa) - const(1.0))
    shift = _select(subnormal > const(1.0), const(23.0), const(0.0))
    e = exponent.astype(_typed(x, "float32")) - shift - _select(below, const(1.0), const(0.0))
    value = _log_of_mantissa(keep, m, keep(e))
    # +inf and NaN are their own logarithms.
    value = _select(x < const(float("inf")), value, x)
    value = _select(x == const(0.0), const(float("-inf")), value)
    return _select(x < const(0.0), const(float("nan")), value)


def log1p(keep: Keep, x: Expr) -> Expr:
    """log(1 + x): its own polynomial near zero; elsewhere rounding 1 + x costs a few ULP."""
    near = keep(_log_of_mantissa(keep, x, _like(x, 0.0)))
    far = keep(log(keep, keep(_like(x, 1.0) + x)))
    high = _select(x < _like(x, 2.0 * _SQRT_HALF - 1.0), near, far)
    value = keep(_select(x > _like(x, _SQRT_HALF - 1.0), high, far))
    return _select(x == _like(x, 0.0), x, value)  # -0 stays -0


def _odd_rational(
    keep: Keep, x: Expr, limit: float, top: Sequence[float], bottom: Sequence[float]
) -> Expr:
    """x P(x^2) / Q(x^2) within -limit .. limit, exactly -1 and 1 beyond."""
    c = _clip(keep, x, -limit, limit)
    square = keep(c * c)
    value = keep(c * (_polynomial(square, top) / _polynomial(square, bottom)))
    high = keep(_select(x > _like(x, limit), _like(x, 1.0), value))
    return _select(x < _like(x, -limit), _like(x, -1.0), high)


def tanh(keep: Keep, x: Expr) -> Expr:
    """Hyperbolic tangent."""
    value = keep(_odd_rational(keep, x, _TANH_ONE, _TANH_TOP, _TANH_BOTTOM))
    linear = keep(_select(x < _like(x, _TANH_LINEAR), x, value))
    return _select(x > _like(x, -_TANH_LINEAR), linear, value)


def erf(keep: Keep, x: Expr) -> Expr:
    """Error function."""
    value = keep(_odd_rational(keep, x, _ERF_ONE, _ERF_TOP, _ERF_BOTTOM))
    return _clip(keep, value, -1.0, 1.0)


def sigmoid(keep: Keep, x: Expr) -> Expr:
    """1 / (1 + e^-x), through e^-|x| so that nothing overflows."""
    zero, one = _like(x, 0.0), _like(x, 1.0)
    e = keep(exp(keep, keep(_select(x > zero, zero - x, x))))
    return _select(x < zero, e, one) / (one + e)


#: TIR intrinsic -> formula over float32 vectors. ``x`` is named already.
FORMULAS: dict[str, Callable[[Keep, Expr], Expr]] = {
    "tirx.exp": exp,
    "tirx.log": log,
    "tirx.log1p": log1p,
    "tirx.tanh": tanh,
    "tirx.erf": erf,
    "tirx.sigmoid": sigmoid,
}


def is_nan(x: Expr) -> Expr:
    """Whether a scalar ``x`` is NaN, by its bits.

    TVM's simplifier takes ``x != x`` for false, and its vectoriser takes ``isnan`` apart.
    """
    from tvm import tirx

    if str(x.ty.dtype) == "float64":
        magnitude = tirx.bitwise_and(
            tirx.reinterpret("int64", x), tirx.const(0x7FFFFFFFFFFFFFFF, "int64")
        )
        return magnitude > tirx.const(0x7FF0000000000000, "int64")
    magnitude = tirx.bitwise_and(_bits(x.astype("float32")), tirx.const(0x7FFFFFFF, "int32"))
    return magnitude > tirx.const(0x7F800000, "int32")
