"""Between real numbers and integers (or small floats) by a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.minifloat import (
    SMALL_INTEGERS,
    decoded,
    encoder,
    is_small_float,
)
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.tensors import dtype_name
from uif_tvm.frontends.onnx.values import Dynamic
from uif_tvm.runtime.elements import is_stored, stored_dtype

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", *SMALL_INTEGERS)


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer type."""
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def _aligned(
    ctx: NodeContext, index: int, rank: int, axis: int
) -> tuple[relax.Expr, Callable[..., Any]]:
    """A scale or zero point, and how to read it at an element's index."""
    shape = ctx.static_shape(index)
    expr = decoded(ctx, index)
    if not shape or shape == (1,):
        scalar = ctx.reshape(expr, ())
        return scalar, lambda tensor, *i: tensor()
    if len(shape) == 1:
        return expr, lambda tensor, *i: tensor(i[axis])
    if len(shape) != rank:
        raise ctx.invalid(f"a scale of shape {list(shape)} for a tensor of rank {rank}")
    block = int(ctx.attrs.get("block_size", 0)) or 1

    def blocked(tensor: Any, *i: Any) -> Any:
        place = [tirx.floordiv(at, block) if a == axis else at for a, at in enumerate(i)]
        return tensor(*[0 if shape[a] == 1 else at for a, at in enumerate(place)])

    return expr, blocked


def _check_parameter(ctx: NodeContext, index: int, axis: int) -> None:
    shape, dims = ctx.static_shape(index), ctx.shape(0)
    if len(shape) == 1 and shape[0] != 1:
        extent = dims[axis] if dims else 1
        if isinstance(extent, int) and extent != shape[0]:
            raise ctx.invalid(f"{shape[0]} scales or zero points for an axis of {extent}")
    if len(shape) > 1 and len(shape) == len(dims):
        block = int(ctx.attrs.get("block_size", 0)) or 1
        for at, (count, extent) in enumerate(zip(shape, dims, strict=True)):
            if not isinstance(extent, int):
                continue
            if count != 1 and count * (block if at == axis else 1) < extent:
                raise ctx.invalid(f"scales of shape {list(shape)} do not cover {list(dims)}")


