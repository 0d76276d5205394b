"""Sampling of images between pixels, at coordinates that are data."""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from uif_tvm.kernels.extents import known
from uif_tvm.kernels.norm import accumulator
from uif_tvm.ops.convolution import each, padding_of
from uif_tvm.ops.sampling import CUBIC_A

_UNROLLED = 6
"""Taps up to which a weighted sum is one expression: those of linear and cubic interpolation."""
Tap = tuple[Any, Any]
"""Whole position on an axis, and its weight."""


def _kind(item: Any) -> str:
    """Dtype name of a tensor or of a scalar expression."""
    return str(item.dtype if hasattr(item, "dtype") else item.ty.dtype)


def resample(x: Any, index: Any, weights: Any, axis: int) -> Any:
    """Sum over taps of ``weights[i, tap] * x[.., index[i, tap], ..]`` along an axis."""
    from tvm import te

    axis, dtype = axis % len(x.shape), str(x.dtype)
    (taps,) = known(index.shape[1:])
    inner = "float64" if dtype == "float64" else "float32"

    shape = [*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]]

    def part(i: Any, tap: Any) -> Any:
        item = x(*i[:axis], index(i[axis], tap), *i[axis + 1 :]).astype(inner)
        return item * weights(i[axis], tap)

    if taps > _UNROLLED:
        k = te.reduce_axis((0, taps), name="k")
        total = te.compute(shape, lambda *i: te.sum(part(i, k), axis=k), name="resize_axis")
        if inner == dtype:
            return total
        return te.compute(shape, lambda *i: _rounded(total(*i), dtype), name="rounded")

    def at(*i: Any) -> Any:
        value = part(i, 0)
        for tap in range(1, taps):
            value = value + part(i, tap)
        return value if inner == dtype else _rounded(value, dtype)

    return te.compute(shape, at, name="resize_axis")


def _rounded(value: Any, dtype: str) -> Any:
    """A float in another type: integers by rounding, ties to even, and saturation."""
    from tvm import tirx

    if "float" in dtype:
        return value.astype(dtype)
    low, high = tirx.min_value(dtype), tirx.max_value(dtype)
    wide = str(value.ty.dtype)
    bounded = tirx.max(tirx.nearbyint(value), low.astype(wide))
    return tirx.min(bounded, high.astype(wide)).astype(dtype)


def grid_sample(x: Any, grid: Any, mode: str, padding_mode: str, align_corners: bool) -> Any:
    """Values of ``x`` at the grid's coordinates; image extents must be static."""
    from tvm import te

    dtype, extents = str(x.dtype), known(x.shape[2:])
    inner = "float64" if "float64" in (dtype, str(grid.dtype)) else "float32"

    def at(b: Any, c: Any, *place: Any) -> Any:
        taps = []
        for axis, extent in enumerate(extents):
            value = grid(b, *place, len(extents) - 1 - axis).astype(inner)
            pixel = _pixels(value, extent, align_corners)
            taps.append(axis_taps(pixel, extent, mode, padding_mode, align_corners))
        total: Any = None
        for chosen in itertools.product(*taps):
            places = [position for position, _ in chosen]
            item = read_pixel(x, (b, c), places, extents, padding_mode, align_corners)
            if mode == "nearest":
                return item
            part = item.astype(inner)
            for _, weight in chosen:
                part = part * weight
            total = part if total is None else total + part
        return total.astype(dtype)

    return te.compute((*x.shape[:2], *grid.shape[1:-1]), at, name="grid_sample")


def deform_columns(
    x: Any,
    offset: Any,
    mask: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    offset_groups: int,
) -> Any:
    """Windows whose taps are moved and weighted; image extents must be static."""
    from tvm import te, tirx

    extents, dtype = known(x.shape[2:]), str(x.dtype)
    rank, taps, inner = len(extents), math.prod(kernel), accumulator(str(x.dtype))
    strides, dilation = each(strides, rank), each(dilation, rank)
    before, _ = padding_of(padding, rank)
    share = x.shape[1] // offset_groups

    def at(b: Any, c: Any, tap: Any, *o: Any) -> Any:
        shift, rest, steps = tirx.floordiv(c, share) * taps + tap, tap, []
        for extent in reversed(kernel):
            steps.insert(0, tirx.floormod(rest, extent))
            rest = tirx.floordiv(rest, extent)
        axes = []
        for axis, extent in enumerate(extents):
            whole = o[axis] * strides[axis] - before[axis] + steps[axis] * dilation[axis]
            moved = whole.astype(inner) + offset(b, shift * rank + axis, *o).astype(inner)
            axes.append(axis_taps(moved, extent, "linear", "zeros", True))
        total: Any = None
        for chosen in itertools.product(*axes):
            part = read_pixel(x, (b, c), [p for p, _ in chosen], extents, "zeros", True)
            part = part.astype(inner)
            for _, weight in chosen:
                part = part * weight
            total = part if total is None else total + part
        if mask is not None:
            total = total * mask(b, shift, *o).astype(inner)
        return total.astype(dtype)

    return te.compute((*x.shape[:2], taps, *offset.shape[2:]), at, name="deform_columns")


