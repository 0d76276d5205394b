"""Reductions over any axes. Over the last ones they are row kernels (see :mod:`.norm`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.math import is_nan
from uif_tvm.kernels.matmul import shape64
from uif_tvm.kernels.norm import (
    NO_FAMILY,
    PEAK,
    ROW_ATTRS,
    SUM,
    Index,
    Reducer,
    accumulator,
    mean_of,
    row_fold,
    static_extent,
)

if TYPE_CHECKING:
    from tvm import te


def reduce_rows(
    x: te.Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reducer: Reducer,
    mean: bool = False,
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    wide: str | None = None,
) -> te.Tensor:
    """Fold ``x`` over ``axes`` (sorted, non-negative); ``mean`` divides by their size.

    Args:
        x: data; an axis of extent 0 folds to the reducer's identity.
        axes: none at all leaves every element by itself.
        keepdims: folded axes stay with extent 1.
        reducer: what to fold with.
        mean: divide by the number of elements folded.
        before: function of each element, in the accumulation type.
        after: function of each result, in the accumulation type.
        wide: accumulation type, where it is not that of ``x``'s element type.
    """
    from tvm import te, tirx

    dtype = str(x.dtype)
    wide = wide or accumulator(dtype)
    lead = [extent for at, extent in enumerate(x.shape) if at not in axes]
    inner = [x.shape[at] for at in axes]
    depth = _static_product(inner)
    trailing = list(axes) == list(range(len(x.shape) - len(axes), len(x.shape)))
    attrs = ROW_ATTRS if trailing and lead and axes else NO_FAMILY

    def element(row: Index, k: Any) -> Any:
        position: dict[int, Any] = {}
        for at, extent in zip(reversed(axes[1:]), reversed(inner[1:]), strict=True):
            position[at], k = k % extent, k // extent
        if axes:
            position[axes[0]] = k
        rest = iter(row)
        index = [position[at] if at in position else next(rest) for at in range(len(x.shape))]
        value = x(*index)
        return value.astype(wide) if before is None else before(value.astype(wide))

    total: te.Tensor | None = None
    if axes and static_extent(depth) != 0:
        total = row_fold(lead, depth, element, reducer, wide, "fold", attrs)
        if mean:
            total = mean_of(total, depth, "mean", attrs)
    shape = [1 if at in axes else extent for at, extent in enumerate(x.shape)]

    def result(*index: Any) -> Any:
        row = index
        if keepdims:
            row = tuple(position for at, position in enumerate(index) if at not in axes)
        if total is not None:
            value = total(*row)
        elif axes:
            value = tirx.const(float("nan"), wide) if mean else reducer.identity(wide)
        else:
            value = element(row, None)
        return (value if after is None else after(value)).astype(dtype)

    return te.compute(shape64(*(shape if keepdims else lead)), result, name="reduced", attrs=attrs)


def variance(x: te.Tensor, axes: Sequence[int], keepdims: bool, root: bool = False) -> te.Tensor:
    """Population variance over ``axes`` (or its square root), in two passes."""
    from tvm import te, tirx

    wide = accumulator(str(x.dtype))
    mean = reduce_rows(_cast(x, wide), axes, True, SUM, mean=True)
    kept = [0 if at in axes else None for at in range(len(x.shape))]

    def squared(*index: Any) -> Any:
        centre = mean[tuple(i if k is None else k for i, k in zip(index, kept, strict=True))]
        return (x(*index).astype(wide) - centre) * (x(*index).astype(wide) - centre)

    squares = te.compute(x.shape, squared, name="squared")
    after = tirx.sqrt if root else None
    return _cast(reduce_rows(squares, axes, keepdims, SUM, mean=True, after=after), str(x.dtype))


def log_sum_exp(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """``log(sum(exp(x)))``: the largest element comes out first, so that nothing overflows."""
    from tvm import te, tirx

    dtype = str(x.dtype)
    wide = accumulator(dtype) if "float" in dtype else "float64"
    if not axes:
        return te.compute(x.shape, lambda *i: x(*i), name="log_sum_exp")
    x = _cast(x, wide)
    peak = reduce_rows(x, axes, True, PEAK)
    largest = tirx.max_value(wide)
    # Infinite maxima count as 0: inf - inf would make NaN of a row of infinities.
    base = te.compute(
        peak.shape,
        lambda *i: tirx.Select(tirx.abs(peak(*i)) <= largest, peak(*i), tirx.const(0, wide)),
        name="base",
    )
    kept = [0 if at in axes else None for at in range(len(x.shape))]

    def power(*index: Any) -> Any:
        row = tuple(i if k is None else k for i, k in zip(index, kept, strict=True))
        return tirx.exp(x(*index) - base[row])

    total = reduce_rows(te.compute(x.shape, power, name="power"), axes, keepdims, SUM)

    def result(*index: Any) -> Any:
        rest = iter(index)
        row = tuple(next(rest) if k is None or keepdims else 0 for k in kept)
        summed = total(*index)
        return (tirx.log(summed) + base[row]).astype(dtype)

    return te.compute(total.shape, result, name="log_sum_exp")


def _cast(x: te.Tensor, dtype: str) -> te.Tensor:
    from tvm import te

    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="cast")


def _static_product(extents: Sequence[Any]) -> Any:
    product: Any = 1
    for extent in extents:
        known = static_extent(extent)
        product = product * (extent if known is None else known)
    return product


def truth(x: te.Tensor, axes: Sequence[int], keepdims: bool, every: bool) -> te.Tensor:
    """Whether every (any) element over ``axes`` holds."""
    from tvm import tirx

    if every:
        reducer = Reducer(lambda a, b: tirx.And(a, b), lambda _: tirx.const(True, "bool"))
    else:
        reducer = Reducer(lambda a, b: tirx.Or(a, b), lambda _: tirx.const(False, "bool"))
    return reduce_rows(x, axes, keepdims, reducer)


def arg_extreme(
    x: te.Tensor, axes: Sequence[int], keepdims: bool, larger: bool, last: bool = False
) -> te.Tensor:
    """Position (int64) of the first extreme over ``axes`` taken as one; NaN counts as extreme.

    Args:
        last: the last one of equals instead.
    """
    from tvm import te, tirx

    spans = [te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes]
    rank = len(x.shape)
    kept = [axis for axis in range(rank) if axis not in axes]
    shape = [1 if a in axes else x.shape[a] for a in range(rank) if keepdims or a not in axes]
    reducer = te.comm_reducer(
        _position_fold(str(x.dtype), larger, last),
        _position_identity(str(x.dtype), larger, last),
        name="arg_extreme",
    )

    def element(*ix: Any) -> Any:
        at: list[Any] = [None] * rank
        for position, axis in enumerate(range(rank) if keepdims else kept):
            at[axis] = ix[position]
        flat: Any = tirx.const(0, "int64")
        for span, axis in zip(spans, axes, strict=True):
            at[axis] = span
            flat = flat * tirx.Cast("int64", x.shape[axis]) + tirx.Cast("int64", span.var)
        return reducer((flat, x(*at)), axis=spans)

    index, _ = te.compute(shape, element, name="arg_extreme")
    return te.compute(shape, lambda *ix: index(*ix), name="arg_index")


def _position_fold(dtype: str, larger: bool, last: bool) -> Callable[[Any, Any], Any]:
    from tvm import tirx

    def fold(a: Any, b: Any) -> Any:
        earlier = a[0] > b[0] if last else a[0] < b[0]
        ahead = a[1] > b[1] if larger else a[1] < b[1]
        pick = tirx.Or(ahead, tirx.And(a[1] == b[1], earlier))
        if "float" in dtype:
            nan_a, nan_b = is_nan(a[1]), is_nan(b[1])
            pick = tirx.Select(nan_b, tirx.And(nan_a, earlier), tirx.Or(nan_a, pick))
        return tirx.Select(pick, a[0], b[0]), tirx.Select(pick, a[1], b[1])

    return fold


def _position_identity(dtype: str, larger: bool, last: bool) -> Callable[[str, str], Any]:
    from tvm import tirx

    def identity(index: str, value: str) -> Any:
        del index, value
        if "float" in dtype:
            worst = tirx.const(float("-inf" if larger else "inf"), dtype)
        else:
            worst = tirx.min_value(dtype) if larger else tirx.max_value(dtype)
        return tirx.const(-1 if last else 2**63 - 1, "int64"), worst

    return identity
