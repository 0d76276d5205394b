"""Pooling in one, two and three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.torch.dtypes import compute_dtype, is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts

_MAX = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
_AVG = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}


def _each(value: Any, rank: int, default: list[int]) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        return default
    return values * rank if len(values) == 1 else values


def _batched(cx: Emitter, x: relax.Expr, rank: int) -> relax.Expr:
    return cx.reshape(x, [1, *cx.shape(x)]) if len(cx.shape(x)) == rank + 1 else x


def _end_padding(
    cx: Emitter,
    x: relax.Expr,
    kernel: list[int],
    stride: list[int],
    before: list[int],
    dilation: list[int],
) -> list[int]:
    """Padding behind that makes plain (floor) arithmetic give PyTorch's output size."""
    rank = len(kernel)
    sizes, results = cx.static(x, "pooling")[-rank:], cx.out_shape[-rank:]
    return [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for n, o, k, s, p, d in zip(sizes, results, kernel, stride, before, dilation, strict=True)
    ]


@converts(
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool3d_with_indices.default",
)
def max_pool(
    cx: Emitter,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Largest element of each window, and its flat position in the plane."""
    rank = 3 if "pool3d" in str(cx.node.target) else 2
    kernel = _each(kernel, rank, [])
    stride = _each(stride, rank, kernel)
    padding, dilation = _each(padding, rank, []), _each(dilation, rank, [])
    if 0 in cx.out_shape:
        return [cx.full(cx.out_shape, 0, cx.out_dtype), cx.full(cx.out_shape, 0, "int64")]
    batched = _batched(cx, x, rank)
    if cx.is_used(1):
        both = cx.op(
            "max_pool_with_indices",
            batched,
            pool_size=tuple(kernel),
            strides=tuple(stride),
            padding=(*padding, *padding),
            dilation=tuple(dilation),
            ceil_mode=bool(ceil_mode),
        )
        return [cx.reshape(part, cx.out_shape) for part in both]
    after = _end_padding(cx, batched, kernel, stride, padding, dilation)
    pooled = _MAX[rank](batched, tuple(kernel), tuple(stride), (*padding, *after), tuple(dilation))
    return [cx.reshape(cx.emit(pooled), cx.out_shape), None]


@converts("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    cx: Emitter,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Mean of each window."""
    rank = int(str(cx.node.target).split("avg_pool")[1][0])
    kernel = _each(kernel, rank, [])
    stride = _each(stride, rank, kernel)
    padding = _each(padding, rank, [])
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    if not is_float(cx.out_dtype):
        raise RefusedError("average pooling of integers is not supported")
    batched = _batched(cx, x, rank)
    work = compute_dtype(cx.out_dtype)
    after = _end_padding(cx, batched, kernel, stride, padding, [1] * rank)
    plain = divisor_override is None and not any(padding) and not any(after)
    data = cx.cast(batched, work)
    if plain:
        pooled = cx.emit(_AVG[rank](data, tuple(kernel), tuple(stride)))
    else:
        pooled = cx.op(
            "avg_pool",
            data,
            pool_size=tuple(kernel),
            strides=tuple(stride),
            padding=(*padding, *padding),
            ceil_mode=bool(ceil_mode),
            count_include_pad=bool(count_include_pad),
            divisor=int(divisor_override or 0),
        )
    return cx.cast(cx.reshape(pooled, cx.out_shape), cx.out_dtype)


@converts(
    "aten.adaptive_avg_pool1d.default",
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
)
def adaptive_avg_pool(cx: Emitter, x: Any, size: Any) -> Any:
    """Mean of windows that tile the plane into ``size`` parts."""
    rank = len(size)
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    if not is_float(cx.out_dtype):
        raise RefusedError("average pooling of integers is not supported")
    work = compute_dtype(cx.out_dtype)
    data = cx.cast(x, work)
    results = cx.out_shape[-rank:]
    if all(o == 1 for o in results):
        axes = list(range(-rank, 0))
        return cx.cast(cx.emit(relax.op.mean(data, axes, keepdims=True)), cx.out_dtype)
    for position, result in enumerate(results):
        data = _adaptive_axis(cx, data, len(cx.shape(data)) - rank + position, result)
    return cx.cast(data, cx.out_dtype)


def _adaptive_axis(cx: Emitter, x: relax.Expr, axis: int, result: int) -> relax.Expr:
    """Means along one axis; windows may differ in length by one, or overlap."""
    size = cx.static_size(x, axis, "adaptive pooling")
    if size == result:
        return x
    starts = [(i * size) // result for i in range(result)]
    stops = [-((-(i + 1) * size) // result) for i in range(result)]
    longest = max(b - a for a, b in zip(starts, stops, strict=True))

    def build(data: te.Tensor, first: te.Tensor, count: te.Tensor) -> te.Tensor:
        span = te.reduce_axis((0, longest), name="k")
        shape = [*data.shape[:axis], result, *data.shape[axis + 1 :]]

        def element(*ix: Any) -> Any:
            at = [*ix]
            at[axis] = tirx.min(first(ix[axis]) + span, size - 1)
            zero = tirx.const(0, data.dtype)
            return te.sum(tirx.Select(span < count(ix[axis]), data(*at), zero), axis=[span])

        return te.compute(shape, element, name="adaptive_sum")

    counts = np.subtract(stops, starts)
    total = cx.te(
        build,
        x,
        cx.const(np.asarray(starts), "int64"),
        cx.const(counts, "int64"),
        name="adaptive_sum",
    )
    tail = [1] * (len(cx.shape(x)) - axis - 1)
    return cx.emit(relax.op.divide(total, cx.const(counts.reshape([result, *tail]), cx.dtype(x))))


@converts("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(cx: Emitter, x: Any, size: Any) -> Any:
    """Largest element of windows that tile the plane; positions are refused."""
    rank = len(size)
    if cx.is_used(1):
        raise RefusedError("positions of adaptive max pooling are not supported")
    if 0 in cx.out_shape:
        return [cx.full(cx.out_shape, 0, cx.out_dtype), None]
    batched = _batched(cx, x, rank)
    largest = cx.op("adaptive_max_pool", batched, output_size=tuple(cx.out_shape[-rank:]))
    return [cx.reshape(largest, cx.out_shape), None]
