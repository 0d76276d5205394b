"""Sorting and picking by rank."""

from __future__ import annotations

from typing import Any

from tvm import relax

from uif_tvm.frontends.torch.converters.shape import slice_axis
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import converts


def sorted_with_positions(
    cx: Emitter, x: relax.Expr, axis: int, descending: bool
) -> tuple[relax.Expr, relax.Expr]:
    """Values and positions (int64) in stable order; NaN counts as the largest."""
    dtype = cx.dtype(x)
    x = cx.cast(x, "int8") if dtype == "bool" else x
    values, positions = cx.op("sort", x, axis=axis, descending=descending)
    return cx.cast(values, dtype), positions


def _sort(cx: Emitter, x: Any, dim: int, descending: bool) -> Any:
    shape = cx.shape(x)
    if not shape or 0 in shape:
        return [x, cx.full(shape, 0, "int64")]
    return list(sorted_with_positions(cx, x, dim % len(shape), descending))


@converts("aten.sort.default")
def sort(cx: Emitter, x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Sorted values and their positions."""
    return _sort(cx, x, dim, descending)


@converts("aten.sort.stable")
def sort_stable(
    cx: Emitter, x: Any, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    """Sorted values and their positions; equal values keep their order."""
    del stable
    return _sort(cx, x, dim, descending)


@converts("aten.argsort.default", "aten.argsort.stable")
def argsort(cx: Emitter, x: Any, *args: Any) -> Any:
    """Positions in sorted order."""
    dim, descending = args[-2:]
    return _sort(cx, x, dim, descending)[1]


@converts("aten.topk.default")
def topk(
    cx: Emitter, x: Any, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
) -> Any:
    """The ``k`` largest or smallest values and their positions, in order."""
    del sorted_
    shape = cx.shape(x)
    if not shape:
        return [x, cx.full([], 0, "int64")]
    if 0 in cx.out_shape:
        return [cx.full(cx.out_shape, 0, cx.dtype(x)), cx.full(cx.out_shape, 0, "int64")]
    axis = dim % len(shape)
    dtype = cx.dtype(x)
    if not isinstance(k, int):
        parts = sorted_with_positions(cx, x, axis, largest)
        return [slice_axis(cx, part, axis, 0, k, 1) for part in parts]
    whole = cx.cast(x, "int8") if dtype == "bool" else x
    values, positions = cx.op("topk", whole, k=k, axis=axis, largest=largest)
    return [cx.cast(values, dtype), positions]


@converts("aten.kthvalue.default")
def kthvalue(cx: Emitter, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The ``k``-th smallest value and its position."""
    del keepdim
    return _rank(cx, x, dim, k - 1)


@converts("aten.median.dim")
def median_dim(cx: Emitter, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower median and its position; NaN where there is one."""
    del keepdim
    size = cx.static_size(x, dim, "median") if cx.shape(x) else 1
    values, positions = _rank(cx, x, dim, (size - 1) // 2)
    return _nan_wins(cx, x, dim, values, positions)


@converts("aten.median.default")
def median(cx: Emitter, x: Any) -> Any:
    """The lower median of all elements."""
    shape = cx.static(x, "median")
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return cx.full([], float("nan"), cx.out_dtype)
    flat = cx.reshape(x, [count])
    values, positions = _rank(cx, flat, 0, (count - 1) // 2)
    return _nan_wins(cx, flat, 0, values, positions)[0]


def _rank(cx: Emitter, x: Any, dim: int, rank: int) -> Any:
    shape = cx.shape(x)
    if not shape:
        return [x, cx.full([], 0, "int64")]
    if 0 in cx.out_shape:
        return [cx.full(cx.out_shape, 0, cx.dtype(x)), cx.full(cx.out_shape, 0, "int64")]
    axis = dim % len(shape)
    parts = sorted_with_positions(cx, x, axis, descending=False)
    return [
        cx.reshape(slice_axis(cx, part, axis, rank, rank + 1, 1), cx.out_shape) for part in parts
    ]


def _nan_wins(cx: Emitter, x: Any, dim: int, values: Any, positions: Any) -> Any:
    """NaN sorts last, so a median has to look for it at the end."""
    if "float" not in cx.dtype(x) or not cx.shape(x) or 0 in cx.shape(x):
        return [values, positions]
    last = _rank(cx, x, dim, cx.static_size(x, dim, "median") - 1)
    broken = cx.emit(relax.op.isnan(last[0]))
    from uif_tvm.frontends.torch.converters.reduce import arg_extreme

    first = arg_extreme(cx, x, [dim % len(cx.shape(x))], False, largest=True)
    first = cx.reshape(first, cx.shape(positions))
    return [
        cx.emit(relax.op.where(broken, last[0], values)),
        cx.emit(relax.op.where(broken, first, positions)),
    ]


@converts("aten.searchsorted.Tensor")
def searchsorted(
    cx: Emitter,
    boundaries: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """How many boundaries lie before each value (by comparing with all of them)."""
    return _count_before(cx, boundaries, x, right or side == "right", sorter)


@converts("aten.bucketize.Tensor")
def bucketize(
    cx: Emitter, x: Any, boundaries: Any, out_int32: bool = False, right: bool = False
) -> Any:
    """How many boundaries lie before each value."""
    return _count_before(cx, boundaries, x, right, None)


def _count_before(cx: Emitter, boundaries: Any, x: Any, right: bool, sorter: Any) -> Any:
    from uif_tvm.frontends.torch.registry import RefusedError

    if sorter is not None:
        raise RefusedError("searchsorted with a sorter is not supported", "sort the boundaries")
    dtype = cx.out_dtype
    if 0 in cx.out_shape or 0 in cx.shape(boundaries):
        return cx.full(cx.out_shape, 0, dtype)
    wide = "float64" if "float" in cx.dtype(x) + cx.dtype(boundaries) else "int64"
    x = cx.cast(cx.reshape(x, [*cx.shape(x), 1]), wide)
    edges = cx.cast(boundaries, wide)
    if len(cx.shape(edges)) > 1:
        *lead, last = cx.shape(edges)
        edges = cx.reshape(edges, [*lead, 1, last])
    # NaN sorts last: every boundary that is a number lies before it.
    before = cx.emit(relax.op.less_equal(edges, x) if right else relax.op.less(edges, x))
    if wide == "float64":
        x_nan = cx.emit(relax.op.isnan(x))
        edge_nan = cx.emit(relax.op.isnan(edges))
        counted = (
            x_nan
            if right
            else cx.emit(relax.op.logical_and(x_nan, cx.emit(relax.op.logical_not(edge_nan))))
        )
        before = cx.emit(relax.op.logical_or(before, counted))
    return cx.emit(relax.op.sum(cx.cast(before, dtype), [-1]))
