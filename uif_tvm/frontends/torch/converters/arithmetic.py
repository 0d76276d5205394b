"""Binary arithmetic with PyTorch's dtype promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax, tirx

from uif_tvm.frontends.torch.converters import scalar
from uif_tvm.frontends.torch.dtypes import compute_dtype, dtype_name, is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts
from uif_tvm.kernels import integer


def promoted(cx: Emitter, first: int = 0, second: int = 1) -> str:
    """The common dtype of two arguments of the current node, by PyTorch's rules."""
    a, b = (_plain(cx.source(position)) for position in (first, second))
    return dtype_name(torch.result_type(a, b))


def _plain(value: Any) -> Any:
    """Symbolic numbers as plain ones: only their kind matters for promotion."""
    if isinstance(value, torch.SymInt):
        return 1
    if isinstance(value, torch.SymFloat):
        return 1.0
    return value


def _linear(cx: Emitter, a: Any, b: Any, alpha: Any, op: Callable[..., Any], logic: Any) -> Any:
    dtype = cx.out_dtype
    if dtype == "bool":
        return cx.emit(logic(cx.tensor(a, dtype), cx.tensor(b, dtype)))
    work = compute_dtype(dtype)
    x, y = cx.tensor(a, work), cx.tensor(b, work)
    if alpha not in (1, None):
        y = cx.emit(relax.op.multiply(y, cx.const(alpha, work)))
    return cx.cast(cx.emit(op(x, y)), dtype)


