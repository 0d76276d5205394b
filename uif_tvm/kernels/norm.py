"""Row kernels: softmax, layer and RMS normalisation, folds of rows.

A row is what one result element (or row of elements) depends on: ``[..., K]``. Sums over a row
run in ``L`` partial accumulators side by side, ``partial[l] = sum_k x[k L + l]``, which are added
as a tree, with the tail of ``K mod L`` elements apart. That is what vector units can do, and it is
also more accurate than one running sum (error grows with K / L + log L instead of K).

Every block carries the family ``row``; a schedule puts all of them below one loop over rows, so
that a row is read from memory once and stays in the first-level cache for later passes.
Float16 and bfloat16 rows are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import math as fmath
from uif_tvm.kernels.matmul import int64, shape64
from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    from tvm import te

ROW = "row"
ROW_ATTRS = {FAMILY_ATTR: ROW}
NO_FAMILY: dict[str, str] = {}
#: Partial accumulators, widest first: two vectors of the widest machine in reach.
_PARTIALS = (32, 16, 8)
#: Below this many accumulators folding goes on in scalars.
_SCALARS = 4
_ACCUMULATE = {"float16": "float32", "bfloat16": "float32"}

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Reducer:
    """An associative combination: how to fold two values, and what folding starts from."""

    fold: Callable[[Any, Any], Any]
    identity: Callable[[str], Any]


def _constant(value: float) -> Callable[[str], Any]:
    def make(dtype: str) -> Any:
        from tvm import tirx

        return tirx.const(value, dtype)

    return make


def _extreme(greater: bool) -> Callable[[Any, Any], Any]:
    """Maximum or minimum in which NaN wins, as NumPy and PyTorch have it."""

    def fold(a: Any, b: Any) -> Any:
        from tvm import tirx

        wins = a > b if greater else a < b
        return tirx.Select(tirx.Or(wins, fmath.is_nan(a)), a, b)

    return fold


SUM = Reducer(lambda a, b: a + b, _constant(0.0))
PRODUCT = Reducer(lambda a, b: a * b, _constant(1.0))
MAXIMUM = Reducer(_extreme(True), _constant(float("-inf")))
MINIMUM = Reducer(_extreme(False), _constant(float("inf")))


def _plain_max(a: Any, b: Any) -> Any:
    from tvm import tirx

    return tirx.max(a, b)


#: Maximum for softmax: NaN need not win here, since it makes the row's sum NaN anyway.
PEAK = Reducer(_plain_max, _constant(float("-inf")))


def accumulator(dtype: str) -> str:
    """Element type in which rows of ``dtype`` are accumulated."""
    return _ACCUMULATE.get(dtype, dtype)


def static_extent(extent: Any) -> int | None:
    """An extent as an int, ``None`` when it is settled at run time."""
    from tvm import tirx

    if isinstance(extent, int):
        return extent
    return int(extent.value) if isinstance(extent, tirx.IntImm) else None


def _tree(values: Sequence[Any], fold: Callable[[Any, Any], Any]) -> Any:
    """Balanced fold of ``values``."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return fold(_tree(values[:half], fold), _tree(values[half:], fold))


