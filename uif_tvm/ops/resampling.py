"""Resampling along axes: where result elements lie, and what they weigh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.linear import WIDE, exactly, is_float, normal
from uif_tvm.ops.spec import (
    ALL,
    FLOATS,
    LOOSE,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder


MODES = ("nearest", "linear", "cubic")
TRANSFORMS = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def source_positions(
    transform: str, length: int, size: int, scale: float, roi: tuple[float, float] | None = None
) -> Array:
    """Where each of ``size`` result elements lies on an axis of ``length`` elements."""
    x = np.arange(size, dtype=np.float64)
    resized = scale * length
    if transform == "asymmetric":
        return x / scale
    if transform == "align_corners":
        return x * (length - 1) / (resized - 1) if resized != 1 else np.zeros(size)
    if transform == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if resized > 1 else np.zeros(size)
    if transform == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if transform == "half_pixel_symmetric":
        return length / 2 * (1 - size / resized) + (x + 0.5) / scale - 0.5
    if transform == "tf_crop_and_resize":
        if roi is None:
            raise ShapeError("tf_crop_and_resize needs a roi")
        start, end = roi
        if size > 1:
            return start * (length - 1) + x * (end - start) * (length - 1) / (size - 1)
        return np.full(1, 0.5 * (start + end) * (length - 1))
    if transform == "half_pixel":
        return (x + 0.5) / scale - 0.5
    raise ShapeError(f"coordinate transformation {transform!r} does not exist")


def nearest(positions: Array, rounding: str) -> Array:
    """Index of the element taken."""
    if rounding == "round_prefer_floor":
        return np.ceil(positions - 0.5)
    if rounding == "round_prefer_ceil":
        return np.floor(positions + 0.5)
    if rounding == "floor":
        return np.floor(positions)
    if rounding == "ceil":
        return np.ceil(positions)
    raise ShapeError(f"rounding {rounding!r} does not exist")


def taps_of(
    positions: Array,
    length: int,
    mode: str,
    scale: float,
    cubic_a: float = -0.75,
    antialias: bool = False,
    exclude_outside: bool = False,
) -> tuple[Array, Array]:
    """Input indices and weights of each result element, shapes (size, taps)."""
    antialias = antialias and scale < 1
    stretch = 1 / scale if antialias else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    low = np.floor(positions - reach).astype(int) + 1
    index = low[:, None] + np.arange(math.ceil(2 * reach) + 1)[None]
    distance = np.abs(positions[:, None] - index) / stretch
    if mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        a = cubic_a
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    if exclude_outside:
        weights = np.where((index < 0) | (index >= length), 0, weights)
    if exclude_outside or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    used = np.abs(weights).max(0) > 0
    return np.clip(index, 0, length - 1)[:, used], weights[:, used]


def resample(x: Array, index: Array, weights: Array, axis: int) -> Array:
    """Sum over taps of ``weights[i, tap] * x[.., index[i, tap], ..]`` along an axis.

    Integers are rounded to the nearest, ties to even, and saturate.
    """
    taken = np.moveaxis(np.take(x, index, axis), (axis % x.ndim, axis % x.ndim + 1), (-2, -1))
    total = np.moveaxis((taken * weights).sum(-1), -1, axis)
    if is_float(x.dtype):
        return total
    info = np.iinfo(x.dtype)
    return np.clip(np.rint(total), info.min, info.max).astype(x.dtype)


def plan(shape: Sequence[int], attrs: Attrs) -> list[tuple[int, int, float, Array]]:
    """(axis, length, scale, positions) of each axis that changes.

    Raises:
        ShapeError: sizes or scales do not fit.
    """
    sizes, scales, roi = (list(attrs[name]) for name in ("sizes", "scales", "roi"))
    rank = len(shape)
    scales = scales or [size / n if n else 1.0 for size, n in zip(sizes, shape, strict=True)]
    if len(sizes) != rank or len(scales) != rank or min(scales, default=1) <= 0:
        raise ShapeError(f"sizes {sizes} and scales {scales} for {rank} axes")
    crop = attrs["transform"] == "tf_crop_and_resize"
    if crop and len(roi) != 2 * rank:
        raise ShapeError(f"a roi of {len(roi)} numbers for {rank} axes")
    rows = []
    for axis, (length, size, scale) in enumerate(zip(shape, sizes, scales, strict=True)):
        if length == size and scale == 1 and not crop:
            continue
        part = (roi[axis], roi[axis + rank]) if crop else None
        at = source_positions(attrs["transform"], length, size, scale, part)
        rows.append((axis, length, scale, at))
    return rows


def _options(attrs: Attrs) -> tuple[float, bool, bool]:
    return attrs["cubic_a"], attrs["antialias"], attrs["exclude_outside"]


def outside(rows: Sequence[tuple[int, int, float, Array]], sizes: Sequence[int]) -> Array:
    """Which result elements lie outside of the input, for ``tf_crop_and_resize``."""
    mask = np.zeros(tuple(sizes), bool)
    for axis, length, _, at in rows:
        line = (at < 0) | (at > length - 1)
        mask |= line.reshape([-1 if a == axis else 1 for a in range(len(sizes))])
    return mask


def resize(x: Array, **attrs: Any) -> Array:
    """Nearest, linear or cubic resampling, one axis after the other."""
    rows = plan(x.shape, attrs)
    for axis, length, scale, at in rows:
        if attrs["mode"] == "nearest":
            index = np.clip(nearest(at, attrs["rounding"]), 0, length - 1).astype(np.int64)
            x = np.take(x, index, axis)
        else:
            taps = taps_of(at, length, attrs["mode"], scale, *_options(attrs))
            x = resample(x, *taps, axis)
    if attrs["transform"] != "tf_crop_and_resize":
        return x
    fill = np.asarray(attrs["extrapolation"]).astype(x.dtype)
    return np.where(outside(rows, attrs["sizes"]), fill, x)


def decompose_resize(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """One gather or weighted sum per axis, by tables made here."""
    (x,) = operands
    shape = b.shape(x)
    if not all(isinstance(extent, int) for extent in shape):
        raise ShapeError("tables for an extent that is settled at run time")
    rows = plan(shape, attrs)
    wide = "float64" if b.dtype(x) == "float64" else "float32"
    for axis, length, scale, at in rows:
        if attrs["mode"] == "nearest":
            index = np.clip(nearest(at, attrs["rounding"]), 0, length - 1)
            x = b.op("take", x, b.const(index, "int64"), axis=axis)
        else:
            index, weights = taps_of(at, length, attrs["mode"], scale, *_options(attrs))
            tables = b.const(index, "int64"), b.const(weights, wide)
            x = b.op("resample", x, *tables, axis=axis)
    if attrs["transform"] != "tf_crop_and_resize":
        return x
    mask = outside(rows, attrs["sizes"])
    fill = b.const(attrs["extrapolation"], b.dtype(x))
    return b.op("where", b.const(mask, "bool"), fill, x) if mask.any() else x


def _resample_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, index, weights = types
    axis = infer.axis_of(attrs["axis"], x.rank)
    if index.rank != 2 or not all(map(infer.equal, index.shape, weights.shape)):
        raise ShapeError("index and weights must both be [size, taps]")
    return (TensorType((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), x.dtype),)


def _resize_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    sizes = tuple(attrs["sizes"])
    if len(sizes) != types[0].rank or min(sizes, default=1) < 1:
        raise ShapeError(f"sizes {list(sizes)} for rank {types[0].rank}")
    return (TensorType(sizes, types[0].dtype),)


def _resample_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    taps = types[1].shape[1]
    return 2.0 * elements(results[0]) * (taps if isinstance(taps, int) else 2)


def _resamples() -> Iterable[Case]:
    x = normal(2, 3, 5)
    linear = taps_of(source_positions("half_pixel", 5, 8, 1.6), 5, "linear", 1.6)
    tables = linear[0].astype(np.int64), linear[1].astype(np.float32)
    yield Case("last-axis", (x, *tables), {"axis": -1})
    cubic = taps_of(source_positions("asymmetric", 3, 7, 7 / 3), 3, "cubic", 7 / 3)
    yield Case("cubic", (x, cubic[0].astype(np.int64), cubic[1].astype(np.float32)), {"axis": 1})
    pixels = np.arange(10, dtype=np.uint8).reshape(2, 5) * 25
    heavy = tables[0], tables[1] * np.float32(1.5)
    yield Case("uint8-saturates", (pixels, *heavy), {"axis": 1})
    nan = x.copy()
    nan[0, 0, 2], nan[1, 1, 0] = np.nan, np.inf
    yield Case("nan-inf", (nan, *tables), {"axis": 2})


def _resizes() -> Iterable[Case]:
    x = normal(1, 2, 4, 5)
    for transform in TRANSFORMS[:6]:
        attrs = {"sizes": (1, 2, 7, 3), "transform": transform}
        yield Case(f"linear-{transform}", (x,), {**attrs, "mode": "linear"})
    for rounding in ROUNDINGS:
        attrs = {"sizes": (1, 2, 8, 3), "rounding": rounding}
        yield Case(f"nearest-{rounding}", (x,), attrs)
    down = {"sizes": (1, 2, 2, 3), "antialias": True}
    yield Case("linear-antialias", (x,), {**down, "mode": "linear"})
    yield Case("cubic-antialias-exclude", (x,), {**down, "mode": "cubic", "exclude_outside": True})
    cubic = {"sizes": (1, 2, 9, 10), "mode": "cubic", "cubic_a": -0.5}
    yield Case("cubic", (x,), cubic)
    scaled = {"sizes": (1, 2, 6, 7), "scales": (1.0, 1.0, 1.6, 1.5), "mode": "linear"}
    yield Case("scales", (x,), scaled)
    crop = {"sizes": (1, 2, 3, 3), "transform": "tf_crop_and_resize", "extrapolation": 10.0}
    roi = (0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7)
    yield Case("crop", (x,), {**crop, "roi": roi, "mode": "linear"})
    yield Case("to-one", (x,), {"sizes": (1, 2, 1, 1), "mode": "linear"})
    yield Case("one-axis", (normal(3),), {"sizes": (5,), "mode": "cubic"})


SPECS = (
    OpSpec(
        "resample",
        "vision",
        exactly(resample),
        _resample_type,
        operands=(Operand("x"), Operand("index"), Operand("weights")),
        attributes=(Attribute("axis"),),
        dtypes=(*FLOATS, "int8", "uint8", "int16", "int32"),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_resamples,
        flops=_resample_flops,
    ),
    OpSpec(
        "resize",
        "vision",
        exactly(resize),
        _resize_type,
        attributes=(
            Attribute("sizes"),
            Attribute("scales", ()),
            Attribute("mode", "nearest", MODES),
            Attribute("transform", "half_pixel", TRANSFORMS),
            Attribute("rounding", "round_prefer_floor", ROUNDINGS),
            Attribute("cubic_a", -0.75),
            Attribute("antialias", False),
            Attribute("exclude_outside", False),
            Attribute("extrapolation", 0.0),
            Attribute("roi", ()),
        ),
        dtypes=ALL,
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_resizes,
        decompose=decompose_resize,
        flops=4,
        source="ONNX Resize-19",
    ),
)
