"""ONNX Runtime's quantised operators beside the element-wise ones, and weights in 4 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.conv import spatial, window_pads
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.quantised import (
    integer_matmul,
    matmul_of_integers,
    quantise_scalar,
    real_of,
    requantised,
    shifted,
)
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Array, shape_of


def _target(ctx: NodeContext, scale: int, zero: int) -> tuple[relax.Expr, relax.Expr, str]:
    """Scale and zero point of the result, and its dtype; the zero point may be left out."""
    dtype = ctx.dtype(zero) if ctx.has(zero) else ctx.dtype(0)
    point = ctx.reshape(ctx.expr(zero), ()) if ctx.has(zero) else ctx.const(0, dtype)
    return ctx.reshape(ctx.expr(scale), ()), point, dtype


@converter("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(ctx: NodeContext) -> relax.Expr:
    """Quantised tensors joined, each brought to the result's scale."""
    scale, zero = ctx.reshape(ctx.expr(0), ()), ctx.reshape(ctx.expr(1), ())
    dtype = ctx.dtype(1)
    parts = []
    for place in range(2, len(ctx.inputs) - 2, 3):
        real = real_of(ctx, place, place + 1, place + 2)
        parts.append(quantise_scalar(ctx, real, scale, zero, dtype))
    axis = ctx.axis(int(ctx.attrs["axis"]), len(shape_of(parts[0])))
    return parts[0] if len(parts) == 1 else ctx.emit(relax.op.concat(parts, axis))


