"""Normalisations."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.broadcast import aligned
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Dim, shape_of, simplify


@converter("BatchNormalization")
def batch_norm(ctx: NodeContext) -> relax.Expr | list[relax.Expr]:
    """Running mean and variance as one multiply and one add per channel."""
    if ctx.attrs.get("training_mode", 0):
        return _batch_statistics(ctx)
    if ctx.version < 14 and ctx.wants(1):
        raise Unsupported("training mode", "export the model for inference: model.eval()")
    if ctx.version < 9 and not ctx.attrs.get("spatial", 1):
        raise Unsupported("batch normalisation per element (spatial = 0)")
    if ctx.version < 7 and not ctx.attrs.get("is_test", 0):
        raise Unsupported("training mode", "export the model for inference: model.eval()")
    rank = ctx.rank(0)
    dtype = ctx.dtype(0)
    eps = float(ctx.attrs["epsilon"])
    arrays = [ctx.array(i) for i in range(1, 5)]
    shape = [-1] + [1] * (rank - 2)
    if all(array is not None for array in arrays):
        scale, bias, mean, var = (np.asarray(array, np.float64) for array in arrays)
        factor = scale / np.sqrt(var + eps)
        offset = bias - mean * factor
        product = relax.op.multiply(ctx.expr(0), ctx.const(factor.reshape(shape), dtype))
        return ctx.emit(relax.op.add(ctx.emit(product), ctx.const(offset.reshape(shape), dtype)))
    parts = [
        ctx.cast(ctx.reshape(ctx.expr(i), [ctx.shape(i)[0]] + [1] * (rank - 2)), dtype)
        for i in range(1, 5)
    ]
    scale_, bias_, mean_, var_ = parts
    root = ctx.emit(relax.op.sqrt(ctx.emit(relax.op.add(var_, ctx.const(eps, dtype)))))
    centred = ctx.emit(relax.op.subtract(ctx.expr(0), mean_))
    product = relax.op.multiply(ctx.emit(relax.op.divide(centred, root)), scale_)
    return ctx.emit(relax.op.add(ctx.emit(product), bias_))


def _batch_statistics(ctx: NodeContext) -> list[relax.Expr]:
    """Normalised by the batch's own mean and variance; then the running ones, moved by them."""
    rank, dtype = ctx.rank(0), ctx.dtype(0)
    inner = "float64" if dtype == "float64" else "float32"
    x = ctx.cast(ctx.expr(0), inner)
    axes = [axis for axis in range(rank) if axis != 1]
    channels = ctx.shape(0)[1]
    centred, mean, inverse = mean_and_deviation(ctx, x, axes, float(ctx.attrs["epsilon"]))
    square = ctx.emit(relax.op.multiply(centred, centred))
    variance = ctx.emit(relax.op.mean(square, axes, keepdims=True))
    along = [channels if axis == 1 else 1 for axis in range(rank)]
    scale, bias = (ctx.reshape(ctx.cast(ctx.expr(i), inner), along) for i in (1, 2))
    factor = ctx.emit(relax.op.multiply(inverse, scale))
    y = ctx.emit(relax.op.add(ctx.emit(relax.op.multiply(centred, factor)), bias))
    momentum = float(ctx.attrs.get("momentum", 0.9))
    running = []
    for index, fresh in ((3, mean), (4, variance)):
        kept = relax.op.multiply(ctx.cast(ctx.expr(index), inner), ctx.const(momentum, inner))
        moved = relax.op.multiply(ctx.reshape(fresh, [channels]), ctx.const(1 - momentum, inner))
        running.append(ctx.emit(relax.op.add(ctx.emit(kept), ctx.emit(moved))))
    return [ctx.cast(y, dtype), *(ctx.cast(r, ctx.dtype(3)) for r in running)]