@converts("aten.add.Tensor", "aten.add.Scalar")
def add(cx: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    """``a + alpha * b``; on booleans, or."""
    return _linear(cx, a, b, alpha, relax.op.add, relax.op.logical_or)


@converts("aten.sub.Tensor", "aten.sub.Scalar")
def sub(cx: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    """``a - alpha * b``."""
    return _linear(cx, a, b, alpha, relax.op.subtract, relax.op.logical_xor)


@converts("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(cx: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    """``b - alpha * a``."""
    return _linear(cx, b, a, alpha, relax.op.subtract, relax.op.logical_xor)


@converts("aten.mul.Tensor", "aten.mul.Scalar")
def mul(cx: Emitter, a: Any, b: Any) -> Any:
    """``a * b``; on booleans, and."""
    return _linear(cx, a, b, 1, relax.op.multiply, relax.op.logical_and)


@converts("aten.div.Tensor", "aten.div.Scalar")
def div(cx: Emitter, a: Any, b: Any) -> Any:
    """True division: integers give floats."""
    return _linear(cx, a, b, 1, relax.op.divide, None)


@converts("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(cx: Emitter, a: Any, b: Any, rounding_mode: str | None) -> Any:
    """Division rounded down (``floor``) or towards zero (``trunc``)."""
    if rounding_mode is None:
        return div(cx, a, b)
    dtype = cx.out_dtype
    floor = rounding_mode == "floor"
    work = compute_dtype(dtype)
    x, y = cx.tensor(a, work), cx.tensor(b, work)
    if not is_float(dtype):
        return cx.emit((relax.op.floor_divide if floor else relax.op.divide)(x, y))
    if floor:
        result = cx.emit(relax.op.floor_divide(x, y))
    else:
        result = cx.emit(relax.op.trunc(cx.emit(relax.op.divide(x, y))))
    return cx.cast(result, dtype)


@converts("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(cx: Emitter, a: Any, b: Any) -> Any:
    """Division rounded down."""
    return div_mode(cx, a, b, "floor")


@converts("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(cx: Emitter, a: Any, b: Any) -> Any:
    """Remainder with the divisor's sign."""
    return _remainder(cx, a, b, relax.op.floor_mod)


@converts("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(cx: Emitter, a: Any, b: Any) -> Any:
    """Remainder with the dividend's sign."""
    return _remainder(cx, a, b, relax.op.mod)


def _remainder(cx: Emitter, a: Any, b: Any, op: Callable[..., Any]) -> Any:
    work = compute_dtype(cx.out_dtype)
    return cx.cast(cx.emit(op(cx.tensor(a, work), cx.tensor(b, work))), cx.out_dtype)


@converts("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(cx: Emitter, base: Any, exponent: Any) -> Any:
    """Power with a tensor of exponents."""
    dtype = cx.out_dtype
    if dtype == "bool":
        raise RefusedError("power of booleans is not supported")
    work = compute_dtype(dtype)
    x, y = cx.tensor(base, work), cx.tensor(exponent, work)
    return cx.cast(cx.emit(relax.op.power(x, y)), dtype)


@converts("aten.pow.Tensor_Scalar")
def pow_scalar(cx: Emitter, base: Any, exponent: Any) -> Any:
    """Power with one exponent: products for small whole ones, as PyTorch does."""
    dtype = cx.out_dtype
    if dtype == "bool":
        raise RefusedError("power of booleans is not supported")
    work = compute_dtype(dtype)
    x = cx.tensor(base, work)
    if not is_float(dtype):
        if exponent < 0:
            return cx.emit(relax.op.power(x, cx.tensor(exponent, dtype)))
        return _repeated_product(cx, x, int(exponent))
    special = {
        0.5: relax.op.sqrt,
        -0.5: relax.op.rsqrt,
        1.0: lambda v: v,
        2.0: lambda v: relax.op.multiply(v, v),
        3.0: lambda v: relax.op.multiply(relax.op.multiply(v, v), v),
        -1.0: lambda v: relax.op.divide(cx.const(1, work), v),
        -2.0: lambda v: relax.op.divide(cx.const(1, work), relax.op.multiply(v, v)),
    }
    if exponent == 0:
        return cx.full(cx.out_shape, 1, dtype)
    make = special.get(float(exponent))
    result = relax.op.power(x, cx.const(exponent, work)) if make is None else make(x)
    return cx.cast(cx.emit(result), dtype)


def _repeated_product(cx: Emitter, x: relax.Expr, exponent: int) -> relax.Expr:
    result = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else cx.emit(relax.op.multiply(result, square))
        exponent >>= 1
        if exponent:
            square = cx.emit(relax.op.multiply(square, square))
    return cx.full(cx.out_shape, 1, cx.out_dtype) if result is None else result


@converts("aten.maximum.default", "aten.fmax.default")
def maximum(cx: Emitter, a: Any, b: Any) -> Any:
    """The larger value; ``maximum`` keeps NaN, ``fmax`` drops it."""
    return _extreme(cx, a, b, relax.op.maximum, relax.op.logical_or)


@converts("aten.minimum.default", "aten.fmin.default")
def minimum(cx: Emitter, a: Any, b: Any) -> Any:
    """The smaller value; ``minimum`` keeps NaN, ``fmin`` drops it."""
    return _extreme(cx, a, b, relax.op.minimum, relax.op.logical_and)


def _extreme(cx: Emitter, a: Any, b: Any, pick: Any, logic: Any) -> Any:
    dtype = cx.out_dtype
    x, y = cx.tensor(a, dtype), cx.tensor(b, dtype)
    if dtype == "bool":
        return cx.emit(logic(x, y))
    result = cx.emit(pick(x, y))
    if is_float(dtype) and str(cx.node.target).startswith(("aten.fmax", "aten.fmin")):
        for one, other in ((x, y), (y, x)):
            result = cx.emit(relax.op.where(cx.emit(relax.op.isnan(one)), other, result))
    return result


@converts("aten.atan2.default")
def atan2(cx: Emitter, a: Any, b: Any) -> Any:
    """Angle of the point (b, a)."""
    function = "atan2" if cx.out_dtype == "float64" else "atan2f"
    return _external(cx, function, a, b)


@converts("aten.hypot.default")
def hypot(cx: Emitter, a: Any, b: Any) -> Any:
    """Length of (a, b) without overflow."""
    return _external(cx, "hypot" if cx.out_dtype == "float64" else "hypotf", a, b)


@converts("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(cx: Emitter, a: Any, b: Any) -> Any:
    """Magnitude of ``a``, sign of ``b`` (of its zero and NaN too)."""
    return _external(cx, "copysign" if cx.out_dtype == "float64" else "copysignf", a, b)


@converts("aten.nextafter.default")
def nextafter(cx: Emitter, a: Any, b: Any) -> Any:
    """The next representable number from ``a`` towards ``b``."""
    if cx.out_dtype not in ("float32", "float64"):
        raise RefusedError(f"nextafter of {cx.out_dtype} is not supported")
    return _external(cx, "nextafter" if cx.out_dtype == "float64" else "nextafterf", a, b)


def _external(cx: Emitter, function: str, *args: Any) -> Any:
    """A function of the C mathematical library, applied to every element."""
    dtype = cx.out_dtype
    work = compute_dtype(dtype)
    tensors = [cx.tensor(arg, work) for arg in args]
    result = cx.elementwise(
        lambda *values: tirx.call_pure_extern(work, function, *values), *tensors, name=function
    )
    return cx.cast(result, dtype)


@converts("aten.gcd.default")
def gcd(cx: Emitter, a: Any, b: Any) -> Any:
    """Greatest common divisor."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    x, y = (cx.broadcast(cx.tensor(v, cx.out_dtype), cx.out_shape) for v in (a, b))
    return cx.te(integer.greatest_common_divisor, x, y, name="gcd")


@converts("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(cx: Emitter, start: Any, end: Any, weight: Any) -> Any:
    """Interpolation, from the nearer end as PyTorch does."""
    work = compute_dtype(cx.out_dtype)

    def formula(a: Any, b: Any, w: Any) -> Any:
        half, one = scalar.like(0.5, a), scalar.like(1, a)
        return tirx.Select(tirx.abs(w) < half, a + w * (b - a), b - (b - a) * (one - w))

    args = (cx.tensor(value, work) for value in (start, end, weight))
    return cx.cast(cx.elementwise(formula, *args, name="lerp"), cx.out_dtype)


@converts("aten.addcmul.default")
def addcmul(cx: Emitter, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    """``x + value * a * b``."""
    return _addc(cx, x, a, b, value, relax.op.multiply)


@converts("aten.addcdiv.default")
def addcdiv(cx: Emitter, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    """``x + value * a / b``."""
    return _addc(cx, x, a, b, value, relax.op.divide)


def _addc(cx: Emitter, x: Any, a: Any, b: Any, value: Any, op: Any) -> Any:
    work = compute_dtype(cx.out_dtype)
    p, q, r = (cx.tensor(arg, work) for arg in (x, a, b))
    if value != 1:
        q = cx.emit(relax.op.multiply(cx.const(value, work), q))
    return cx.cast(cx.emit(relax.op.add(p, cx.emit(op(q, r)))), cx.out_dtype)