@converter("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(ctx: NodeContext) -> relax.Expr:
    """Mean over the spatial axes; channels may come last."""
    rank = ctx.rank(0)
    last = bool(ctx.attrs.get("channels_last", 0))
    axes = list(range(1, rank - 1)) if last else list(range(2, rank))
    mean = ctx.emit(relax.op.mean(real_of(ctx, 0, 1, 2), axes, keepdims=True))
    return quantise_scalar(ctx, mean, *_target(ctx, 3, 4))


@converter("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(ctx: NodeContext) -> relax.Expr:
    """Mean over windows; channels may come last."""
    if ctx.rank(0) != 4 or ctx.attrs.get("ceil_mode", 0):
        raise Unsupported("quantised pooling other than over images, floors taken")
    last = bool(ctx.attrs.get("channels_last", 0))
    x = real_of(ctx, 0, 1, 2)
    x = ctx.emit(relax.op.permute_dims(x, [0, 3, 1, 2])) if last else x
    kernel = spatial(ctx, "kernel_shape", 2, 1)
    strides = spatial(ctx, "strides", 2, 1)
    before, after = window_pads(ctx, shape_of(x)[2:], kernel, strides, [1, 1])
    count = bool(ctx.attrs.get("count_include_pad", 0))
    y = ctx.emit(
        relax.op.nn.avg_pool2d(x, kernel, strides, [*before, *after], count_include_pad=count)
    )
    y = ctx.emit(relax.op.permute_dims(y, [0, 2, 3, 1])) if last else y
    return quantise_scalar(ctx, y, *_target(ctx, 3, 4))


@converter("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(ctx: NodeContext) -> relax.Expr:
    """Softmax of a quantised tensor; before version 13 over all axes from ``axis`` on."""
    x, dims = real_of(ctx, 0, 1, 2), ctx.static_shape(0)
    axis = ctx.axis(int(ctx.attrs.get("axis", -1)), len(dims))
    if int(ctx.attrs.get("opset", 13)) < 13:
        flat = ctx.reshape(x, [math.prod(dims[:axis]), math.prod(dims[axis:])])
        y = ctx.reshape(ctx.emit(relax.op.nn.softmax(flat, -1)), list(dims))
    else:
        y = ctx.emit(relax.op.nn.softmax(x, axis))
    return quantise_scalar(ctx, y, *_target(ctx, 3, 4))


@converter("QGemm", domain=MICROSOFT)
def qgemm(ctx: NodeContext) -> relax.Expr:
    """alpha * A B + C over integers, C already in int32; quantised if a scale is given."""
    left, left_bound = shifted(ctx, 0, 2, 0)
    columns = 0 if ctx.attrs.get("transB", 0) else 1
    right, right_bound = shifted(ctx, 3, 5, columns)
    if ctx.attrs.get("transA", 0):
        left = ctx.emit(relax.op.permute_dims(left, [1, 0]))
    if ctx.attrs.get("transB", 0):
        right = ctx.emit(relax.op.permute_dims(right, [1, 0]))
    total = integer_matmul(ctx, left, right, left_bound * right_bound)
    if ctx.has(6):
        total = ctx.emit(relax.op.add(total, ctx.expr(6)))
    alpha = float(ctx.attrs.get("alpha", 1.0))
    if ctx.has(7):
        if alpha != 1.0:
            raise Unsupported("a quantised result with alpha")
        return requantised(ctx, total, {1: 1, 4: 1}, (7, 8))
    real = ctx.emit(relax.op.multiply(ctx.cast(total, "float32"), ctx.expr(1)))
    real = ctx.emit(relax.op.multiply(real, ctx.expr(4)))
    return ctx.emit(relax.op.multiply(real, ctx.const(alpha, "float32")))


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(ctx: NodeContext) -> relax.Expr:
    """Product with weights of a few bits in blocks along the reduction, unpacked at import."""
    k, n, bits = (int(ctx.attrs[name]) for name in ("K", "N", "bits"))
    block = int(ctx.attrs["block_size"])
    if bits not in (2, 4, 8) or block < 1:
        raise Unsupported(f"weights of {bits} bits")
    if ctx.has(4) and not np.array_equal(ctx.known(4, "g_idx"), np.arange(k) // block):
        raise Unsupported("columns in an order of their own")
    blocks = -(-k // block)
    packed = ctx.known(1, "the weights").reshape(n, blocks, -1)
    whole = unpacked(packed, bits)[:, :, :block].astype(np.float32)
    scales = ctx.known(2, "the scales").astype(np.float32).reshape(n, blocks, 1)
    zero: Any = float(1 << (bits - 1))
    if ctx.has(3):
        points = ctx.known(3, "the zero points")
        if points.dtype == np.uint8:
            zero = unpacked(points.reshape(n, -1), bits)[:, :blocks].astype(np.float32)
        else:
            zero = points.astype(np.float32)
        zero = zero.reshape(n, blocks, 1)
    weights = ((whole - zero) * scales).reshape(n, blocks * block)[:, :k]
    dtype = ctx.dtype(0)
    y = emit_matmul(ctx, ctx.expr(0), ctx.const(np.ascontiguousarray(weights.T), dtype))
    return ctx.emit(relax.op.add(y, ctx.expr(5))) if ctx.has(5) else y


def unpacked(data: Array, bits: int) -> Array:
    """Numbers of ``bits`` bits out of bytes, the low ones first, along the last axis."""
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*data.shape[:-1], -1)


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(ctx: NodeContext) -> list[Any]:
    """Word, position and segment embeddings added and normalised; lengths of the mask."""
    ids = ctx.expr(0)
    batch, length = ctx.shape(0)
    words = ctx.emit(relax.op.take(ctx.expr(2), ids, 0, mode="clip"))
    if ctx.has(8):
        places = ctx.emit(relax.op.take(ctx.expr(3), ctx.expr(8), 0, mode="clip"))
    else:
        count = ctx.static([length])[0]
        if count > ctx.static([ctx.shape(3)[0]])[0]:
            raise ctx.invalid(f"{count} positions for an embedding of {ctx.shape(3)[0]}")
        places = ctx.emit(relax.op.strided_slice(ctx.expr(3), [0], [0], [count]))
    total = ctx.emit(relax.op.add(words, places))
    if ctx.has(1) and ctx.has(4):
        segments = ctx.emit(relax.op.take(ctx.expr(4), ctx.expr(1), 0, mode="clip"))
        total = ctx.emit(relax.op.add(total, segments))
    eps = float(ctx.attrs.get("epsilon", 1e-12))
    y = ctx.emit(relax.op.nn.layer_norm(total, ctx.expr(5), ctx.expr(6), [2], eps))
    if ctx.has(7):
        mask = ctx.cast(ctx.expr(7), "int32")
        lengths = ctx.emit(relax.op.sum(mask, 1))
    else:
        lengths = ctx.emit(relax.op.zeros(relax.ShapeExpr([batch]), "int32"))
    return [y, lengths, total]


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
    total = ctx.cast(matmul_of_integers(ctx, 0, 1, 4, 5), "float32")
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