def mean_and_deviation(
    ctx: NodeContext, x: relax.Expr, axes: list[int], eps: float
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Two-pass: centred values, mean and 1 / sqrt(variance + eps), axes kept."""
    dtype = str(x.ty.dtype)
    mean = ctx.emit(relax.op.mean(x, axes, keepdims=True))
    centred = ctx.emit(relax.op.subtract(x, mean))
    square = ctx.emit(relax.op.multiply(centred, centred))
    variance = ctx.emit(relax.op.mean(square, axes, keepdims=True))
    shifted = ctx.emit(relax.op.add(variance, ctx.const(eps, dtype)))
    return centred, mean, ctx.emit(relax.op.rsqrt(shifted))


@converter("LayerNormalization")
def layer_norm(ctx: NodeContext) -> list[relax.Expr]:
    """Over all axes from ``axis`` on; mean and inverse deviation on demand."""
    rank = ctx.rank(0)
    axis = ctx.axis(int(ctx.attrs.get("axis", -1)), rank)
    axes = list(range(axis, rank))
    dims = ctx.shape(0)
    eps = float(ctx.attrs.get("epsilon", 1e-5))
    dtype = ctx.dtype(0)
    bias = ctx.expr(2) if ctx.has(2) else None
    fits = ctx.shape(1) == dims[axis:] and (bias is None or shape_of(bias) == dims[axis:])
    if not ctx.wants(1) and not ctx.wants(2) and fits and dtype == "float32":
        if bias is None:
            bias = ctx.importer.constant(np.zeros(ctx.static(dims[axis:]), np.float32))
        return [ctx.emit(relax.op.nn.layer_norm(ctx.expr(0), ctx.expr(1), bias, axes, eps))]
    inner = "float64" if dtype == "float64" else "float32"
    centred, mean, inverse = mean_and_deviation(ctx, ctx.cast(ctx.expr(0), inner), axes, eps)
    normal = ctx.cast(ctx.emit(relax.op.multiply(centred, inverse)), dtype)
    y = ctx.emit(relax.op.multiply(*aligned(ctx, normal, ctx.expr(1))))
    y = y if bias is None else ctx.emit(relax.op.add(*aligned(ctx, y, bias)))
    stash = "float32" if int(ctx.attrs.get("stash_type", 1)) == 1 else dtype
    return [y, ctx.cast(mean, stash), ctx.cast(inverse, stash)]


def emit_rms_norm(
    ctx: NodeContext, x: relax.Expr, scale: relax.Expr, axes: list[int], eps: float
) -> relax.Expr:
    """x / sqrt(mean(x^2) + eps) * scale."""
    dtype = str(x.ty.dtype)
    rank = len(shape_of(x))
    if len(axes) == 1 and shape_of(scale) == shape_of(x)[axes[0] :] and axes[-1] == rank - 1:
        return ctx.emit(relax.op.nn.rms_norm(x, scale, axes, eps))
    inner = "float64" if dtype == "float64" else "float32"
    wide = ctx.cast(x, inner)
    square = ctx.emit(relax.op.multiply(wide, wide))
    mean = ctx.emit(relax.op.mean(square, axes, keepdims=True))
    inverse = ctx.emit(relax.op.rsqrt(ctx.emit(relax.op.add(mean, ctx.const(eps, inner)))))
    normal = ctx.cast(ctx.emit(relax.op.multiply(wide, inverse)), dtype)
    return ctx.emit(relax.op.multiply(*aligned(ctx, normal, scale)))


@converter("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(ctx: NodeContext) -> relax.Expr:
    """Root-mean-square normalisation."""
    axis = ctx.axis(int(ctx.attrs.get("axis", -1)), ctx.rank(0))
    axes = list(range(axis, ctx.rank(0)))
    eps = float(ctx.attrs.get("epsilon", 1e-5))
    return emit_rms_norm(ctx, ctx.expr(0), ctx.expr(1), axes, eps)


@converter("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(ctx: NodeContext) -> list[relax.Expr | None]:
    """Normalisation of input + skip (+ bias); the sum on demand."""
    simple = ctx.op_type.startswith("SkipSimplified")
    last = 3 if simple else 4
    total = ctx.emit(relax.op.add(*aligned(ctx, ctx.expr(0), ctx.expr(1))))
    if ctx.has(last):
        total = ctx.emit(relax.op.add(total, ctx.expr(last)))
    eps = float(ctx.attrs.get("epsilon", 1e-12))
    axes = [ctx.rank(0) - 1]
    if ctx.wants(1) or ctx.wants(2):
        raise Unsupported("mean and deviation outputs, which only training uses")
    if simple:
        y = emit_rms_norm(ctx, total, ctx.expr(2), axes, eps)
    else:
        zeros = np.zeros(ctx.static([shape_of(total)[-1]]), np.float32)
        beta = ctx.expr(3) if ctx.has(3) else ctx.const(zeros, ctx.dtype(0))
        y = ctx.emit(relax.op.nn.layer_norm(total, ctx.expr(2), beta, axes, eps))
    return [y, total, total, total]


@converter("InstanceNormalization")
def instance_norm(ctx: NodeContext) -> relax.Expr:
    """Per sample and channel over the spatial axes."""
    rank = ctx.rank(0)
    axes = list(range(2, rank))
    centred, _, inverse = mean_and_deviation(ctx, ctx.expr(0), axes, float(ctx.attrs["epsilon"]))
    normal = ctx.emit(relax.op.multiply(centred, inverse))
    shape: list[Dim] = [ctx.shape(1)[0]] + [1] * (rank - 2)
    scaled = ctx.emit(relax.op.multiply(normal, ctx.reshape(ctx.expr(1), shape)))
    return ctx.emit(relax.op.add(scaled, ctx.reshape(ctx.expr(2), shape)))


@converter("GroupNormalization")
def group_norm(ctx: NodeContext) -> relax.Expr:
    """Per sample and group of channels; scale per group before version 21, then per channel."""
    batch, channels, *rest = ctx.shape(0)
    groups = int(ctx.attrs["num_groups"])
    per_group = ctx.static([channels])[0] // groups
    dtype = ctx.dtype(0)
    inner = dtype if dtype in ("float32", "float64") else "float32"
    x = ctx.cast(ctx.expr(0), inner)
    grouped = ctx.reshape(x, [batch, groups, simplify(per_group * math.prod(rest))])
    centred, _, inverse = mean_and_deviation(ctx, grouped, [2], float(ctx.attrs["epsilon"]))
    normal = ctx.emit(relax.op.multiply(centred, inverse))
    if ctx.version >= 21:
        shape: list[Dim] = [1, channels, *[1] * len(rest)]
        normal = ctx.reshape(normal, [batch, channels, *rest])
    else:
        shape = [1, groups, 1]
    scale = ctx.reshape(ctx.cast(ctx.expr(1), inner), shape)
    bias = ctx.reshape(ctx.cast(ctx.expr(2), inner), shape)
    y = ctx.emit(relax.op.add(ctx.emit(relax.op.multiply(normal, scale)), bias))
    return ctx.cast(ctx.reshape(y, [batch, channels, *rest]), dtype)


@converter("MeanVarianceNormalization")
def mean_variance_norm(ctx: NodeContext) -> relax.Expr:
    """(x - mean) / (deviation + 1e-9)."""
    axes = [ctx.axis(int(a), ctx.rank(0)) for a in ctx.attrs.get("axes", [0, 2, 3])]
    dtype = ctx.dtype(0)
    mean = ctx.emit(relax.op.mean(ctx.expr(0), axes, keepdims=True))
    centred = ctx.emit(relax.op.subtract(ctx.expr(0), mean))
    square = ctx.emit(relax.op.multiply(centred, centred))
    deviation = ctx.emit(relax.op.sqrt(ctx.emit(relax.op.mean(square, axes, keepdims=True))))
    return ctx.emit(
        relax.op.divide(centred, ctx.emit(relax.op.add(deviation, ctx.const(1e-9, dtype))))
    )


@converter("LpNormalization")
def lp_norm(ctx: NodeContext) -> relax.Expr:
    """x / ||x||_p along an axis."""
    axis = ctx.axis(int(ctx.attrs.get("axis", -1)), ctx.rank(0))
    p = int(ctx.attrs.get("p", 2))
    return ctx.op("lp_normalize", ctx.expr(0), axis=axis, p=p)  # type: ignore[no-any-return]


@converter("LRN")
def lrn(ctx: NodeContext) -> relax.Expr:
    """x / (bias + alpha / size * sum of squares over nearby channels) ^ beta."""
    size = int(ctx.attrs["size"])
    alpha, beta, bias = (float(ctx.attrs[name]) for name in ("alpha", "beta", "bias"))
    return ctx.op(  # type: ignore[no-any-return]
        "lrn", ctx.expr(0), size=size, alpha=alpha, beta=beta, bias=bias
    )
