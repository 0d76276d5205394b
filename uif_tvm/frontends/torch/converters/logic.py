"""Comparisons, logic, bits and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from uif_tvm.frontends.torch.converters.arithmetic import promoted
from uif_tvm.frontends.torch.dtypes import is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import converts

_COMPARE = {
    "eq": relax.op.equal,
    "ne": relax.op.not_equal,
    "lt": relax.op.less,
    "le": relax.op.less_equal,
    "gt": relax.op.greater,
    "ge": relax.op.greater_equal,
}


def _register_compare(name: str, op: Callable[..., Any]) -> None:
    @converts(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def compare(cx: Emitter, a: Any, b: Any) -> Any:
        """Compare in the common dtype of both sides."""
        dtype = promoted(cx)
        x, y = cx.tensor(a, dtype), cx.tensor(b, dtype)
        if dtype == "bool":
            x, y = cx.cast(x, "int8"), cx.cast(y, "int8")
        return cx.emit(op(x, y))


for _name, _op in _COMPARE.items():
    _register_compare(_name, _op)


@converts("aten.logical_and.default")
def logical_and(cx: Emitter, a: Any, b: Any) -> Any:
    """Both non-zero."""
    return cx.emit(relax.op.logical_and(cx.cast(a, "bool"), cx.cast(b, "bool")))


@converts("aten.logical_or.default")
def logical_or(cx: Emitter, a: Any, b: Any) -> Any:
    """Either non-zero."""
    return cx.emit(relax.op.logical_or(cx.cast(a, "bool"), cx.cast(b, "bool")))


@converts("aten.logical_xor.default")
def logical_xor(cx: Emitter, a: Any, b: Any) -> Any:
    """Exactly one non-zero."""
    return cx.emit(relax.op.logical_xor(cx.cast(a, "bool"), cx.cast(b, "bool")))


@converts("aten.logical_not.default")
def logical_not(cx: Emitter, a: Any) -> Any:
    """Zero."""
    return cx.emit(relax.op.logical_not(cx.cast(a, "bool")))


def _bitwise(cx: Emitter, a: Any, b: Any, bits: Any, logic: Any) -> Any:
    dtype = cx.out_dtype
    x, y = cx.tensor(a, dtype), cx.tensor(b, dtype)
    return cx.emit((logic if dtype == "bool" else bits)(x, y))


@converts(
    "aten.bitwise_and.Tensor",
    "aten.bitwise_and.Scalar",
    "aten.bitwise_and.Scalar_Tensor",
    "aten.__and__.Tensor",
    "aten.__and__.Scalar",
)
def bitwise_and(cx: Emitter, a: Any, b: Any) -> Any:
    """``a & b``."""
    return _bitwise(cx, a, b, relax.op.bitwise_and, relax.op.logical_and)


@converts(
    "aten.bitwise_or.Tensor",
    "aten.bitwise_or.Scalar",
    "aten.bitwise_or.Scalar_Tensor",
    "aten.__or__.Tensor",
    "aten.__or__.Scalar",
)
def bitwise_or(cx: Emitter, a: Any, b: Any) -> Any:
    """``a | b``."""
    return _bitwise(cx, a, b, relax.op.bitwise_or, relax.op.logical_or)


@converts(
    "aten.bitwise_xor.Tensor",
    "aten.bitwise_xor.Scalar",
    "aten.bitwise_xor.Scalar_Tensor",
    "aten.__xor__.Tensor",
    "aten.__xor__.Scalar",
)
def bitwise_xor(cx: Emitter, a: Any, b: Any) -> Any:
    """``a ^ b``."""
    return _bitwise(cx, a, b, relax.op.bitwise_xor, relax.op.logical_xor)


@converts("aten.bitwise_not.default")
def bitwise_not(cx: Emitter, a: Any) -> Any:
    """``~a``; on booleans, not."""
    op = relax.op.logical_not if cx.out_dtype == "bool" else relax.op.bitwise_not
    return cx.emit(op(a))


_SHIFTS = (
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.bitwise_left_shift.Scalar_Tensor",
    "aten.__lshift__.Scalar",
    "aten.__lshift__.Tensor",
)


@converts(*_SHIFTS)
def left_shift(cx: Emitter, a: Any, b: Any) -> Any:
    """``a << b``; 0 for counts outside the type's bits."""
    return _shift(cx, a, b, left=True)


