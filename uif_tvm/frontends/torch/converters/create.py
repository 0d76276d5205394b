"""Tensors whose values depend on nothing but their arguments."""

from __future__ import annotations

from typing import Any

from tvm import relax

from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def _number(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    raise RefusedError(f"fill value {value!r} is not a plain number")


@converts("aten.full_like.default", "aten.full.default", "aten.new_full.default")
def full(cx: Emitter, _: Any, value: Any, *args: Any) -> Any:
    """All elements one number."""
    if "new_full" in str(cx.node.target):
        value = args[0]
    return cx.full(cx.out_shape, _number(value), cx.out_dtype)


@converts(
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.zeros.default",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty.memory_format",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
)
def zeros(cx: Emitter, *_: Any) -> Any:
    """Zeros; memory that PyTorch leaves uninitialised is zero here."""
    return cx.full(cx.out_shape, 0, cx.out_dtype)


@converts("aten.ones_like.default", "aten.new_ones.default", "aten.ones.default")
def ones(cx: Emitter, *_: Any) -> Any:
    """Ones."""
    return cx.full(cx.out_shape, 1, cx.out_dtype)


@converts("aten.fill.Scalar", "aten.fill.Tensor")
def fill(cx: Emitter, x: Any, value: Any) -> Any:
    """All elements one number, given as a number or a 0-d tensor."""
    return cx.broadcast(cx.tensor(value, cx.out_dtype), cx.out_shape)


@converts("aten.copy.default")
def copy(cx: Emitter, x: Any, source: Any, *_: Any) -> Any:
    """``source`` in the dtype and shape of ``x``."""
    return cx.broadcast(cx.cast(source, cx.out_dtype), cx.out_shape)


@converts("aten.scalar_tensor.default")
def scalar_tensor(cx: Emitter, value: Any, *_: Any) -> Any:
    """A number as a 0-d tensor."""
    if isinstance(value, (bool, int, float)):
        return cx.const(value, cx.out_dtype)
    shape = relax.ShapeExpr([value])
    return cx.cast(cx.reshape(cx.emit(relax.op.shape_to_tensor(shape)), []), cx.out_dtype)


@converts("aten.arange.start_step", "prims.iota.default")
def arange(cx: Emitter, *args: Any) -> Any:
    """An arithmetic sequence of a length that the inputs' sizes decide."""
    from tvm import te, tirx

    if "iota" in str(cx.node.target):
        _, start, step = args[:3]
    else:
        start, _, step = args[:3]
    dtype = cx.out_dtype
    (length,) = cx.out_shape

    def kernel(first: Any) -> Any:
        del first
        return te.compute(
            [length],
            lambda i: tirx.Cast(dtype, start) + tirx.Cast(dtype, i) * tirx.const(step, dtype),
            name="arange",
        )

    if not isinstance(step, (int, float)):
        raise RefusedError("arange with a step that depends on sizes is not supported")
    if isinstance(start, (int, float)):
        start = tirx.const(start, dtype)
    return cx.te(kernel, cx.const(0, dtype), name="arange")


@converts("aten.tril.default")
def tril(cx: Emitter, x: Any, diagonal: int = 0) -> Any:
    """Zero above a diagonal."""
    return _triangle(cx, x, diagonal, upper=False)


@converts("aten.triu.default")
def triu(cx: Emitter, x: Any, diagonal: int = 0) -> Any:
    """Zero below a diagonal."""
    return _triangle(cx, x, diagonal, upper=True)


def _triangle(cx: Emitter, x: Any, diagonal: int, upper: bool) -> Any:
    if not isinstance(diagonal, int):
        raise RefusedError("a triangle from a diagonal that depends on sizes is not supported")
    return cx.op("trilu", x, k=diagonal, upper=upper)
