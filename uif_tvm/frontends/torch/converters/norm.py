"""Normalisations at inference."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.torch.dtypes import compute_dtype
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def _or_const(cx: Emitter, x: Any, shape: list[Any], value: float, dtype: str) -> relax.Expr:
    return cx.full(shape, value, dtype) if x is None else cx.cast(x, dtype)


@converts("aten.layer_norm.default")
def layer_norm(
    cx: Emitter, x: Any, shape: list[Any], weight: Any, bias: Any, eps: float = 1e-5, *_: Any
) -> Any:
    """Zero mean and unit variance over the last axes, then scale and shift."""
    work = compute_dtype(cx.out_dtype)
    sizes = cx.dims(shape)
    gamma = _or_const(cx, weight, sizes, 1, work)
    beta = _or_const(cx, bias, sizes, 0, work)
    axes = list(range(-len(sizes), 0))
    result = relax.op.nn.layer_norm(cx.cast(x, work), gamma, beta, axes, eps)
    return cx.cast(cx.emit(result), cx.out_dtype)


@converts("aten.native_layer_norm.default")
def native_layer_norm(
    cx: Emitter, x: Any, shape: list[Any], weight: Any, bias: Any, eps: float
) -> Any:
    """Layer norm; the saved statistics serve training only."""
    _only_first(cx, 3)
    return [layer_norm(cx, x, shape, weight, bias, eps), None, None]


def _only_first(cx: Emitter, count: int) -> None:
    if any(cx.is_used(index) for index in range(1, count)):
        raise RefusedError("the saved statistics of a normalisation are for training only")


@converts("aten.rms_norm.default")
def rms_norm(cx: Emitter, x: Any, shape: list[Any], weight: Any, eps: float | None = None) -> Any:
    """Unit root mean square over the last axes, then scale."""
    work = compute_dtype(cx.out_dtype)
    if eps is None:
        eps = float(np.finfo(work).eps)
    sizes = cx.dims(shape)
    x = cx.cast(x, work)
    axes = list(range(-len(sizes), 0))
    square = cx.emit(relax.op.mean(cx.emit(relax.op.multiply(x, x)), axes, keepdims=True))
    scale = cx.emit(relax.op.rsqrt(cx.emit(relax.op.add(square, cx.const(eps, work)))))
    result = cx.emit(relax.op.multiply(x, scale))
    if weight is not None:
        result = cx.emit(relax.op.multiply(result, cx.cast(weight, work)))
    return cx.cast(result, cx.out_dtype)


@converts("aten.group_norm.default")
def group_norm(
    cx: Emitter, x: Any, groups: int, weight: Any, bias: Any, eps: float = 1e-5, *_: Any
) -> Any:
    """Zero mean and unit variance over each group of channels."""
    work = compute_dtype(cx.out_dtype)
    shape = cx.shape(x)
    if 0 in shape:
        return cx.full(shape, 0, cx.out_dtype)
    gamma = _or_const(cx, weight, [shape[1]], 1, work)
    beta = _or_const(cx, bias, [shape[1]], 0, work)
    if len(shape) == 2:
        x = cx.reshape(x, [*shape, 1])
    axes = list(range(2, len(cx.shape(x))))
    result = relax.op.nn.group_norm(cx.cast(x, work), gamma, beta, groups, 1, axes, eps)
    return cx.cast(cx.reshape(cx.emit(result), shape), cx.out_dtype)


@converts("aten.native_group_norm.default")
def native_group_norm(
    cx: Emitter, x: Any, weight: Any, bias: Any, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> Any:
    """Group norm; the saved statistics serve training only."""
    del n, c, hw
    _only_first(cx, 3)
    return [group_norm(cx, x, groups, weight, bias, eps), None, None]


@converts("aten.instance_norm.default")
def instance_norm(
    cx: Emitter,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """Zero mean and unit variance over the spatial axes of each sample and channel."""
    if not use_input_stats:
        return _scale_shift(cx, x, weight, bias, mean, variance, eps)
    work = compute_dtype(cx.out_dtype)
    shape = cx.shape(x)
    gamma = _or_const(cx, weight, [shape[1]], 1, work)
    beta = _or_const(cx, bias, [shape[1]], 0, work)
    axes = list(range(2, len(shape)))
    result = relax.op.nn.instance_norm(cx.cast(x, work), gamma, beta, 1, axes, eps)
    return cx.cast(cx.emit(result), cx.out_dtype)


@converts("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    cx: Emitter, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: Any, eps: float
) -> Any:
    """Batch norm with running statistics: one scale and one shift per channel."""
    _only_first(cx, 3)
    return [_scale_shift(cx, x, weight, bias, mean, variance, eps), None, None]


def _scale_shift(
    cx: Emitter, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float
) -> relax.Expr:
    """``x * scale + shift``; constants are computed in float64 and rounded once."""
    dtype = cx.out_dtype
    work = compute_dtype(dtype)
    rank = len(cx.shape(x))
    channels = cx.shape(mean)
    per_channel = [1, *channels, *([1] * (rank - 2))]
    parts = (
        _or_const(cx, weight, channels, 1, "float64"),
        _or_const(cx, bias, channels, 0, "float64"),
        cx.cast(mean, "float64"),
        cx.cast(variance, "float64"),
    )
    known = [cx.value_of(part) for part in parts]
    if all(value is not None for value in known):
        gamma, beta, mu, var = (np.asarray(value) for value in known)
        factor = gamma / np.sqrt(var + eps)
        scale: Any = cx.const(factor.reshape(per_channel), work)
        shift: Any = cx.const((beta - mu * factor).reshape(per_channel), work)
    else:
        g, b, m, v = parts
        root = cx.emit(relax.op.sqrt(cx.emit(relax.op.add(v, cx.const(eps, "float64")))))
        f = cx.emit(relax.op.divide(g, root))
        scale = cx.cast(cx.reshape(f, per_channel), work)
        moved = cx.emit(relax.op.subtract(b, cx.emit(relax.op.multiply(m, f))))
        shift = cx.cast(cx.reshape(moved, per_channel), work)
    scaled = cx.emit(relax.op.multiply(cx.cast(x, work), scale))
    return cx.cast(cx.emit(relax.op.add(scaled, shift)), dtype)


@converts(
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_functional.default",
    "aten.native_batch_norm.default",
)
def batch_norm_of_batch(cx: Emitter, x: Any, weight: Any, bias: Any, *args: Any) -> Any:
    """Batch norm with the batch's own statistics (no running ones are kept)."""
    count = len(cx.node.meta["val"])
    _only_first(cx, count)
    eps = args[-1]
    if "no_stats" not in str(cx.node.target):
        raise RefusedError(
            "batch norm in training mode is not supported", "call model.eval() before exporting"
        )
    work = compute_dtype(cx.out_dtype)
    x = cx.cast(x, work)
    shape = cx.shape(x)
    axes = [0, *range(2, len(shape))]
    per_channel = [1, shape[1], *([1] * (len(shape) - 2))]
    mean = cx.emit(relax.op.mean(x, axes, keepdims=True))
    centred = cx.emit(relax.op.subtract(x, mean))
    square = cx.emit(relax.op.multiply(centred, centred))
    variance = cx.emit(relax.op.mean(square, axes, keepdims=True))
    root = cx.emit(relax.op.sqrt(cx.emit(relax.op.add(variance, cx.const(eps, work)))))
    result = cx.emit(relax.op.divide(centred, root))
    if weight is not None:
        scale = cx.reshape(cx.cast(weight, work), per_channel)
        result = cx.emit(relax.op.multiply(result, scale))
    if bias is not None:
        result = cx.emit(relax.op.add(result, cx.reshape(cx.cast(bias, work), per_channel)))
    return [cx.cast(result, cx.out_dtype), *([None] * (count - 1))]
