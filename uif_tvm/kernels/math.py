"""Elementary functions as plain arithmetic, so that compilers can run them on vectors.

Calls of ``expf``, ``tanhf`` and the like are taken apart into one scalar library call per lane;
the expressions here are multiply-adds, selects and bit operations only. They are for float32;
float16 and bfloat16 compute in float32, and float64 keeps the library functions.

Largest errors over all of float32, in units in the last place (ULP) of the correctly rounded
result, with fused multiply-adds; subnormal results count in steps of the smallest subnormal:

    exp 1   log 1   log1p 3   tanh 5   erf 5   sigmoid 3

NaN gives NaN, and infinities, zeros of both signs and subnormals give what IEEE 754 asks for.

Sources: argument reductions and polynomials of exp and log from the Cephes library (S. Moshier,
single precision); rational forms of tanh and erf as used by Eigen's vectorised math.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimExpr

#: Types computed in float32 and rounded once at the end.
_NARROW = ("float16", "bfloat16")


def _f32(value: float) -> Any:
    from tvm import tirx

    return tirx.const(value, "float32")


def _polynomial(x: PrimExpr, coefficients: Sequence[float]) -> PrimExpr:
    """Horner's scheme, highest power first."""
    result = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _f32(coefficient)
    return result


def _dispatch(
    x: PrimExpr, fast: Callable[[PrimExpr], PrimExpr], library: Callable[[PrimExpr], PrimExpr]
) -> PrimExpr:
    """``fast`` in float32 for float32 and narrower, ``library`` for float64."""
    x = x.asobject() if hasattr(x, "asobject") else x  # an element of a te.Tensor
    dtype = str(x.ty.dtype)
    if dtype == "float32":
        return fast(x)
    if dtype in _NARROW:
        return fast(x.astype("float32")).astype(dtype)
    return library(x)


def _bits(x: PrimExpr) -> PrimExpr:
    from tvm import tirx

    return tirx.reinterpret("int32", x)


def _float(bits: PrimExpr) -> PrimExpr:
    from tvm import tirx

    return tirx.reinterpret("float32", bits)


def _select(condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
    from tvm import tirx

    return tirx.Select(condition, yes, no)


def _power_of_two(n: PrimExpr) -> PrimExpr:
    """2^n for an int32 ``n`` in -126 .. 127."""
    from tvm import tirx

    return _float(tirx.shift_left(n + 127, tirx.const(23, "int32")))


_EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
    4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
)  # fmt: skip
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
#: Beyond these exp is 0 and infinity; within them 2^n stays representable in two factors.
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000


def _clip(x: PrimExpr, low: float, high: float) -> PrimExpr:
    """``x`` limited to ``low .. high``; comparisons are false for NaN, which so passes through."""
    x = _select(x < _f32(low), _f32(low), x)
    return _select(x > _f32(high), _f32(high), x)


def _exp32(x: PrimExpr) -> PrimExpr:
    """e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln(2) / 2."""
    from tvm import tirx

    clipped = _clip(x, _EXP_LOWEST, _EXP_HIGHEST)
    # Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum. The
    # trip through the bits keeps TVM from cancelling the addition with the subtraction.
    bits = _bits(clipped * _f32(_LOG2_E) + _f32(_ROUNDER))
    n = _float(bits) - _f32(_ROUNDER)
    r = clipped - n * _f32(_LN2_HIGH)
    r = r - n * _f32(_LN2_LOW)
    value = _polynomial(r, _EXP) * (r * r) + r + _f32(1.0)
    whole = bits - tirx.const(_ROUNDER_BITS, "int32")
    # Two factors, because 2^n itself overflows at the top and is subnormal at the bottom.
    half = tirx.shift_right(whole, tirx.const(1, "int32"))
    return value * _power_of_two(half) * _power_of_two(whole - half)


_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_SQRT_HALF = 0.707106781186547524
_SMALLEST_NORMAL = 1.17549435e-38


def _log_of_mantissa(m: PrimExpr, e: PrimExpr) -> PrimExpr:
    """log(1 + m) + e ln 2 for 1 + m in [sqrt(1/2), sqrt 2)."""
    z = m * m
    y = _polynomial(m, _LOG) * m * z + e * _f32(_LN2_LOW) - _f32(0.5) * z
    return m + y + e * _f32(_LN2_HIGH)


def _log32(x: PrimExpr) -> PrimExpr:
    """log(m 2^e) = log m + e ln 2 with m in [sqrt(1/2), sqrt 2)."""
    from tvm import tirx

    subnormal = x < _f32(_SMALLEST_NORMAL)
    normal = _select(subnormal, x * _f32(2.0**23), x)
    bits = _bits(normal)
    exponent = tirx.shift_right(bits, tirx.const(23, "int32")) - 126
    mantissa = _float(
        tirx.bitwise_or(
            tirx.bitwise_and(bits, tirx.const(0x007FFFFF, "int32")),
            tirx.const(0x3F000000, "int32"),
        )
    )
    e = exponent.astype("float32") - _select(subnormal, _f32(23.0), _f32(0.0))
    below = mantissa < _f32(_SQRT_HALF)
    e = e - _select(below, _f32(1.0), _f32(0.0))
    m = _select(below, mantissa + mantissa, mantissa) - _f32(1.0)
    value = _log_of_mantissa(m, e)
    infinity = _f32(float("inf"))
    value = _select(x < infinity, value, x)  # +inf and NaN are their own logarithms
    value = _select(x == _f32(0.0), -infinity, value)
    return _select(x < _f32(0.0), _f32(float("nan")), value)


