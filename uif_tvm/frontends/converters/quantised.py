"""Quantised operators.

Integer products are exact and run on the float kernels: products of 8-bit numbers and their sums
are whole numbers, and float32 holds those exactly below 2^24. The reduction is cut where that
bound would be passed, and the parts are added as int32.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.conv import (
    apply_symbolic_pads,
    check_window,
    emit_conv,
    spatial,
    window_pads,
)
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.linear_quantise import limits, saturate
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Array, Dim, shape_of

EXACT = 1 << 24
"""Whole numbers below this are exact in float32."""


def shifted(ctx: NodeContext, index: int, zero: int, axis: int) -> tuple[relax.Expr, int]:
    """An integer input minus its zero point as float32, and a bound on its magnitude.

    ``axis`` is the one a vector zero point runs along.
    """
    dtype = ctx.dtype(index)
    low, high = limits(dtype)
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
    return matmul_of_integers(ctx, 0, 1, 2, 3)


def matmul_of_integers(ctx: NodeContext, a: int, b: int, a_zero: int, b_zero: int) -> relax.Expr:
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
    total = matmul_of_integers(ctx, 0, 3, 2, 5)
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