def _pixels(value: Any, extent: int, align: bool) -> Any:
    """Pixel coordinate of a normalised one: -1 and 1 are the first and last pixel's centres
    (``align``) or outer edges."""
    from tvm import tirx

    def c(number: float) -> Any:
        return tirx.const(number, _kind(value))

    if align:
        return (value + c(1)) / c(2) * c(extent - 1)
    return ((value + c(1)) * c(extent) - c(1)) / c(2)


def axis_taps(at: Any, extent: int, mode: str, padding: str, align: bool) -> list[Tap]:
    """The whole positions that a pixel coordinate touches, and their weights."""
    from tvm import tirx

    dtype = _kind(at)

    def c(number: float) -> Any:
        return tirx.const(number, dtype)

    if mode == "nearest":
        at = tirx.nearbyint(at)
    at = _drawn_in(at, extent, padding, align)
    if mode == "nearest":
        return [(at.astype("int64"), c(1))]
    low = tirx.floor(at)
    rest, first = at - low, low.astype("int64")
    if mode == "linear":
        return [(first, c(1) - rest), (first + 1, rest)]
    weights = [_far(rest + c(1)), _near(rest), _near(c(1) - rest), _far(c(2) - rest)]
    return [(first + step - 1, weight) for step, weight in enumerate(weights)]


def _near(x: Any) -> Any:
    from tvm import tirx

    def c(number: float) -> Any:
        return tirx.const(number, _kind(x))

    return (c(CUBIC_A + 2) * x - c(CUBIC_A + 3)) * x * x + c(1)


def _far(x: Any) -> Any:
    from tvm import tirx

    def c(number: float) -> Any:
        return tirx.const(number, _kind(x))

    return ((c(CUBIC_A) * x - c(5 * CUBIC_A)) * x + c(8 * CUBIC_A)) * x - c(4 * CUBIC_A)


def _drawn_in(at: Any, extent: int, padding: str, align: bool) -> Any:
    """A coordinate beyond the borders brought back: to the edge pixel, or reflected."""
    from tvm import tirx

    dtype = _kind(at)

    def c(number: float) -> Any:
        return tirx.const(number, dtype)

    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    if padding == "zeros":
        return at
    outside = tirx.any(at < c(low), at > c(high))
    if padding == "border":
        edge = tirx.max(tirx.min(at, c(extent - 1)), c(0))
        return tirx.Select(outside, edge, at)
    span = high - low
    if span <= 0:
        return c(low)
    away = tirx.abs(at - c(low))
    turns = tirx.floor(away / c(span))
    rest = away - turns * c(span)
    odd = turns - c(2) * tirx.floor(turns / c(2))
    back = tirx.Select(odd > c(0.5), c(span) - rest, rest) + c(low)
    return tirx.Select(outside, back, at)


def read_pixel(
    x: Any,
    lead: tuple[Any, ...],
    places: list[Any],
    extents: list[int],
    padding: str,
    align: bool,
) -> Any:
    """The element at whole positions, which may lie outside."""
    from tvm import tirx

    inside = [tirx.all(p >= 0, p < extent) for p, extent in zip(places, extents, strict=True)]
    near = []
    for place, extent in zip(places, extents, strict=True):
        if padding == "reflection":
            period = max(2 * (extent - 1), 1) if align else 2 * extent
            turned = tirx.floormod(place, tirx.const(period, "int64"))
            mirrored = tirx.const(period if align else period - 1, "int64") - turned
            place = tirx.Select(turned < extent, turned, mirrored)
        near.append(tirx.max(tirx.min(place, tirx.const(extent - 1, "int64")), 0))
    value = x(*lead, *near)
    if padding == "zeros":
        return tirx.Select(tirx.all(*inside), value, tirx.const(0, _kind(x)))
    return value
