"""Reading images between pixels, at coordinates that are data.

Images are ``[batch, channels, spatial ...]``. Grids hold, for each result element, its normalised
coordinates in the last axis, that of the image's last axis first: -1 and 1 are the centres of the
first and last pixel (``align_corners``) or their outer edges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.linear import array, exactly, normal
from uif_tvm.ops.spec import (
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

Pixel = Callable[[Sequence[Array]], Array]

#: Keys' coefficient of cubic interpolation.
CUBIC_A = -0.75
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def axis_weights(at: Array, mode: str) -> list[tuple[Array, Array]]:
    """Whole positions that a pixel coordinate touches, and their weights."""
    if mode == "nearest":
        return [(np.rint(at).astype(np.int64), np.ones_like(at))]
    low = np.floor(at)
    t, first = at - low, low.astype(np.int64)
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    a = CUBIC_A

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = far(t + 1), near(t), near(1 - t), far(2 - t)
    return [(first + step - 1, weight) for step, weight in enumerate(weights)]


def interpolate(pixel: Pixel, places: Sequence[Array], mode: str) -> Array:
    """Weighted sum of the pixels around each position, axis by axis."""
    total: Any = 0
    for chosen in itertools.product(*[axis_weights(at, mode) for at in places]):
        weight = math.prod((w for _, w in chosen), start=np.float64(1))
        total = total + pixel([p for p, _ in chosen]) * weight
    return np.asarray(total)


def zero_padded(image: Array) -> Pixel:
    """Pixels at whole positions of one image; zero outside."""
    extents = image.shape

    def pixel(places: Sequence[Array]) -> Array:
        inside = np.ones(np.broadcast(*places).shape if len(places) > 1 else places[0].shape, bool)
        for place, extent in zip(places, extents, strict=True):
            inside = inside & (place >= 0) & (place < extent)
        near = [np.clip(p, 0, n - 1) for p, n in zip(places, extents, strict=True)]
        return np.where(inside, image[tuple(near)], 0)

    return pixel


def _reflected(place: Array, extent: int, align: bool) -> Array:
    """A whole position outside, mirrored at the first and last pixel or at their outer edges."""
    period = max(2 * (extent - 1), 1) if align else 2 * extent
    turned = np.mod(place, period)
    mirrored = (period if align else period - 1) - turned
    return np.clip(np.where(turned < extent, turned, mirrored), 0, extent - 1)


def _drawn_in(at: Array, extent: int, padding: str, align: bool) -> Array:
    """A coordinate beyond the borders brought back to the edge pixel, or reflected."""
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    if padding == "zeros":
        return at
    beyond = (at < low) | (at > high)
    if padding == "border":
        return np.where(beyond, np.clip(at, 0, extent - 1), at)
    span = high - low
    if span <= 0:
        return np.full_like(at, low)
    turns, rest = np.divmod(np.abs(at - low), span)
    return np.where(beyond, np.where(turns % 2 == 1, span - rest, rest) + low, at)


def grid_sample(x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """Values of ``x`` at the grid's coordinates."""
    extents = x.shape[2:]
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)

    def pixel_of(image: Array) -> Pixel:
        if padding_mode == "zeros":
            return zero_padded(image)

        def pixel(places: Sequence[Array]) -> Array:
            near = [
                _reflected(p, n, align_corners)
                if padding_mode == "reflection"
                else np.clip(p, 0, n - 1)
                for p, n in zip(places, extents, strict=True)
            ]
            return image[tuple(near)]

        return pixel

    for batch in range(x.shape[0]):
        places = []
        for axis, n in enumerate(extents):
            value = grid[batch, ..., len(extents) - 1 - axis]
            at = (value + 1) / 2 * (n - 1) if align_corners else ((value + 1) * n - 1) / 2
            at = np.rint(at) if mode == "nearest" else at
            places.append(_drawn_in(at, n, padding_mode, align_corners))
        for channel in range(x.shape[1]):
            y[batch, channel] = interpolate(pixel_of(x[batch, channel]), places, mode)
    return y