@converts(*(name.replace("left", "right").replace("lshift", "rshift") for name in _SHIFTS))
def right_shift(cx: Emitter, a: Any, b: Any) -> Any:
    """``a >> b`` with sign; counts outside the type's bits shift everything out."""
    return _shift(cx, a, b, left=False)


def _shift(cx: Emitter, a: Any, b: Any, left: bool) -> Any:
    op = relax.op.left_shift if left else relax.op.right_shift
    return cx.emit(op(cx.tensor(a, cx.out_dtype), cx.tensor(b, cx.out_dtype)))


@converts("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(cx: Emitter, condition: Any, a: Any, b: Any) -> Any:
    """``a`` where the condition holds, else ``b``."""
    dtype = cx.out_dtype
    x, y = cx.tensor(a, dtype), cx.tensor(b, dtype)
    return cx.emit(relax.op.where(cx.cast(condition, "bool"), x, y))


@converts("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(cx: Emitter, x: Any, mask: Any, value: Any) -> Any:
    """``value`` where the mask holds."""
    filled = cx.emit(relax.op.where(cx.cast(mask, "bool"), cx.tensor(value, cx.out_dtype), x))
    return cx.broadcast(filled, cx.out_shape)


@converts("aten.isnan.default")
def isnan(cx: Emitter, x: Any) -> Any:
    """Not a number; never for integers."""
    if not is_float(cx.dtype(x)):
        return cx.full(cx.out_shape, False, "bool")
    return cx.emit(relax.op.isnan(x))


@converts("aten.isinf.default")
def isinf(cx: Emitter, x: Any) -> Any:
    """Infinite of either sign; never for integers."""
    if not is_float(cx.dtype(x)):
        return cx.full(cx.out_shape, False, "bool")
    infinity = cx.const(float("inf"), cx.dtype(x))
    return cx.emit(relax.op.equal(cx.emit(relax.op.abs(x)), infinity))


@converts("aten.isfinite.default")
def isfinite(cx: Emitter, x: Any) -> Any:
    """Neither infinite nor NaN."""
    if not is_float(cx.dtype(x)):
        return cx.full(cx.out_shape, True, "bool")
    infinity = cx.const(float("inf"), cx.dtype(x))
    return cx.emit(relax.op.less(cx.emit(relax.op.abs(x)), infinity))


@converts("aten.isposinf.default", "aten.isneginf.default")
def is_signed_infinity(cx: Emitter, x: Any) -> Any:
    """Infinite with one sign."""
    if not is_float(cx.dtype(x)):
        return cx.full(cx.out_shape, False, "bool")
    value = float("inf") if "posinf" in str(cx.node.target) else float("-inf")
    return cx.emit(relax.op.equal(x, cx.const(value, cx.dtype(x))))


@converts("aten.signbit.default")
def signbit(cx: Emitter, x: Any) -> Any:
    """The sign bit, of zeros and NaN too."""
    from tvm import tirx

    dtype = cx.dtype(x)
    if dtype == "bool":
        return cx.full(cx.out_shape, False, "bool")
    if not is_float(dtype):
        return cx.emit(relax.op.less(x, cx.const(0, dtype)))
    bits = {"float64": "int64", "float32": "int32"}.get(dtype, "int16")
    return cx.elementwise(
        lambda v: tirx.reinterpret(bits, v) < tirx.const(0, bits), x, name="signbit"
    )
