"""Resize and Upsample, from ONNX's own formulas, one axis at a time where that is possible."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.converters.resample import Axis, resize_symbolic
from uif_tvm.frontends.onnx.values import (
    Array,
    Dim,
    Dynamic,
    Known,
    same_dim,
    simplify,
)
from uif_tvm.ops.resampling import nearest, source_positions, taps_of

#: Scales are taken for fractions of at most this denominator: 1/3 in float32 is one third.
_LARGEST_DENOMINATOR = 1 << 16


def _wanted_sizes(ctx: NodeContext, dims: tuple[Dim, ...], axes: list[int], at: int) -> list[Axis]:
    """Axes resized to the extents of an input."""
    wanted = ctx.dims(at, sizes=True)
    if len(wanted) != len(axes):
        raise ctx.invalid(f"{len(wanted)} sizes for {len(axes)} axes")
    out = [Axis(dim, dim, 1.0) for dim in dims]
    policy = ctx.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        lengths = ctx.static([dims[a] for a in axes])
        choose = min if policy == "not_larger" else max
        ratio = choose(w / n for w, n in zip(ctx.static(wanted), lengths, strict=True))
        for a, length in zip(axes, lengths, strict=True):
            out[a] = Axis(length, math.floor(ratio * length + 0.5), ratio)
        return out
    for a, size in zip(axes, wanted, strict=True):
        length = dims[a]
        if same_dim(length, size):
            continue
        static = isinstance(size, int) and isinstance(length, int) and length
        out[a] = Axis(length, size, size / length if static else None)  # type: ignore[operator]
    return out


def _scaled(dim: Dim, scale: float) -> Dim:
    """``floor(dim * scale)``, exactly for the fraction that a float32 scale stands for."""
    if isinstance(dim, int):
        return math.floor(dim * scale + 1e-9)
    ratio = Fraction(scale).limit_denominator(_LARGEST_DENOMINATOR)
    return simplify(dim * ratio.numerator // ratio.denominator)


def _axes_of(ctx: NodeContext, dims: tuple[Dim, ...]) -> list[Axis]:
    """What happens along each axis."""
    rank = len(dims)
    axes = [ctx.axis(int(a), rank) for a in ctx.attrs.get("axes") or range(rank)]
    old = ctx.op_type == "Upsample" or ctx.version < 11
    scale_at, size_at = (1, 99) if old else (2, 3)
    if ctx.has(size_at) and 0 not in ctx.shape(size_at):
        return _wanted_sizes(ctx, dims, axes, size_at)
    out = [Axis(dim, dim, 1.0) for dim in dims]
    if "scales" not in ctx.attrs and ctx.array(scale_at) is None:
        return _scaled_at_run_time(ctx, out, axes, scale_at)
    given = ctx.attrs["scales"] if "scales" in ctx.attrs else ctx.known(scale_at, "scales")
    given = [float(v) for v in given]
    if len(given) != len(axes) or min(given, default=1) <= 0:
        raise ctx.invalid(f"scales {given} for {len(axes)} axes")
    for a, scale in zip(axes, given, strict=True):
        out[a] = Axis(dims[a], _scaled(dims[a], scale), scale)
    return out


def _scaled_at_run_time(ctx: NodeContext, out: list[Axis], axes: list[int], at: int) -> list[Axis]:
    """Axes whose scales are data: the output extents are computed and read back."""
    scales = ctx.expr(at)
    if ctx.static_shape(at) != (len(axes),):
        raise ctx.invalid(f"scales of shape {ctx.static_shape(at)} for {len(axes)} axes")
    lengths = [out[a].length for a in axes]

    def compute(local: list[Any], given: te.Tensor) -> te.Tensor:
        def size(i: Any) -> Any:
            length: Any = local[-1]
            for number in range(len(local) - 2, -1, -1):
                length = tirx.Select(i == number, local[number], length)
            wide = tirx.Cast("float64", given(i)) * tirx.Cast("float64", length)
            return tirx.max(tirx.floor(wide + 1e-9).astype("int64"), 0)

        return te.compute((len(axes),), size, name="sizes")

    sizes = Dynamic(ctx.te_dims(compute, [scales], lengths, "resized"))
    read = ctx.settled(sizes, sizes=True)
    for number, a in enumerate(axes):
        one = ctx.emit(relax.op.strided_slice(scales, [0], [number], [number + 1]))
        out[a] = Axis(out[a].length, read[number], None, one)
    return out


@converter("Resize", "Upsample")
def resize(ctx: NodeContext) -> Any:
    """Nearest, linear and cubic resampling."""
    _compile_in(ctx)
    dims = ctx.shape(0)
    axes = _axes_of(ctx, dims)
    if any(isinstance(d, int) and d < 1 for a in axes for d in (a.length, a.size)):
        sizes = [a.size for a in axes]
        raise ctx.invalid(f"cannot resize {list(map(str, dims))} to {list(map(str, sizes))}")
    mode = ctx.attrs.get("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise Unsupported(f"mode {mode!r}")
    old = ctx.op_type == "Upsample" or ctx.version < 11
    default = "asymmetric" if old else "half_pixel"
    transform = ctx.attrs.get("coordinate_transformation_mode", default)
    transform = "asymmetric" if old else transform
    rounding = "floor" if old else ctx.attrs.get("nearest_mode", "round_prefer_floor")
    rois = _rois(ctx, len(dims)) if transform == "tf_crop_and_resize" else None
    x = ctx.expr(0)
    places: list[Array | None] = [None] * len(dims)
    for number, axis in enumerate(axes):
        if axis.scale == 1.0 and same_dim(axis.length, axis.size) and rois is None:
            continue
        if axis.static:
            length, size, scale = int(axis.length), int(axis.size), float(axis.scale or 1.0)  # type: ignore[arg-type]
            at = source_positions(transform, length, size, scale, rois[number] if rois else None)
            places[number] = at
            if mode == "nearest":
                index = np.clip(nearest(at, rounding), 0, length - 1).astype(np.int64)
                taken = relax.op.take(x, ctx.importer.constant(index), number, mode="clip")
                x = ctx.emit(taken)
            else:
                options = _options(ctx)
                where, weights = taps_of(at, length, mode, scale, *options)
                wide = "float64" if str(x.ty.dtype) == "float64" else "float32"
                tables = ctx.importer.constant(where.astype(np.int64)), ctx.const(weights, wide)
                x = ctx.op("resample", x, *tables, axis=number)
        else:
            x = resize_symbolic(ctx, x, number, axis, (mode, transform, rounding))
    return _outside_filled(ctx, x, axes, places) if rois else x


def _compile_in(ctx: NodeContext) -> None:
    """Take sizes and scales of the example where the mode's tables must be made at import."""
    tables = (
        ctx.attrs.get("antialias", 0)
        or ctx.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        or ctx.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    )
    for index in (2, 3) if tables else ():
        value = ctx.tensor(index) if ctx.has(index) else None
        if isinstance(value, Dynamic):
            array = ctx.importer.specialise(value.expr)
            if array is not None:
                ctx.inputs[index] = Known(array)


