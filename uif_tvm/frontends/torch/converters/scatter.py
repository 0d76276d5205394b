"""Writes at positions that come from data, and writes of slices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.torch.converters.index import advanced_indices
from uif_tvm.frontends.torch.dtypes import is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def _scatter(
    cx: Emitter,
    x: Any,
    dim: int,
    index: Any,
    updates: Any,
    reduction: str,
    name: str,
    dtype: str | None = None,
) -> Any:
    dtype = dtype or cx.out_dtype
    if dtype == "bool" and reduction != "update":
        raise RefusedError(f"scatter with {reduction} of booleans is not supported")
    if 0 in cx.shape(index) or 0 in cx.shape(x):
        return x
    shape = cx.shape(x)
    if not shape:
        x = cx.reshape(x, [1])
    if not cx.shape(index):
        index = cx.reshape(index, [1])
    updates = cx.tensor(updates, dtype)
    if not cx.shape(updates):
        updates = cx.broadcast(updates, cx.shape(index))
    axis = dim % len(cx.shape(x))
    result = cx.op("scatter_elements", x, index, updates, axis=axis, reduction=reduction)
    return cx.reshape(result, shape)


@converts("aten.scatter.src", "aten.scatter.value")
def scatter(cx: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    """``x[index[i][j]][j] = source[i][j]``."""
    return _scatter(cx, x, dim, index, source, "update", "scatter")


@converts("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_with(cx: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str) -> Any:
    """Scatter that adds or multiplies."""
    reduction = {"add": "add", "multiply": "mul"}[reduce]
    return _scatter(cx, x, dim, index, source, reduction, f"scatter_{reduction}")


@converts("aten.scatter_add.default")
def scatter_add(cx: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    """``x[index[i][j]][j] += source[i][j]``."""
    return _scatter(cx, x, dim, index, source, "add", "scatter_add")


@converts("aten.scatter_reduce.two")
def scatter_reduce(
    cx: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    """Scatter with a reduction; what is in ``x`` counts unless told otherwise."""
    return _reduced(cx, x, dim, index, source, reduce, include_self)


@converts("aten.index_reduce.default")
def index_reduce(
    cx: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    """Reduce slices of ``source`` into positions of one axis."""
    shape = cx.shape(x)
    if 0 in shape or 0 in cx.shape(index) or not shape:
        raise RefusedError("index_reduce of empty or 0-d tensors is not supported")
    axis = dim % len(shape)
    sizes = [*shape[:axis], cx.shape(index)[0], *shape[axis + 1 :]]
    index = cx.reshape(index, [cx.shape(index)[0], *([1] * (len(shape) - axis - 1))])
    return _reduced(cx, x, dim, cx.broadcast(index, sizes), source, reduce, include_self)


def _reduced(
    cx: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool
) -> Any:
    names = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
    reduction = names[reduce]
    if include_self and reduce != "mean":
        return _scatter(cx, x, dim, index, source, reduction, f"scatter_{reduction}")
    dtype = cx.out_dtype
    if dtype == "bool" or (reduce == "mean" and not is_float(dtype)):
        raise RefusedError(f"scatter with {reduce} of {dtype} is not supported")
    if 0 in cx.shape(index) or 0 in cx.shape(x):
        return x
    neutral: Any = {"add": 0, "mul": 1}.get(reduction)
    if neutral is None:
        lowest = -math.inf if is_float(dtype) else np.iinfo(dtype).min
        highest = math.inf if is_float(dtype) else np.iinfo(dtype).max
        neutral = lowest if reduction == "max" else highest
    base = x if include_self else cx.full(cx.shape(x), neutral, dtype)
    result = _scatter(cx, base, dim, index, source, reduction, f"scatter_{reduction}")
    ones = cx.full(cx.shape(index), 1, "int64")
    none = cx.full(cx.shape(x), 0, "int64")
    hits = _scatter(cx, none, dim, index, ones, "add", "scatter_count", "int64")
    touched = cx.emit(relax.op.greater(hits, cx.const(0, "int64")))
    if reduce == "mean":
        if include_self:
            hits = cx.emit(relax.op.add(hits, cx.const(1, "int64")))
        result = cx.emit(relax.op.divide(result, cx.cast(hits, dtype)))
    return cx.emit(relax.op.where(touched, result, x))


@converts("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    cx: Emitter, x: Any, indices: list[Any], values: Any, accumulate: bool = False, *_: Any
) -> Any:
    """``x[indices] = values``, or ``+=``."""
    if 0 in cx.shape(x) or any(i is not None and 0 in cx.shape(i) for i in indices):
        return x
    masks = [i for i in indices if i is not None and cx.dtype(i) == "bool"]
    if len(masks) == 1 and not accumulate and cx.value_of(masks[0]) is None:
        return _masked_put(cx, x, indices, masks[0], values)
    if accumulate and cx.out_dtype == "bool":
        raise RefusedError("adding booleans at indices is not supported")
    positions, axes = advanced_indices(cx, x, indices)
    values = cx.tensor(values, cx.out_dtype)
    return cx.op("index_put", x, values, *positions, axes=tuple(axes), accumulate=accumulate)


def _masked_put(cx: Emitter, x: Any, indices: list[Any], mask: Any, values: Any) -> Any:
    """``x[..., mask] = one value``, which keeps its size."""
    if any(size != 1 for size in cx.shape(values)):
        raise RefusedError(
            "writing several values through a mask takes as many as the data decides",
            "use torch.where with values of the full size",
        )
    before = next(i for i, index in enumerate(indices) if index is not None)
    after = len(cx.shape(x)) - before - len(cx.shape(mask))
    mask = cx.reshape(mask, [*cx.shape(mask), *([1] * after)])
    value = cx.reshape(cx.tensor(values, cx.out_dtype), [])
    return cx.emit(relax.op.where(mask, value, x))


@converts("aten.index_add.default")
def index_add(cx: Emitter, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    """``x[index] += alpha * source`` along one axis."""
    source = cx.tensor(source, cx.out_dtype)
    if alpha != 1:
        source = cx.emit(relax.op.multiply(source, cx.const(alpha, cx.out_dtype)))
    return _along_axis(cx, x, dim, index, source, True)


@converts("aten.index_copy.default")
def index_copy(cx: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    """``x[index] = source`` along one axis."""
    return _along_axis(cx, x, dim, index, source, False)


@converts("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(cx: Emitter, x: Any, dim: int, index: Any, value: Any) -> Any:
    """``x[index] = value`` along one axis."""
    return _along_axis(cx, x, dim, index, cx.tensor(value, cx.out_dtype), False)


def _along_axis(cx: Emitter, x: Any, dim: int, index: Any, source: Any, accumulate: bool) -> Any:
    shape = cx.shape(x)
    if 0 in shape or 0 in cx.shape(index):
        return x
    if cx.dtype(x) == "bool" and accumulate:
        raise RefusedError("adding booleans at indices is not supported")
    if not shape:
        x = cx.reshape(x, [1])
    axis = dim % len(cx.shape(x))
    if not cx.shape(index):
        index = cx.reshape(index, [1])
    sizes = [*cx.shape(x)[:axis], cx.shape(index)[0], *cx.shape(x)[axis + 1 :]]
    source = cx.broadcast(source, sizes) if not cx.shape(source) else cx.reshape(source, sizes)
    index = cx.reshape(index, [cx.shape(index)[0], *([1] * (len(sizes) - axis - 1))])
    index = cx.broadcast(index, sizes)
    reduction = "add" if accumulate else "update"
    result = cx.op("scatter_elements", x, index, source, axis=axis, reduction=reduction)
    return cx.reshape(result, shape)


@converts("aten.slice_scatter.default")
def slice_scatter(
    cx: Emitter,
    x: Any,
    source: Any,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Any:
    """``x`` with ``x[start:end:step]`` replaced."""
    shape = cx.static(x, "slice_scatter")
    axis = dim % len(shape)
    picked = range(shape[axis])[slice(start, end, step)]
    if not picked or 0 in shape:
        return x
    return _replace(cx, x, source, axis, picked)


@converts("aten.select_scatter.default")
def select_scatter(cx: Emitter, x: Any, source: Any, dim: int, index: int) -> Any:
    """``x`` with one position of an axis replaced."""
    shape = cx.static(x, "select_scatter")
    axis = dim % len(shape)
    if 0 in shape:
        return x
    at = index % shape[axis]
    source = cx.reshape(source, [*shape[:axis], 1, *shape[axis + 1 :]])
    return _replace(cx, x, source, axis, range(at, at + 1))


def _replace(cx: Emitter, x: Any, source: Any, axis: int, picked: range) -> Any:
    start, step, count = picked.start, picked.step, len(picked)
    source = cx.cast(source, cx.dtype(x))

    def kernel(data: te.Tensor, new: te.Tensor) -> te.Tensor:
        def element(*ix: Any) -> Any:
            offset = ix[axis] - start
            inside = [offset >= 0, offset < (count - 1) * step + 1]
            if step > 1:
                inside.append(tirx.floormod(offset, step) == 0)
            at = [*ix]
            at[axis] = tirx.floordiv(offset, step)
            return tirx.if_then_else(tirx.all(*inside), new(*at), data(*ix))

        return te.compute(data.shape, element, name="slice_scatter")

    return cx.te(kernel, x, source, name="slice_scatter")


@converts("aten.diagonal_scatter.default")
def diagonal_scatter(
    cx: Emitter, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """``x`` with a diagonal replaced."""
    shape = cx.static(x, "diagonal_scatter")
    rank = len(shape)
    first, second = dim1 % rank, dim2 % rank
    rest = [a for a in range(rank) if a not in (first, second)]
    length = cx.static(source, "diagonal_scatter")[-1]
    if 0 in shape or length == 0:
        return x
    down, right = max(0, -offset), max(0, offset)

    def kernel(data: te.Tensor, new: te.Tensor) -> te.Tensor:
        def element(*ix: Any) -> Any:
            at = ix[first] - down
            inside = tirx.all(at >= 0, at < length, at == ix[second] - right)
            limited = tirx.max(tirx.min(at, length - 1), 0)
            return tirx.if_then_else(inside, new(*(ix[a] for a in rest), limited), data(*ix))

        return te.compute(data.shape, element, name="diagonal_scatter")

    return cx.te(kernel, x, cx.cast(source, cx.dtype(x)), name="diagonal_scatter")