def _log1p32(x: PrimExpr) -> PrimExpr:
    """log(1 + x): its own polynomial near zero; elsewhere rounding 1 + x costs under one ULP."""
    from tvm import tirx

    near = _log_of_mantissa(x, _f32(0.0))
    far = _log32(_f32(1.0) + x)
    middle = tirx.And(x > _f32(_SQRT_HALF - 1.0), x < _f32(2.0 * _SQRT_HALF - 1.0))
    return _select(middle, near, far)


_TANH_TOP = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_BOTTOM = (
    1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03,
)  # fmt: skip
_TANH_ONE, _TANH_LINEAR = 7.90531110763549805, 4e-4


def _odd_rational(
    x: PrimExpr, limit: float, top: Sequence[float], bottom: Sequence[float]
) -> PrimExpr:
    """x P(x^2) / Q(x^2) with x limited to -limit .. limit."""
    c = _clip(x, -limit, limit)
    square = c * c
    return c * (_polynomial(square, top) / _polynomial(square, bottom))


def _tanh32(x: PrimExpr) -> PrimExpr:
    from tvm import tirx

    value = _odd_rational(x, _TANH_ONE, _TANH_TOP, _TANH_BOTTOM)
    return _select(tirx.abs(x) < _f32(_TANH_LINEAR), x, value)


_ERF_TOP = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BOTTOM = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
_ERF_ONE = 4.0


def _erf32(x: PrimExpr) -> PrimExpr:
    return _clip(_odd_rational(x, _ERF_ONE, _ERF_TOP, _ERF_BOTTOM), -1.0, 1.0)


def _sigmoid32(x: PrimExpr) -> PrimExpr:
    """1 / (1 + e^-x), through e^-|x| so that nothing overflows."""
    from tvm import tirx

    e = _exp32(-tirx.abs(x))
    one = _f32(1.0)
    return _select(x < _f32(0.0), e, one) / (one + e)


def is_nan(x: PrimExpr) -> PrimExpr:
    """Whether ``x`` is NaN, by its bits.

    TVM's simplifier takes ``x != x`` for false, and its vectoriser takes ``isnan`` apart.
    """
    from tvm import tirx

    x = x.asobject() if hasattr(x, "asobject") else x
    if str(x.ty.dtype) == "float64":
        magnitude = tirx.bitwise_and(
            tirx.reinterpret("int64", x), tirx.const(0x7FFFFFFFFFFFFFFF, "int64")
        )
        return magnitude > tirx.const(0x7FF0000000000000, "int64")
    magnitude = tirx.bitwise_and(_bits(x.astype("float32")), tirx.const(0x7FFFFFFF, "int32"))
    return magnitude > tirx.const(0x7F800000, "int32")


def exp(x: PrimExpr) -> PrimExpr:
    """e^x."""
    from tvm import tirx

    return _dispatch(x, _exp32, tirx.exp)


def log(x: PrimExpr) -> PrimExpr:
    """Natural logarithm; -inf at zero, NaN below."""
    from tvm import tirx

    return _dispatch(x, _log32, tirx.log)


def log1p(x: PrimExpr) -> PrimExpr:
    """log(1 + x), accurate near zero."""
    from tvm import tirx

    return _dispatch(x, _log1p32, tirx.log1p)


def tanh(x: PrimExpr) -> PrimExpr:
    """Hyperbolic tangent."""
    from tvm import tirx

    return _dispatch(x, _tanh32, tirx.tanh)


def erf(x: PrimExpr) -> PrimExpr:
    """Error function."""
    from tvm import tirx

    return _dispatch(x, _erf32, tirx.erf)


def sigmoid(x: PrimExpr) -> PrimExpr:
    """1 / (1 + e^-x)."""
    from tvm import tirx

    return _dispatch(x, _sigmoid32, tirx.sigmoid)


def silu(x: PrimExpr) -> PrimExpr:
    """x sigmoid(x); -0 at minus infinity, as the limit is."""
    return _dispatch(x, lambda v: v * _sigmoid32(v), lambda v: v * sigmoid(v))


def gelu(x: PrimExpr) -> PrimExpr:
    """x (1 + erf(x / sqrt 2)) / 2."""

    from tvm import tirx

    def formula(v: PrimExpr) -> PrimExpr:
        def const(value: float) -> PrimExpr:
            return tirx.const(value, str(v.ty.dtype))

        return v * const(0.5) * (const(1.0) + erf(v * const(0.7071067811865476)))

    return _dispatch(x, formula, formula)


def gelu_tanh(x: PrimExpr) -> PrimExpr:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    from tvm import tirx

    def formula(v: PrimExpr) -> PrimExpr:
        def const(value: float) -> PrimExpr:
            return tirx.const(value, str(v.ty.dtype))

        inner = const(0.7978845608028654) * (v + const(0.044715) * v * v * v)
        return const(0.5) * v * (const(1.0) + tanh(inner))

    return _dispatch(x, formula, formula)


def softplus(x: PrimExpr, beta: float = 1.0, threshold: float = 20.0) -> PrimExpr:
    """log(1 + e^(beta x)) / beta; x itself where beta x exceeds ``threshold``."""
    from tvm import tirx

    def formula(v: PrimExpr) -> PrimExpr:
        def const(value: float) -> PrimExpr:
            return tirx.const(value, str(v.ty.dtype))

        t = v * const(beta)
        tail = log1p(exp(-tirx.abs(t)))
        smooth = (_select(t > const(0.0), t, const(0.0)) + tail) / const(beta)
        return _select(t > const(threshold), v, smooth)

    return _dispatch(x, formula, formula)