def grid_points(spatial: Sequence[int], align_corners: bool) -> Array:
    """Normalised (x, y[, z], 1) of every pixel, shape (pixels, axes + 1)."""
    lines = []
    for extent in spatial:
        if align_corners:
            lines.append(np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1))
        else:
            lines.append((2 * np.arange(extent) + 1) / extent - 1)
    mesh = np.meshgrid(*lines, indexing="ij")
    count = math.prod(spatial)
    axes = [axis.reshape(count) for axis in reversed(mesh)]
    return np.stack([*axes, np.ones(count)], axis=1)


def affine_grid(theta: Array, size: Sequence[int], align_corners: bool) -> Array:
    """``theta[n] @ (x, y[, z], 1)`` of every pixel of an image of ``size`` (spatial extents)."""
    points = grid_points(size, align_corners)
    moved = points @ np.swapaxes(theta, 1, 2)
    return moved.reshape(theta.shape[0], *size, len(size)).astype(theta.dtype)


def roi_align(
    x: Array,
    rois: Array,
    batch_index: Array,
    output_size: Sequence[int],
    spatial_scale: float,
    sampling_ratio: int,
    half_pixel: bool,
    average: bool,
) -> Array:
    """Mean of bilinear samples of each cell of each region (x1, y1, x2, y2).

    With ``sampling_ratio`` 0 a cell has as many samples per axis as pixels. Samples more than a
    pixel outside are zero. The maximum is over the four weighted pixels of every sample.
    """
    y = np.zeros((len(rois), x.shape[1], *output_size), x.dtype)
    (rows, columns), limits = output_size, x.shape[2:]
    for r, (roi, image) in enumerate(zip(rois, x[batch_index], strict=True)):
        x1, y1, x2, y2 = roi * spatial_scale - (0.5 if half_pixel else 0)
        spans = (y2 - y1, x2 - x1) if half_pixel else (max(y2 - y1, 1), max(x2 - x1, 1))
        counts = [
            sampling_ratio or max(math.ceil(span / cells), 0)
            for span, cells in zip(spans, output_size, strict=True)
        ]
        for i, j in np.ndindex(rows, columns):
            samples = []
            for a, b in np.ndindex(*counts):
                at = [
                    start + span / cells * (cell + (k + 0.5) / count)
                    for start, span, cells, cell, k, count in zip(
                        (y1, x1), spans, output_size, (i, j), (a, b), counts, strict=True
                    )
                ]
                samples.append(_corners(image, at, limits))
            if not samples:
                continue
            stacked = np.stack(samples)  # samples, corners, channels
            y[r, :, i, j] = stacked.sum(1).mean(0) if average else stacked.max((0, 1))
    return y


def _corners(image: Array, at: Sequence[float], limits: Sequence[int]) -> Array:
    """The four weighted pixels around a position, ``[4, channels]``."""
    if any(p < -1 or p > n for p, n in zip(at, limits, strict=True)):
        return np.zeros((4, image.shape[0]), image.dtype)
    y, x = (min(max(p, 0.0), n - 1.0) for p, n in zip(at, limits, strict=True))
    top, left = int(y), int(x)
    below, right = min(top + 1, limits[0] - 1), min(left + 1, limits[1] - 1)
    dy, dx = y - top, x - left
    return np.stack(
        [
            image[:, top, left] * (1 - dy) * (1 - dx),
            image[:, top, right] * (1 - dy) * dx,
            image[:, below, left] * dy * (1 - dx),
            image[:, below, right] * dy * dx,
        ]
    )


def _grid_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, grid = types
    if grid.rank != x.rank or not infer.equal(grid.shape[-1], x.rank - 2):
        raise ShapeError(f"a grid {list(grid.shape)} for an image {list(x.shape)}")
    return (TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype),)


def _affine_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    theta, size = types[0], tuple(attrs["size"])
    if theta.rank != 3 or tuple(theta.shape[1:]) != (len(size), len(size) + 1):
        raise ShapeError(f"theta must be [batch, {len(size)}, {len(size) + 1}]")
    return (TensorType((theta.shape[0], *size, len(size)), theta.dtype),)


def _roi_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, rois, index = types
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or index.rank != 1:
        raise ShapeError("an image of rank 4, rois [regions, 4] and batch indices [regions]")
    return (TensorType((rois.shape[0], x.shape[1], *attrs["output_size"]), x.dtype),)


def _grid_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    each = {"nearest": 1, "linear": 2, "cubic": 4}[attrs["mode"]]
    return 4.0 * elements(results[0]) * each ** (types[0].rank - 2)


