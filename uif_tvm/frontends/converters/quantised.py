"""Quantised operators.

Integer products are exact and run on the float kernels: products of 8-bit numbers and their sums
are whole numbers, and float32 holds those exactly below 2^24. The reduction is cut where that
bound would be passed, and the parts are added as int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.conv import (
    apply_symbolic_pads,
    check_window,
    emit_conv,
    spatial,
    window_pads,
)
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.minifloat import (
    SMALL_INTEGERS,
    decoded,
    encoder,
    is_small_float,
)
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.tensors import dtype_name
from uif_tvm.frontends.onnx.values import Array, Dim, Dynamic, shape_of
from uif_tvm.runtime.elements import is_stored, stored_dtype

EXACT = 1 << 24
"""Whole numbers below this are exact in float32."""

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", *SMALL_INTEGERS)


def _limits(dtype: str) -> tuple[int, int]:
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
    low, high = _limits(dtype)
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


def shifted(ctx: NodeContext, index: int, zero: int, axis: int) -> tuple[relax.Expr, int]:
    """An integer input minus its zero point as float32, and a bound on its magnitude.

    ``axis`` is the one a vector zero point runs along.
    """
    dtype = ctx.dtype(index)
    low, high = _limits(dtype)
    array, points = ctx.array(index), ctx.array(zero) if ctx.has(zero) else np.zeros((), np.int32)
    rank = ctx.rank(index)
    if array is not None and points is not None:
        whole = array.astype(np.int32) - _along(points.astype(np.int32), rank, axis)
        bound = int(np.abs(whole).max(initial=1))
        return ctx.importer.constant(whole.astype(np.float32)), max(bound, 1)
    expr = ctx.cast(ctx.expr(index), "float32")
    if points is not None:
        bound = max(high - int(points.min(initial=0)), int(points.max(initial=0)) - low)
        if points.any():
            shift = ctx.const(_along(points, rank, axis), "float32")
            expr = ctx.emit(relax.op.subtract(expr, shift))
        return expr, bound
    shape = ctx.static_shape(zero)
    wide = ctx.cast(ctx.expr(zero), "float32")
    if len(shape) == 1 and shape[0] > 1:
        wide = ctx.reshape(wide, [shape[0] if a == axis else 1 for a in range(rank)])
    elif len(shape) <= 1:
        wide = ctx.reshape(wide, ())
    return ctx.emit(relax.op.subtract(expr, wide)), high - low


def _along(points: Array, rank: int, axis: int) -> Array:
    if points.size == 1:
        return points.reshape(())
    return (
        points if points.ndim > 1 else points.reshape([-1 if a == axis else 1 for a in range(rank)])
    )


def integer_matmul(ctx: NodeContext, a: relax.Expr, b: relax.Expr, bound: int) -> relax.Expr:
    """Exact int32 product of whole-number float32 operands; ``bound`` on each product."""
    depth = ctx.static([shape_of(a)[-1]])[0]
    chunk = max(EXACT // bound, 1)
    right_axis = max(len(shape_of(b)) - 2, 0)
    parts = []
    for start in range(0, depth, chunk):
        stop = min(start + chunk, depth)
        left, right = a, b
        if depth > chunk:
            last = len(shape_of(a)) - 1
            left = ctx.emit(relax.op.strided_slice(a, [last], [start], [stop]))
            right = ctx.emit(relax.op.strided_slice(b, [right_axis], [start], [stop]))
        parts.append(ctx.cast(emit_matmul(ctx, left, right), "int32"))
    total = parts[0]
    for part in parts[1:]:
        total = ctx.emit(relax.op.add(total, part))
    return total


@converter("MatMulInteger")
def matmul_integer(ctx: NodeContext) -> relax.Expr:
    """int32 product of shifted 8-bit operands; zero points per tensor, row or column."""
    return _matmul_integer(ctx, 0, 1, 2, 3)


def _matmul_integer(ctx: NodeContext, a: int, b: int, a_zero: int, b_zero: int) -> relax.Expr:
    left, left_bound = shifted(ctx, a, a_zero, max(ctx.rank(a) - 2, 0))
    right, right_bound = shifted(ctx, b, b_zero, ctx.rank(b) - 1)
    return integer_matmul(ctx, left, right, left_bound * right_bound)


def _conv_integer(ctx: NodeContext, x: int, w: int, x_zero: int, w_zero: int) -> relax.Expr:
    """int32 convolution of shifted 8-bit operands; padding counts as the zero point."""
    data, data_bound = shifted(ctx, x, x_zero, 1)
    weights, weight_bound = shifted(ctx, w, w_zero, 0)
    dims, shape = ctx.shape(x), ctx.static_shape(w)
    rank = len(dims) - 2
    kernel = list(shape[2:])
    strides, dilations = spatial(ctx, "strides", rank, 1), spatial(ctx, "dilations", rank, 1)
    before, after = window_pads(ctx, dims[2:], kernel, strides, dilations)
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    check_window(ctx, dims[2:], window, before, after)
    groups = int(ctx.attrs.get("group", 1))
    data, low, high = apply_symbolic_pads(ctx, data, before, after)

    def conv(left: relax.Expr, right: relax.Expr) -> relax.Expr:
        y = emit_conv(ctx, left, right, strides, low, high, dilations, groups)
        return ctx.cast(y, "int32")

    taps = int(np.prod(kernel))
    if data_bound * weight_bound * taps * shape[1] < EXACT:
        return conv(data, weights)
    if groups > 1 or data_bound * weight_bound * taps >= EXACT:
        wide = [ctx.cast(data, "float64"), ctx.cast(weights, "float64")]
        return conv(*wide)
    chunk = max(EXACT // (data_bound * weight_bound * taps), 1)
    total = None
    for start in range(0, shape[1], chunk):
        stop = min(start + chunk, shape[1])
        part = conv(
            ctx.emit(relax.op.strided_slice(data, [1], [start], [stop])),
            ctx.emit(relax.op.strided_slice(weights, [1], [start], [stop])),
        )
        total = part if total is None else ctx.emit(relax.op.add(total, part))
    return total


@converter("ConvInteger")
def conv_integer(ctx: NodeContext) -> relax.Expr:
    """int32 convolution."""
    return _conv_integer(ctx, 0, 1, 2, 3)


def requantised(
    ctx: NodeContext, total: relax.Expr, scales: dict[int, int], target: tuple[int, int]
) -> relax.Expr:
    """int32 sums times the product of ``scales`` over the target's scale, to 8 bits.

    Args:
        scales: inputs that hold the operands' scales, each with the axis that a vector runs along.
        target: inputs that hold the result's scale and zero point.
    """
    rank = len(shape_of(total))
    dtype = ctx.dtype(target[1])
    factor: relax.Expr | None = None
    for index, axis in scales.items():
        scale = ctx.cast(ctx.expr(index), "float32")
        length = ctx.static_shape(index)
        dims: list[Dim] = list(length) if len(length) > 1 else []
        if len(length) == 1 and length != (1,):
            dims = [length[0] if a == axis else 1 for a in range(rank)]
        scale = ctx.reshape(scale, dims)
        factor = scale if factor is None else ctx.emit(relax.op.multiply(factor, scale))
    real = ctx.emit(relax.op.multiply(ctx.cast(total, "float32"), factor))
    scale = ctx.reshape(ctx.cast(ctx.expr(target[0]), "float32"), ())
    zero = ctx.reshape(ctx.expr(target[1]), ())
    return quantise_scalar(ctx, real, scale, zero, dtype)


def quantise_scalar(
    ctx: NodeContext, real: relax.Expr, scale: relax.Expr, zero: relax.Expr, dtype: str
) -> relax.Expr:
    """Per-tensor quantisation."""

    def compute(a: te.Tensor, s: te.Tensor, z: te.Tensor) -> te.Tensor:
        return te.compute(
            a.shape,
            lambda *i: saturate(a(*i).astype("float32") / s(), z().astype("int32"), dtype),
            name="quantize",
        )

    return ctx.te(compute, real, scale, zero, name="quantize")


@converter("QLinearMatMul")
def qlinear_matmul(ctx: NodeContext) -> relax.Expr:
    """Product of quantised matrices, quantised again."""
    total = _matmul_integer(ctx, 0, 3, 2, 5)
    rank = len(shape_of(total))
    return requantised(ctx, total, {1: rank - 2, 4: rank - 1}, (6, 7))


@converter("QLinearConv")
def qlinear_conv(ctx: NodeContext) -> relax.Expr:
    """Convolution of quantised operands, quantised again."""
    total = _conv_integer(ctx, 0, 3, 2, 5)
    if ctx.has(8):
        rank = len(shape_of(total))
        bias = ctx.reshape(ctx.expr(8), [1, ctx.shape(8)[0]] + [1] * (rank - 2))
        total = ctx.emit(relax.op.add(total, bias))
    return requantised(ctx, total, {1: 1, 4: 1}, (6, 7))


def real_of(ctx: NodeContext, index: int, scale: int, zero: int) -> relax.Expr:
    """A per-tensor quantised input as float32."""
    x = ctx.cast(ctx.expr(index), "float32")
    if ctx.has(zero):
        shift = ctx.cast(ctx.reshape(ctx.expr(zero), ()), "float32")
        x = ctx.emit(relax.op.subtract(x, shift))
    return ctx.emit(relax.op.multiply(x, ctx.cast(ctx.reshape(ctx.expr(scale), ()), "float32")))


@converter("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(ctx: NodeContext) -> relax.Expr:
    """Sum or product of quantised tensors, quantised again."""
    a, b = real_of(ctx, 0, 1, 2), real_of(ctx, 3, 4, 5)
    op = relax.op.add if ctx.op_type == "QLinearAdd" else relax.op.multiply
    scale, zero = ctx.reshape(ctx.expr(6), ()), ctx.reshape(ctx.expr(7), ())
    return quantise_scalar(ctx, ctx.emit(op(a, b)), scale, zero, ctx.dtype(0))


@converter("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(ctx: NodeContext) -> relax.Expr:
    """Activation of a quantised tensor, quantised again."""
    x = real_of(ctx, 0, 1, 2)
    if ctx.op_type == "QLinearSigmoid":
        y = ctx.emit(relax.op.sigmoid(x))
    else:
        y = ctx.emit(relax.op.nn.leakyrelu(x, float(ctx.attrs.get("alpha", 0.01))))
    scale, zero = ctx.reshape(ctx.expr(3), ()), ctx.reshape(ctx.expr(4), ())
    return quantise_scalar(ctx, y, scale, zero, ctx.dtype(0))


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(ctx: NodeContext) -> relax.Expr:
    """Integer product times both scales, plus a bias."""
    total = ctx.cast(_matmul_integer(ctx, 0, 1, 4, 5), "float32")
    for index in (2, 3):
        total = ctx.emit(relax.op.multiply(total, ctx.expr(index)))
    return ctx.emit(relax.op.add(total, ctx.expr(6))) if ctx.has(6) else total


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(ctx: NodeContext) -> relax.Expr:
    """Product with integer weights; the activations stay in floating point."""
    right, _ = shifted(ctx, 1, 3, ctx.rank(1) - 1)
    y = emit_matmul(ctx, ctx.expr(0), right)
    y = ctx.emit(relax.op.multiply(y, ctx.expr(2)))
    return ctx.emit(relax.op.add(y, ctx.expr(4))) if ctx.has(4) else y