def row_fold(
    lead: Sequence[Any],
    depth: Any,
    value: Callable[[Index, Any], Any],
    reducer: Reducer,
    dtype: str,
    name: str,
    attrs: dict[str, str] = ROW_ATTRS,
) -> te.Tensor:
    """``total[row] = fold over k < depth of value(row, k)``, shape ``lead``.

    Args:
        lead: extents of the rows' axes.
        depth: elements of one row.
        value: element ``k`` of a row as an expression of ``dtype``.
        reducer: what to fold with.
        dtype: element type of the accumulators.
        name: prefix of the stages' names.
        attrs: annotations of every stage; without the family, rows do not lie contiguous and
            the fold stays one stage.
    """
    from tvm import te

    reduce = te.comm_reducer(reducer.fold, lambda t: reducer.identity(str(t)), name=name)
    extent = static_extent(depth)
    width = 0
    if extent is not None and attrs:
        width = next((w for w in _PARTIALS if extent >= 2 * w), 0)

    def fold_span(start: int, length: Any) -> te.Tensor:
        k = te.reduce_axis((int64(0), int64(length)), name="k")
        return te.compute(
            shape64(*lead),
            lambda *row: reduce(value(row, k + start if start else k), axis=k),
            name=f"{name}_tail" if start else f"{name}_all",
            attrs=attrs,
        )

    if not width or extent is None:
        return fold_span(0, depth)
    whole = extent // width * width
    tail = fold_span(whole, extent - whole) if extent > whole else None
    k = te.reduce_axis((int64(0), int64(extent // width)), name="k")
    partial = te.compute(
        shape64(*lead, width),
        lambda *index: reduce(value(index[:-1], k * width + index[-1]), axis=k),
        name=f"{name}_partial",
        attrs=attrs,
    )
    # Halves are folded as vectors, down to a handful of scalars.
    while width > _SCALARS:
        width //= 2
        partial = _fold_halves(partial, lead, width, reducer, f"{name}_half{width}")

    def total(*row: Any) -> Any:
        parts = [partial[(*row, lane)].asobject() for lane in range(width)]
        folded = _tree(parts, reducer.fold)
        return folded if tail is None else reducer.fold(folded, tail[row].asobject())

    return te.compute(shape64(*lead), total, name=f"{name}_total", attrs=attrs)


def _fold_halves(
    partial: te.Tensor, lead: Sequence[Any], width: int, reducer: Reducer, name: str
) -> te.Tensor:
    """``out[l] = fold(partial[l], partial[l + width])``."""
    from tvm import te

    def fold(*index: Any) -> Any:
        *row, lane = index
        low, high = partial[(*row, lane)], partial[(*row, lane + width)]
        return reducer.fold(low.asobject(), high.asobject())

    return te.compute(shape64(*lead, width), fold, name=name, attrs=ROW_ATTRS)


def softmax(x: te.Tensor, axis: int, log: bool = False) -> te.Tensor:
    """Softmax (or its logarithm) along ``axis``, in the accumulation type, rounded once."""
    from tvm import te, tirx

    axis = axis % len(x.shape)
    dtype = str(x.dtype)
    wide = accumulator(dtype)
    lead = [extent for at, extent in enumerate(x.shape) if at != axis]
    depth = x.shape[axis]
    attrs = ROW_ATTRS if axis == len(x.shape) - 1 else NO_FAMILY

    def element(row: Index, k: Any) -> Any:
        return x[(*row[:axis], k, *row[axis:])].asobject().astype(wide)

    def split(index: Index) -> tuple[Index, Any]:
        return (*index[:axis], *index[axis + 1 :]), index[axis]

    peak = row_fold(lead, depth, element, PEAK, wide, "peak", attrs)

    def shifted(*index: Any) -> Any:
        row, k = split(index)
        return element(row, k) - peak[row]

    if log:
        total = row_fold(
            lead, depth, lambda r, k: tirx.exp(element(r, k) - peak[r]), SUM, wide, "sum", attrs
        )
        log_total = te.compute(
            shape64(*lead), lambda *r: tirx.log(total[r].asobject()), name="log_total", attrs=attrs
        )
        return te.compute(
            x.shape,
            lambda *i: (shifted(*i) - log_total[split(i)[0]]).astype(dtype),
            name="log_softmax",
            attrs=attrs,
        )
    power = te.compute(x.shape, lambda *i: tirx.exp(shifted(*i)), name="power", attrs=attrs)
    total = row_fold(
        lead,
        depth,
        lambda r, k: power[(*r[:axis], k, *r[axis:])].asobject(),
        SUM,
        wide,
        "sum",
        attrs,
    )
    one = _constant(1.0)(wide)
    inverse = te.compute(shape64(*lead), lambda *r: one / total[r], name="inverse", attrs=attrs)
    return te.compute(
        x.shape,
        lambda *i: (power[i] * inverse[split(i)[0]]).astype(dtype),
        name="softmax",
        attrs=attrs,
    )


def layer_norm(
    x: te.Tensor, gamma: te.Tensor | None, beta: te.Tensor | None, epsilon: float
) -> te.Tensor:
    """``(x - mean) / sqrt(var + epsilon) * gamma + beta`` over the last axis, in two passes.

    The variance is the mean of squared deviations, not ``E[x^2] - mean^2``, so that rows with a
    large mean keep their digits.
    """
    *lead, depth = x.shape
    wide = accumulator(str(x.dtype))

    def element(row: Index, k: Any) -> Any:
        return x[(*row, k)].asobject().astype(wide)

    mean = mean_of(row_fold(lead, depth, element, SUM, wide, "sum"), depth, "mean")

    def deviation(row: Index, k: Any) -> Any:
        return element(row, k) - mean[row]

    squares = row_fold(
        lead, depth, lambda r, k: deviation(r, k) * deviation(r, k), SUM, wide, "squares"
    )
    return _scaled(x, deviation, _inverse_root(squares, depth, epsilon), gamma, beta, "layer_norm")


def rms_norm(x: te.Tensor, weight: te.Tensor | None, epsilon: float) -> te.Tensor:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last axis."""
    *lead, depth = x.shape
    wide = accumulator(str(x.dtype))

    def element(row: Index, k: Any) -> Any:
        return x[(*row, k)].asobject().astype(wide)

    squares = row_fold(
        lead, depth, lambda r, k: element(r, k) * element(r, k), SUM, wide, "squares"
    )
    return _scaled(x, element, _inverse_root(squares, depth, epsilon), weight, None, "rms_norm")


def mean_of(
    total: te.Tensor, depth: Any, name: str, attrs: dict[str, str] = ROW_ATTRS
) -> te.Tensor:
    """``total / depth``."""
    from tvm import te, tirx

    dtype = str(total.dtype)
    known = static_extent(depth)
    count = tirx.const(known, dtype) if known is not None else depth.astype(dtype)
    return te.compute(total.shape, lambda *r: total[r] / count, name=name, attrs=attrs)


def _inverse_root(squares: te.Tensor, depth: Any, epsilon: float) -> te.Tensor:
    """``1 / sqrt(squares / depth + epsilon)`` per row."""
    from tvm import te, tirx

    dtype = str(squares.dtype)
    mean = mean_of(squares, depth, "mean_square")
    one, eps = tirx.const(1.0, dtype), tirx.const(epsilon, dtype)
    return te.compute(
        mean.shape,
        lambda *r: one / tirx.sqrt(mean[r].asobject() + eps),
        name="inverse_root",
        attrs=ROW_ATTRS,
    )


def _scaled(
    x: te.Tensor,
    value: Callable[[Index, Any], Any],
    scale: te.Tensor,
    gamma: te.Tensor | None,
    beta: te.Tensor | None,
    name: str,
) -> te.Tensor:
    """``value * scale * gamma + beta`` in the accumulation type, rounded to x's."""
    from tvm import te

    wide = str(scale.dtype)

    def result(*index: Any) -> Any:
        *row, k = index
        out = value(tuple(row), k) * scale[tuple(row)]
        if gamma is not None:
            out = out * gamma[k].asobject().astype(wide)
        if beta is not None:
            out = out + beta[k].asobject().astype(wide)
        return out.astype(str(x.dtype))

    return te.compute(x.shape, result, name=name, attrs=ROW_ATTRS)
