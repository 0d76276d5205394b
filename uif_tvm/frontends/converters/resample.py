"""Resampling along one axis, also where its extents are settled at run time.

There the same formulas as for known extents are evaluated by a small kernel, which writes the input
indices and weights of each output element; the resampling kernel itself reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.onnx.values import Dim, is_static

_F = "float64"


@dataclass(frozen=True)
class Axis:
    """Resampling along one axis.

    Args:
        length, size: extents before and after.
        scale: output over input extent where that is a number at import, or ``None``: then it is
            ``given`` (a tensor of one scale, read at run time), or else ``size / length``.
    """

    length: Dim
    size: Dim
    scale: float | None
    given: relax.Expr | None = None

    @property
    def static(self) -> bool:
        """Whether everything is known at import."""
        return is_static((self.length, self.size)) and self.scale is not None


def _f(value: float) -> Any:
    return tirx.const(value, _F)


def _position(transform: str, x: Any, length: Any, size: Any, scale: Any) -> Any:
    """Where output element ``x`` lies on the input axis; all float64."""
    resized = scale * length
    half = (x + _f(0.5)) / scale
    if transform == "asymmetric":
        return x / scale
    if transform == "align_corners":
        steps = tirx.Select(resized == _f(1), _f(1), resized - _f(1))
        return tirx.Select(resized == _f(1), _f(0), x * (length - _f(1)) / steps)
    if transform == "pytorch_half_pixel":
        return tirx.Select(resized > _f(1), half - _f(0.5), _f(0))
    if transform == "tf_half_pixel_for_nn":
        return half
    if transform == "half_pixel_symmetric":
        return length / _f(2) * (_f(1) - size / resized) + half - _f(0.5)
    if transform == "half_pixel":
        return half - _f(0.5)
    raise Unsupported(f"coordinate_transformation_mode {transform!r} with sizes of run time")


def _rounded(at: Any, rounding: str) -> Any:
    how = {
        "round_prefer_floor": lambda: tirx.ceil(at - _f(0.5)),
        "round_prefer_ceil": lambda: tirx.floor(at + _f(0.5)),
        "floor": lambda: tirx.floor(at),
        "ceil": lambda: tirx.ceil(at),
    }
    if rounding not in how:
        raise Unsupported(f"nearest_mode {rounding!r}")
    return how[rounding]()


def _clipped(index: Any, length: Any) -> Any:
    return tirx.max(tirx.min(index.astype("int64"), length - 1), 0)


class _Places:
    """The output positions of one axis, as its kernels compute them."""

    def __init__(self, ctx: NodeContext, axis: Axis, transform: str) -> None:
        self.ctx, self.axis, self.transform = ctx, axis, transform
        self.tensors = [] if axis.given is None else [axis.given]
        self.dims = [axis.length, axis.size]

    def scale(self, local: Sequence[Any], tensors: Sequence[te.Tensor]) -> Any:
        if tensors:
            return tensors[0](0).astype(_F)
        if self.axis.scale is not None:
            return _f(float(self.axis.scale))
        length, size = (_wide(d).astype(_F) for d in local)
        return size / tirx.max(length, _f(1))

    def at(self, x: Any, local: Sequence[Any], tensors: Sequence[te.Tensor]) -> Any:
        length, size = (_wide(d).astype(_F) for d in local)
        scale = self.scale(local, tensors)
        return _position(self.transform, _wide(x).astype(_F), length, size, scale)


def _wide(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def resize_symbolic(
    ctx: NodeContext, x: relax.Expr, number: int, axis: Axis, how: tuple[str, str, str]
) -> relax.Expr:
    """``x`` resampled along axis ``number``.

    Args:
        how: ``mode``, ``coordinate_transformation_mode`` and ``nearest_mode``.
    """
    mode, transform, rounding = how
    places = _Places(ctx, axis, transform)
    if mode == "nearest":

        def nearest(local: list[Any], *tensors: te.Tensor) -> te.Tensor:
            length, size = local

            def index(i: Any) -> Any:
                return _clipped(_rounded(places.at(i, local, tensors), rounding), _wide(length))

            return te.compute((size,), index, name="nearest")

        index = ctx.te_dims(nearest, places.tensors, places.dims, "nearest")
        return ctx.emit(relax.op.take(x, index, number, mode="clip"))
    return _weighted(ctx, x, number, places, mode)


def _weighted(
    ctx: NodeContext, x: relax.Expr, number: int, places: _Places, mode: str
) -> relax.Expr:
    antialias = bool(ctx.attrs.get("antialias", 0))
    scale = places.axis.scale
    if antialias and scale is None:
        raise Unsupported("antialias with a scale that is known at run time only")
    stretch = 1 / scale if antialias and scale is not None and scale < 1 else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    # One more than 2 * reach lies within reach only where that is no integer.
    taps = 2 * int(reach) if reach == int(reach) else math.ceil(2 * reach) + 1
    outside = bool(ctx.attrs.get("exclude_outside", 0))
    normalise = outside or stretch != 1
    drop = outside or (stretch != 1 and mode == "linear")
    dtype = str(x.ty.dtype)
    inner = "float64" if dtype == "float64" else "float32"

    def first(at: Any) -> Any:
        return tirx.floor(at - _f(reach)) + _f(1)

    def indices(local: list[Any], *tensors: te.Tensor) -> te.Tensor:
        def index(i: Any, tap: Any) -> Any:
            at = first(places.at(i, local, tensors)) + tap.astype(_F)
            return _clipped(at, _wide(local[0]))

        return te.compute((local[1], taps), index, name="taps")

    def weight(at: Any, tap: Any, length: Any) -> Any:
        index = first(at) + tap
        value = _kernel(tirx.abs(at - index) / _f(stretch), mode, ctx.attrs)
        if drop:
            beyond = tirx.any(index < _f(0), index >= _wide(length).astype(_F))
            value = tirx.Select(beyond, _f(0), value)
        return value

    def weights(local: list[Any], *tensors: te.Tensor) -> te.Tensor:
        def one(i: Any, tap: Any) -> Any:
            at = places.at(i, local, tensors)
            value = weight(at, tap.astype(_F), local[0])
            if normalise:
                total = _f(0)
                for other in range(taps):
                    total = total + weight(at, _f(other), local[0])
                value = value / total
            return value.astype(inner)

        return te.compute((local[1], taps), one, name="weights")

    index = ctx.te_dims(indices, places.tensors, places.dims, "taps")
    share = ctx.te_dims(weights, places.tensors, places.dims, "weights")
    return ctx.op("resample", x, index, share, axis=number)  # type: ignore[no-any-return]


def _kernel(distance: Any, mode: str, attrs: dict[str, Any]) -> Any:
    """Weight of an element by its distance."""
    if mode == "linear":
        return tirx.max(_f(1) - distance, _f(0))
    a = _f(float(attrs.get("cubic_coeff_a", -0.75)))
    d = distance
    near = ((a + _f(2)) * d - (a + _f(3))) * d * d + _f(1)
    far = ((a * d - _f(5) * a) * d + _f(8) * a) * d - _f(4) * a
    return tirx.Select(d <= _f(1), near, tirx.Select(d < _f(2), far, _f(0)))