@converter("DequantizeLinear")
@converter("DequantizeLinear", domain=MICROSOFT)
def dequantize(ctx: NodeContext) -> relax.Expr:
    """(x - zero point) * scale, per tensor, axis or block.

    The zero point of a small float can only be zero and is not read.
    """
    source = ctx.dtype(0)
    floating = is_small_float(source)
    if source not in INTEGERS and not floating:
        raise Unsupported(f"dequantisation of {source}")
    given = int(ctx.attrs.get("output_dtype", 0))
    target = dtype_name(given, "DequantizeLinear") if given else ctx.dtype(1)
    if is_stored(target):
        raise Unsupported(f"dequantisation to {target}")
    rank = ctx.rank(0)
    axis = ctx.axis(int(ctx.attrs.get("axis", 1)), rank) if ctx.static_shape(1) else 0
    _check_parameter(ctx, 1, axis) if ctx.static_shape(1) not in ((), (1,)) else None
    scale, scale_at = _aligned(ctx, 1, rank, axis)
    zeros = [_aligned(ctx, 2, rank, axis)] if ctx.has(2) and not floating else []

    def compute(x: te.Tensor, s: te.Tensor, *z: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            value = x(*i) if floating else x(*i).astype("int32")
            if z:
                value = value - zeros[0][1](z[0], *i).astype("int32")
            wide = scale_at(s, *i).astype("float32")
            return (value.astype("float32") * wide).astype(target)

        return te.compute(x.shape, at, name="dequantize")

    return ctx.te(compute, decoded(ctx, 0), scale, *[z[0] for z in zeros], name="dequantize")


@converter("QuantizeLinear")
@converter("QuantizeLinear", domain=MICROSOFT)
def quantize(ctx: NodeContext) -> Dynamic:
    """saturate(round(x / scale) + zero point), ties to even.

    The quotient is rounded to the scale's dtype, or to the one that ``precision`` names. The zero
    point of an 8-bit float can only be zero and is not read.
    """
    given = int(ctx.attrs.get("output_dtype", 0))
    target = dtype_name(given, "QuantizeLinear") if given and not ctx.has(2) else "uint8"
    target = ctx.dtype(2) if ctx.has(2) else target
    floating = is_small_float(target)
    if target not in INTEGERS and not floating:
        raise Unsupported(f"quantisation to {target}")
    asked = int(ctx.attrs.get("precision", 0))
    precision = dtype_name(asked, "QuantizeLinear") if asked else ctx.dtype(1)
    rank = ctx.rank(0)
    axis = ctx.axis(int(ctx.attrs.get("axis", 1)), rank) if ctx.static_shape(1) else 0
    _check_parameter(ctx, 1, axis) if ctx.static_shape(1) not in ((), (1,)) else None
    scale, scale_at = _aligned(ctx, 1, rank, axis)
    zeros = [_aligned(ctx, 2, rank, axis)] if ctx.has(2) and not floating else []
    encode = encoder(target, bool(ctx.attrs.get("saturate", 1))) if floating else None

    def compute(x: te.Tensor, s: te.Tensor, *z: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            zero = zeros[0][1](z[0], *i).astype("int32") if z else tirx.const(0, "int32")
            value = x(*i).astype("float32") / scale_at(s, *i).astype("float32")
            if precision in ("float16", "bfloat16"):
                value = value.astype(precision).astype("float32")
            return encode(value) if encode else saturate(value, zero, target)

        return te.compute(x.shape, at, name="quantize")

    made = ctx.te(compute, decoded(ctx, 0), scale, *[z[0] for z in zeros], name="quantize")
    return Dynamic(made, element=target if is_stored(target) else None)


def saturate(value: Any, zero: Any, dtype: str) -> Any:
    """round(value) + zero, clamped to the range of ``dtype``."""
    low, high = limits(dtype)
    shifted = tirx.nearbyint(value) + zero.astype("float32")
    bounded = tirx.max(
        tirx.min(shifted, tirx.const(float(high), "float32")), tirx.const(float(low), "float32")
    )
    return bounded.astype("int32").astype(stored_dtype(dtype))


@converter("DynamicQuantizeLinear")
def dynamic_quantize(ctx: NodeContext) -> list[relax.Expr]:
    """uint8 by the tensor's own range, which always includes 0."""
    x = ctx.expr(0)
    zero = ctx.const(0.0, "float32")
    top = ctx.emit(relax.op.maximum(ctx.emit(relax.op.max(x)), zero))
    bottom = ctx.emit(relax.op.minimum(ctx.emit(relax.op.min(x)), zero))

    def scale_of(hi: te.Tensor, lo: te.Tensor) -> te.Tensor:
        return te.compute((), lambda: (hi() - lo()) / tirx.const(255.0, "float32"), name="scale")

    def zero_of(lo: te.Tensor, s: te.Tensor) -> te.Tensor:
        def at() -> Any:
            nothing = s() == tirx.const(0.0, "float32")
            safe = tirx.Select(nothing, tirx.const(1.0, "float32"), s())
            return saturate(
                tirx.const(0.0, "float32") - lo() / safe, tirx.const(0, "int32"), "uint8"
            )

        return te.compute((), at, name="zero_point")

    def quantise(a: te.Tensor, s: te.Tensor, z: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            nothing = s() == tirx.const(0.0, "float32")
            safe = tirx.Select(nothing, tirx.const(1.0, "float32"), s())
            return saturate(a(*i) / safe, z().astype("int32"), "uint8")

        return te.compute(a.shape, at, name="dynamic_quantize")

    scale = ctx.te(scale_of, top, bottom, name="quantize_scale")
    point = ctx.te(zero_of, bottom, scale, name="quantize_zero_point")
    return [ctx.te(quantise, x, scale, point, name="dynamic_quantize"), scale, point]