def _roi_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    return 12.0 * elements(results[0]) * max(attrs["sampling_ratio"], 2) ** 2


def decompose_affine_grid(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """One matrix product with the table of points."""
    (theta,) = operands
    size = tuple(attrs["size"])
    wide = "float64" if b.dtype(theta) == "float64" else "float32"
    points = b.const(grid_points(size, attrs["align_corners"]), wide)
    own = theta if b.dtype(theta) == wide else b.op("astype", theta, dtype=wide)
    moved = b.op("matmul", points, b.op("permute_dims", own, axes=(0, 2, 1)))
    grid = b.op("reshape", moved, shape=(b.shape(theta)[0], *size, len(size)))
    return grid if wide == b.dtype(theta) else b.op("astype", grid, dtype=b.dtype(theta))


def _grids() -> Iterable[Case]:
    x, grid = normal(2, 3, 4, 5), normal(2, 3, 6, 2, seed=1)
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            align = mode != "nearest" and padding != "border"
            attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
            yield Case(f"{mode}-{padding}", (x, grid), attrs)
    volume = normal(1, 2, 3, 4, 5), normal(1, 2, 3, 2, 3, seed=1)
    yield Case("volume", volume, {"padding_mode": "reflection"})
    yield Case("volume-cubic", volume, {"mode": "cubic"})
    line = normal(1, 2, 6), normal(1, 5, 1, seed=1)
    yield Case("line", line)
    yield Case("size-1", (normal(1, 1, 1, 1), grid[:1]), {"padding_mode": "reflection"})


def _affines() -> Iterable[Case]:
    yield Case("plane", (normal(2, 2, 3),), {"size": (4, 5)})
    yield Case("plane-corners", (normal(2, 2, 3),), {"size": (4, 1), "align_corners": True})
    yield Case("volume", (normal(1, 3, 4),), {"size": (2, 3, 4)})


def _regions() -> Iterable[Case]:
    x = normal(2, 3, 8, 9)
    rois = array("float32", [[0, 0, 4, 5], [1.5, 2, 7.25, 7], [-3, -2, 2, 2], [3, 3, 3.2, 3.1]])
    index = array("int64", [0, 1, 1, 0])
    yield Case("adaptive", (x, rois, index), {"output_size": (2, 3)})
    fixed = {"output_size": (3, 2), "sampling_ratio": 2, "spatial_scale": 0.5}
    yield Case("fixed-ratio", (x, rois, index), fixed)
    yield Case("old-pixels", (x, rois, index), {**fixed, "half_pixel": False})
    yield Case("maximum", (x, rois, index), {**fixed, "average": False})


SPECS = (
    OpSpec(
        "grid_sample",
        "vision",
        exactly(grid_sample),
        _grid_type,
        operands=(Operand("x"), Operand("grid")),
        attributes=(
            Attribute("mode", "linear", ("linear", "nearest", "cubic")),
            Attribute("padding_mode", "zeros", ("zeros", "border", "reflection")),
            Attribute("align_corners", False),
        ),
        dtypes=_FLOATS,
        tolerance=LOOSE,
        cases=_grids,
        flops=_grid_flops,
        source="ONNX GridSample-22",
    ),
    OpSpec(
        "affine_grid",
        "vision",
        exactly(affine_grid),
        _affine_type,
        operands=(Operand("theta"),),
        attributes=(Attribute("size"), Attribute("align_corners", False)),
        dtypes=_FLOATS,
        tolerance=LOOSE,
        cases=_affines,
        decompose=decompose_affine_grid,
        flops=8,
        source="ONNX AffineGrid-20",
    ),
    OpSpec(
        "roi_align",
        "vision",
        exactly(roi_align),
        _roi_type,
        operands=(Operand("x"), Operand("rois"), Operand("batch_index")),
        attributes=(
            Attribute("output_size"),
            Attribute("spatial_scale", 1.0),
            Attribute("sampling_ratio", 0),
            Attribute("half_pixel", True),
            Attribute("average", True),
        ),
        dtypes=_FLOATS,
        tolerance=LOOSE,
        cases=_regions,
        flops=_roi_flops,
        source="ONNX RoiAlign-22",
    ),
)
