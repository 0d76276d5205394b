"""Resize and Upsample, from ONNX's own formulas, one axis at a time where that is possible."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Array


def source_positions(
    mode: str, length_in: int, length_out: int, scale: float, roi: tuple[float, float] | None
) -> Array:
    """Where each output element lies on the input axis (``coordinate_transformation_mode``)."""
    x = np.arange(length_out, dtype=np.float64)
    resized = scale * length_in
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (length_in - 1) / (resized - 1) if resized != 1 else np.zeros(length_out)
    if mode == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if resized > 1 else np.zeros(length_out)
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if mode == "half_pixel_symmetric":
        adjustment = length_out / resized
        centre = length_in / 2
        return centre * (1 - adjustment) + (x + 0.5) / scale - 0.5
    if mode == "tf_crop_and_resize":
        if roi is None:
            raise ValueError("tf_crop_and_resize needs a roi")
        start, end = roi
        if length_out > 1:
            return start * (length_in - 1) + x * (end - start) * (length_in - 1) / (length_out - 1)
        return np.full(1, 0.5 * (start + end) * (length_in - 1))
    if mode == "half_pixel":
        return (x + 0.5) / scale - 0.5
    raise ValueError(f"coordinate_transformation_mode {mode!r} does not exist")


def nearest(positions: Array, mode: str) -> Array:
    """Index of the element taken."""
    if mode == "round_prefer_floor":
        return np.ceil(positions - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(positions + 0.5)
    if mode == "floor":
        return np.floor(positions)
    if mode == "ceil":
        return np.ceil(positions)
    raise ValueError(f"nearest_mode {mode!r} does not exist")


def taps_of(
    positions: Array, length: int, mode: str, scale: float, attrs: dict[str, Any]
) -> tuple[Array, Array]:
    """Input indices and weights of each output element, shapes (outputs, taps)."""
    antialias = bool(attrs.get("antialias", 0)) and scale < 1
    stretch = 1 / scale if antialias else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    low = np.floor(positions - reach).astype(int) + 1
    count = math.ceil(2 * reach) + 1
    index = low[:, None] + np.arange(count)[None]
    distance = np.abs(positions[:, None] - index) / stretch
    if mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        a = float(attrs.get("cubic_coeff_a", -0.75))
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    if attrs.get("exclude_outside", 0):
        weights = np.where((index < 0) | (index >= length), 0, weights)
    if attrs.get("exclude_outside", 0) or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(index, 0, length - 1), weights


def resize_axis(
    ctx: NodeContext, x: relax.Expr, axis: int, index: Array, weights: Array
) -> relax.Expr:
    """Weighted sum of a few elements along an axis."""
    used = np.abs(weights).max(0) > 0
    index, weights = index[:, used], weights[:, used]
    taps = index.shape[1]
    dtype = str(x.ty.dtype)
    inner = "float64" if dtype == "float64" else "float32"
    constants = [
        ctx.importer.constant(index.astype(np.int64)),
        ctx.const(weights, inner),
    ]

    def compute(a: te.Tensor, where: te.Tensor, weight: te.Tensor) -> te.Tensor:
        shape = [*a.shape[:axis], index.shape[0], *a.shape[axis + 1 :]]

        def at(*i: Any) -> Any:
            total: Any = None
            for tap in range(taps):
                item = a(*i[:axis], where(i[axis], tap), *i[axis + 1 :]).astype(inner)
                part = item * weight(i[axis], tap)
                total = part if total is None else total + part
            return total if inner == dtype else _back(total, dtype)

        return te.compute(shape, at, name="resize_axis")

    return ctx.te(compute, x, *constants, name="resize_axis")


def _back(value: Any, dtype: str) -> Any:
    if "float" in dtype:
        return value.astype(dtype)
    info = np.iinfo(dtype)
    rounded = tirx.nearbyint(value)
    low, high = tirx.const(float(info.min), kind(value)), tirx.const(float(info.max), kind(value))
    return tirx.max(tirx.min(rounded, high), low).astype(dtype)


def _sizes(ctx: NodeContext, dims: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """Output extents and scales of all axes."""
    rank = len(dims)
    axes = [ctx.axis(int(a), rank) for a in ctx.attrs.get("axes") or range(rank)]
    sizes, scales = list(dims), [1.0] * rank
    old = ctx.op_type == "Upsample" or ctx.version < 11
    scale_at, size_at = (1, 99) if old else (2, 3)
    if ctx.has(size_at) and 0 not in ctx.shape(size_at):
        wanted = [int(v) for v in ctx.known(size_at, "sizes")]
        if len(wanted) != len(axes):
            raise ctx.invalid(f"{len(wanted)} sizes for {len(axes)} axes")
        policy = ctx.attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            choose = min if policy == "not_larger" else max
            ratio = choose(w / dims[a] for w, a in zip(wanted, axes, strict=True))
            wanted = [math.floor(ratio * dims[a] + 0.5) for a in axes]
            for a, w in zip(axes, wanted, strict=True):
                sizes[a], scales[a] = w, ratio
            return sizes, scales
        for a, w in zip(axes, wanted, strict=True):
            sizes[a], scales[a] = w, w / dims[a]
        return sizes, scales
    if "scales" in ctx.attrs:
        given = [float(v) for v in ctx.attrs["scales"]]
    else:
        given = [float(v) for v in ctx.known(scale_at, "scales")]
    if len(given) != len(axes) or min(given, default=1) <= 0:
        raise ctx.invalid(f"scales {given} for {len(axes)} axes")
    for a, s in zip(axes, given, strict=True):
        sizes[a], scales[a] = math.floor(dims[a] * s + 1e-9), s
    return sizes, scales


@converter("Resize", "Upsample")
def resize(ctx: NodeContext) -> Any:
    """Nearest, linear and cubic resampling."""
    dims = ctx.static_shape(0)
    sizes, scales = _sizes(ctx, dims)
    if min(sizes, default=1) < 1 or 0 in dims:
        raise ctx.invalid(f"cannot resize {list(dims)} to {sizes}")
    mode = ctx.attrs.get("mode", "nearest")
    old = ctx.op_type == "Upsample" or ctx.version < 11
    default = "asymmetric" if old else "half_pixel"
    transform = ctx.attrs.get("coordinate_transformation_mode", default)
    transform = "asymmetric" if old else transform
    rois = _rois(ctx, len(dims)) if transform == "tf_crop_and_resize" else None
    x = ctx.expr(0)
    outside = np.zeros(sizes, bool) if rois else None
    for axis, (length, size, scale) in enumerate(zip(dims, sizes, scales, strict=True)):
        if length == size and scale == 1.0 and rois is None:
            continue
        at = source_positions(transform, length, size, scale, rois[axis] if rois else None)
        if outside is not None:
            line = (at < 0) | (at > length - 1)
            outside |= line.reshape([-1 if a == axis else 1 for a in range(len(dims))])
        if mode == "nearest":
            rounding = "floor" if old else ctx.attrs.get("nearest_mode", "round_prefer_floor")
            index = np.clip(nearest(at, rounding), 0, length - 1).astype(np.int64)
            taken = relax.op.take(x, ctx.importer.constant(index), axis, mode="clip")
            x = ctx.emit(taken)
        elif mode in ("linear", "cubic"):
            x = resize_axis(ctx, x, axis, *taps_of(at, length, mode, scale, ctx.attrs))
        else:
            raise Unsupported(f"mode {mode!r}")
    if outside is not None and outside.any():
        fill = ctx.const(ctx.attrs.get("extrapolation_value", 0.0), str(x.ty.dtype))
        x = ctx.emit(relax.op.where(ctx.importer.constant(outside), fill, x))
    return x


def _rois(ctx: NodeContext, rank: int) -> list[tuple[float, float]]:
    given = [float(v) for v in ctx.known(1, "roi")]
    axes = [ctx.axis(int(a), rank) for a in ctx.attrs.get("axes") or range(rank)]
    rois = [(0.0, 1.0)] * rank
    for number, axis in enumerate(axes):
        rois[axis] = (given[number], given[number + len(axes)])
    return rois