def _options(ctx: NodeContext) -> tuple[float, bool, bool]:
    """Cubic coefficient, antialias, exclude_outside."""
    return (
        float(ctx.attrs.get("cubic_coeff_a", -0.75)),
        bool(ctx.attrs.get("antialias", 0)),
        bool(ctx.attrs.get("exclude_outside", 0)),
    )


def _outside_filled(
    ctx: NodeContext, x: relax.Expr, axes: list[Axis], places: list[Array | None]
) -> relax.Expr:
    """``extrapolation_value`` where an output element lies outside of the input."""
    outside = np.zeros(ctx.static([axis.size for axis in axes]), bool)
    for number, (at, axis) in enumerate(zip(places, axes, strict=True)):
        if at is not None:
            line = (at < 0) | (at > ctx.static([axis.length])[0] - 1)
            outside |= line.reshape([-1 if a == number else 1 for a in range(len(axes))])
    if not outside.any():
        return x
    fill = ctx.const(ctx.attrs.get("extrapolation_value", 0.0), str(x.ty.dtype))
    return ctx.emit(relax.op.where(ctx.importer.constant(outside), fill, x))


def _rois(ctx: NodeContext, rank: int) -> list[tuple[float, float]]:
    given = [float(v) for v in ctx.known(1, "roi")]
    axes = [ctx.axis(int(a), rank) for a in ctx.attrs.get("axes") or range(rank)]
    rois = [(0.0, 1.0)] * rank
    for number, axis in enumerate(axes):
        rois[axis] = (given[number], given[number + len(axes)])
    return rois
