"""Quantisation in plain layout: one expression per element, which fuses into its neighbours."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from uif_tvm.ops.quantization import bounds


def _read(parameter: Any, at: Any, axis: int, block_size: int) -> Any:
    """A scale or zero point at an element's index."""
    from tvm import tirx

    shape = parameter.shape
    ones = [isinstance(n, tirx.IntImm) and int(n) == 1 for n in shape]
    if len(shape) <= 1 and all(ones):
        return parameter(*[0] * len(shape))
    if len(shape) == 1:
        return parameter(at[axis % len(at)])
    place = [
        tirx.floordiv(i, max(block_size, 1)) if k == axis % len(at) else i for k, i in enumerate(at)
    ]
    return parameter(*[0 if one else i for one, i in zip(ones, place, strict=True)])


def saturate(
    value: Any, zero: Any, dtype: str, low: int | None = None, high: int | None = None
) -> Any:
    """round(value) + zero, limited to the range of ``dtype``; NaN gives the lower bound."""
    from tvm import tirx

    least, most = (tirx.const(float(bound), "float32") for bound in bounds(dtype, low, high))
    shifted = tirx.nearbyint(value) + zero.astype("float32")
    # The comparison is false for NaN, which so becomes the lower bound.
    raised = tirx.Select(shifted > least, shifted, least)
    return tirx.min(raised, most).astype("int32").astype(dtype)


def quantize(
    x: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    block_size: int,
    dtype: str,
    low: int | None,
    high: int | None,
) -> Any:
    """saturate(round(x / scale) + zero point)."""
    from tvm import te, tirx

    def at(*i: Any) -> Any:
        zero = tirx.const(0, "int32")
        if zero_point is not None:
            zero = _read(zero_point, i, axis, block_size).astype("int32")
        factor = _read(scale, i, axis, block_size).astype("float32")
        return saturate(x(*i).astype("float32") / factor, zero, dtype, low, high)

    return te.compute(x.shape, at, name="quantize")


def dequantize(x: Any, scale: Any, zero_point: Any, axis: int, block_size: int) -> Any:
    """(x - zero point) * scale."""
    from tvm import te

    def at(*i: Any) -> Any:
        value = x(*i).astype("int32")
        if zero_point is not None:
            value = value - _read(zero_point, i, axis, block_size).astype("int32")
        factor = _read(scale, i, axis, block_size).astype("float32")
        return (value.astype("float32") * factor).astype(str(scale.dtype))

    return te.compute(x.shape, at, name="dequantize")


def quantize_scale(high: Any, low: Any) -> Any:
    """Steps of 1 / 255 of a range."""
    from tvm import te, tirx

    return te.compute((), lambda: (high() - low()) / tirx.const(255.0, "float32"), name="scale")


def _safe(scale: Any) -> Any:
    from tvm import tirx

    return tirx.Select(scale() == tirx.const(0.0, "float32"), tirx.const(1.0, "float32"), scale())


def quantize_zero_point(low: Any, scale: Any) -> Any:
    """The quantised number that stands for 0."""
    from tvm import te, tirx

    return te.compute(
        (),
        lambda: saturate(
            tirx.const(0.0, "float32") - low() / _safe(scale), tirx.const(0, "int32"), "uint8"
        ),
        name="zero_point",
    )


def quantize_by_range(x: Any, scale: Any, zero: Any) -> Any:
    """uint8 numbers by a scale that may be 0."""
    from tvm import te

    return te.compute(
        x.shape,
        lambda *i: saturate(x(*i) / _safe(scale), zero().astype("int32"), "uint8"),
        name="dynamic_quantize",
    )
