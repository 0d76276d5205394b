"""GridSample over any number of spatial axes, from ONNX's own formulas."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.registry import converter

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of before version 20."""
CUBIC_A = -0.75
"""Keys' coefficient, which the operator fixes."""
Tap = tuple[Any, Any]
"""Whole position on an axis, and its weight."""


@converter("GridSample", since=16)
def grid_sample(ctx: NodeContext) -> relax.Expr:
    """X sampled at normalised coordinates: x over the last axis first, then y, then z."""
    given = ctx.attrs.get("mode", "linear")
    mode = MODES.get(given, given)
    padding = ctx.attrs.get("padding_mode", "zeros")
    align = bool(ctx.attrs.get("align_corners", 0))
    batch, channels, *extents = ctx.static_shape(0)
    n, *out, parts = ctx.static_shape(1)
    if n != batch or parts != len(extents) or len(out) != len(extents):
        raise ctx.invalid(f"a grid of shape {[n, *out, parts]} for {len(extents)} spatial axes")
    if mode not in ("linear", "nearest", "cubic") or padding not in PADDINGS:
        raise ctx.invalid(f"mode {mode!r} with padding_mode {padding!r}")
    dtype = ctx.dtype(0)
    if mode != "nearest" and "float" not in dtype:
        raise Unsupported(f"{mode} interpolation of {dtype}")
    if 0 in extents:
        raise ctx.invalid("X has no elements to sample")
    inner = "float64" if "float64" in (dtype, ctx.dtype(1)) else "float32"

    def compute(x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        def at(b: Any, c: Any, *place: Any) -> Any:
            taps = []
            for axis, extent in enumerate(extents):
                value = grid(b, *place, len(extents) - 1 - axis).astype(inner)
                taps.append(axis_taps(_pixels(value, extent, align), extent, mode, padding, align))
            total: Any = None
            for chosen in itertools.product(*taps):
                item = read_pixel(x, (b, c), [tap[0] for tap in chosen], extents, padding, align)
                if mode == "nearest":
                    return item
                part = item.astype(inner)
                for _, weight in chosen:
                    part = part * weight
                total = part if total is None else total + part
            return total.astype(dtype)

        return te.compute((batch, channels, *out), at, name="grid_sample")

    return ctx.te(compute, ctx.expr(0), ctx.expr(1), name="grid_sample")


PADDINGS = ("zeros", "border", "reflection")


def _pixels(value: Any, extent: int, align: bool) -> Any:
    """Pixel coordinate of a normalised one: -1 and 1 are the first and last pixel's centres
    (``align``) or outer edges."""

    def c(number: float) -> Any:
        return tirx.const(number, kind(value))

    if align:
        return (value + c(1)) / c(2) * c(extent - 1)
    return ((value + c(1)) * c(extent) - c(1)) / c(2)


def axis_taps(at: Any, extent: int, mode: str, padding: str, align: bool) -> list[Tap]:
    """The whole positions that a pixel coordinate touches, and their weights."""
    dtype = kind(at)

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
    def c(number: float) -> Any:
        return tirx.const(number, kind(x))

    return (c(CUBIC_A + 2) * x - c(CUBIC_A + 3)) * x * x + c(1)


def _far(x: Any) -> Any:
    def c(number: float) -> Any:
        return tirx.const(number, kind(x))

    return ((c(CUBIC_A) * x - c(5 * CUBIC_A)) * x + c(8 * CUBIC_A)) * x - c(4 * CUBIC_A)


def _drawn_in(at: Any, extent: int, padding: str, align: bool) -> Any:
    """A coordinate beyond the borders brought back: to the edge pixel, or reflected."""
    dtype = kind(at)

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
    x: te.Tensor,
    lead: tuple[Any, ...],
    places: list[Any],
    extents: list[int],
    padding: str,
    align: bool,
) -> Any:
    """The element at whole positions, which may lie outside."""
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
        return tirx.Select(tirx.all(*inside), value, tirx.const(0, kind(x)))
    return value
