"""Quantised numbers: real = (q - zero point) * scale.

Scales and zero points are one number for the tensor, a vector along ``axis``, or a tensor of the
operand's rank with one entry per ``block_size`` elements of ``axis``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.convolution import _conv_type, _flops, conv
from uif_tvm.ops.linear import array, matmul_shape, normal, product_flops
from uif_tvm.ops.spec import (
    FLOATS,
    LOOSE,
    TOLERANCES,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

#: Integer types of quantised tensors.
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def spread(parameter: Array, shape: Sequence[int], axis: int, block_size: int) -> Array:
    """A scale or zero point so that it broadcasts against a tensor of ``shape``."""
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis %= len(shape)
    if parameter.ndim == 1:
        return parameter.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    if block_size > 1:
        parameter = np.repeat(parameter, block_size, axis).take(range(shape[axis]), axis)
    return parameter


def bounds(dtype: str, low: int | None, high: int | None) -> tuple[int, int]:
    """What results saturate to; narrower than the type for 4-bit numbers kept in 8-bit types."""
    info = np.iinfo(dtype)
    return int(info.min) if low is None else low, int(info.max) if high is None else high


def saturate(
    real: Array, zero: Array | int, dtype: str, low: int | None = None, high: int | None = None
) -> Array:
    """round(real) + zero with ties to even, limited to the type; NaN gives the lower bound."""
    least, most = bounds(dtype, low, high)
    value = np.rint(real) + np.asarray(zero, real.dtype)
    return np.clip(np.where(np.isnan(value), least, value), least, most).astype(dtype)


def quantize(
    x: Array,
    scale: Array,
    zero_point: Array | None,
    axis: int,
    block_size: int,
    dtype: str,
    low: int | None,
    high: int | None,
) -> Array:
    """saturate(round(x / scale) + zero point), ties to even."""
    wide = x.astype(np.float32) / spread(scale, x.shape, axis, block_size).astype(np.float32)
    zero = 0 if zero_point is None else spread(zero_point, x.shape, axis, block_size)
    return saturate(wide, zero, dtype, low, high)


def dequantize(
    x: Array, scale: Array, zero_point: Array | None, axis: int, block_size: int
) -> Array:
    """(x - zero point) * scale, in the scale's type."""
    value = x.astype(np.int32)
    if zero_point is not None:
        value = value - spread(zero_point, x.shape, axis, block_size).astype(np.int32)
    factor = spread(scale, x.shape, axis, block_size).astype(np.float32)
    return (value.astype(np.float32) * factor).astype(scale.dtype)


def requantize(
    x: Array, scale: Array, target_scale: Array, target_zero: Array, axis: int, dtype: str
) -> Array:
    """int32 sums in units of ``scale`` as quantised numbers in units of ``target_scale``."""
    real = x.astype(np.float32) * spread(scale, x.shape, axis, 1)
    wide = real / spread(target_scale, x.shape, axis, 1)
    return saturate(wide, spread(target_zero, x.shape, axis, 1), dtype)


def dynamic_quantize(x: Array) -> tuple[Array, Array, Array]:
    """uint8 numbers, scale and zero point by the tensor's own range, which includes 0."""
    high, low = max(x.max(initial=0), 0), min(x.min(initial=0), 0)
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    safe = scale if scale else np.float32(1)
    zero = saturate(np.asarray(np.float32(0) - np.float32(low) / safe), 0, "uint8")
    return saturate(x.astype(np.float32) / safe, zero, "uint8"), np.asarray(scale), zero


def _shifted(x: Array, zero: Array | None, axis: int) -> Array:
    """x - zero point as int64."""
    wide = x.astype(np.int64)
    return wide if zero is None else wide - spread(zero.astype(np.int64), x.shape, axis, 1)


def matmul_integer(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """int32 product of shifted 8-bit operands; zero points per tensor, row of a, column of b."""
    left, right = _shifted(a, a_zero, max(a.ndim - 2, 0)), _shifted(b, b_zero, b.ndim - 1)
    return np.matmul(left, right).astype(np.int32)


def conv_integer(
    x: Array,
    weight: Array,
    x_zero: Array | None,
    weight_zero: Array | None,
    **attrs: Any,
) -> Array:
    """int32 convolution of shifted 8-bit operands; padding counts as the zero point."""
    return conv(_shifted(x, x_zero, 1), _shifted(weight, weight_zero, 0), **attrs).astype(np.int32)


def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    """Product of quantised matrices, quantised again."""
    total = matmul_integer(a, b, a_zero, b_zero)
    scale = (a_scale * b_scale).astype(np.float32)
    return requantize(total, scale, y_scale, y_zero, total.ndim - 1, str(y_zero.dtype))


def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    weight: Array,
    weight_scale: Array,
    weight_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None,
    **attrs: Any,
) -> Array:
    """Convolution of quantised operands, quantised again; ``bias`` is in units of the sums."""
    total = conv_integer(x, weight, x_zero, weight_zero, **attrs)
    if bias is not None:
        total = total + bias.reshape(1, -1, *(1,) * (x.ndim - 2)).astype(np.int32)
    scale = (x_scale * weight_scale).astype(np.float32)
    return requantize(total, scale, y_scale, y_zero, 1, str(y_zero.dtype))


def check_parameter(item: TensorType, x: TensorType, axis: int, block_size: int) -> None:
    """Refuse scales or zero points that do not cover a tensor.

    Raises:
        ShapeError: with both shapes.
    """
    fault = ShapeError(f"scales or zero points {list(item.shape)} for {list(x.shape)}")
    if item.shape in ((), (1,)):
        return
    place = infer.axis_of(axis, x.rank)
    if item.rank == 1:
        extent = x.shape[place]
        if isinstance(extent, int) and isinstance(item.shape[0], int) and extent != item.shape[0]:
            raise fault
        return
    if item.rank != x.rank:
        raise fault
    for at, (count, extent) in enumerate(zip(item.shape, x.shape, strict=True)):
        size = max(block_size, 1) if at == place else 1
        if (
            isinstance(count, int)
            and isinstance(extent, int)
            and count
            not in (
                1,
                -(-extent // size),
            )
        ):
            raise fault


def _quantized_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    for item in types[1:]:
        if item is not None:
            check_parameter(item, types[0], attrs["axis"], attrs["block_size"])
    return (TensorType(types[0].shape, attrs["dtype"]),)


def _real_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    for item in types[1:]:
        if item is not None:
            check_parameter(item, types[0], attrs["axis"], attrs["block_size"])
    return (TensorType(types[0].shape, types[1].dtype),)


def _requantized_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    for item in types[1:]:
        check_parameter(item, types[0], attrs["axis"], 1)
    return (TensorType(types[0].shape, attrs["dtype"]),)


def _dynamic_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (
        TensorType(types[0].shape, "uint8"),
        TensorType((), "float32"),
        TensorType((), "uint8"),
    )


def _product_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(matmul_shape(types[0].shape, types[1].shape), "int32"),)


def _sum_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (result,) = _conv_type(types, attrs)
    return (TensorType(result.shape, "int32"),)


def _qmatmul_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(matmul_shape(types[0].shape, types[3].shape), types[7].dtype),)


def _qconv_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (result,) = _conv_type((types[0], types[3]), attrs)
    return (TensorType(result.shape, types[7].dtype),)


def _qconv_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    return _flops((types[0], types[3]), results, attrs)


def _per_axis(b: Builder, value: Any, rank: int, axis: int) -> Any:
    """A vector along ``axis`` of a tensor of ``rank`` axes, or one number, to broadcast."""
    shape = b.shape(value)
    if shape == (1,):
        return b.op("squeeze", value, axis=(0,))
    after = tuple(range(1, rank - axis))
    return b.op("expand_dims", value, axis=after) if shape and after else value


def decompose_requantize(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """quantize(x * scale)."""
    x, scale, target_scale, target_zero = operands
    rank = len(b.shape(x))
    axis = attrs["axis"] % rank
    real = b.op("multiply", b.op("astype", x, dtype="float32"), _per_axis(b, scale, rank, axis))
    return b.op("quantize", real, target_scale, target_zero, axis=axis, dtype=attrs["dtype"])


def decompose_qlinear_matmul(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """requantize(matmul_integer(a, b))."""
    a, a_scale, a_zero, other, b_scale, b_zero, y_scale, y_zero = operands
    if b.shape(a_scale) not in ((), (1,)):
        raise ShapeError("a scale per row of the left operand")
    total = b.op("matmul_integer", a, other, a_zero, b_zero)
    return b.op(
        "requantize",
        total,
        b.op("multiply", b_scale, _per_axis(b, a_scale, 1, 0)),
        y_scale,
        y_zero,
        axis=len(b.shape(total)) - 1,
        dtype=b.dtype(y_zero),
    )


def decompose_qlinear_conv(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """requantize(conv_integer(x, weight) + bias)."""
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, bias = (*operands, None)[:9]
    total = b.op("conv_integer", x, weight, x_zero, w_zero, **attrs)
    if bias is not None:
        total = b.op("add", total, _per_axis(b, bias, len(b.shape(x)), 1))
    return b.op(
        "requantize",
        total,
        b.op("multiply", w_scale, _per_axis(b, x_scale, 1, 0)),
        y_scale,
        y_zero,
        axis=1,
        dtype=b.dtype(y_zero),
    )


def decompose_matmul_integer(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """An int32 product of widened, shifted operands."""
    left, right, left_zero, right_zero = (*operands, None, None)[:4]
    rows, columns = max(len(b.shape(left)) - 2, 0), len(b.shape(right)) - 1
    return b.op(
        "matmul",
        _widened(b, left, left_zero, rows),
        _widened(b, right, right_zero, columns),
    )


def decompose_conv_integer(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """A float64 convolution of shifted operands: exact, as 53 bits hold every sum."""
    x, weight, x_zero, w_zero = (*operands, None, None)[:4]
    wide = [
        b.op("astype", _widened(b, item, zero, axis), dtype="float64")
        for item, zero, axis in ((x, x_zero, 1), (weight, w_zero, 0))
    ]
    rank = len(b.shape(x)) - 2
    return b.op("astype", b.op(f"conv{rank}d", *wide, **attrs), dtype="int32")


def _widened(b: Builder, value: Any, zero: Any, axis: int) -> Any:
    wide = b.op("astype", value, dtype="int32")
    if zero is None:
        return wide
    shift = b.op("astype", zero, dtype="int32")
    rank = len(b.shape(value))
    shift = shift if len(b.shape(shift)) > 1 else _per_axis(b, shift, rank, axis)
    return b.op("subtract", wide, shift)


def _bytes(*shape: int, seed: int = 0, dtype: str = "uint8") -> Array:
    info = np.iinfo(dtype)
    high = int(info.max) + 1
    return np.random.default_rng(seed).integers(int(info.min), high, shape).astype(dtype)


def _quantized() -> Iterable[Case]:
    x = normal(3, 4) * 40
    x[0, 0], x[0, 1], x[1, 0] = 1e9, -1e9, 2.5
    yield Case("uint8", (x, np.float32(0.5), np.uint8(100)))
    yield Case("int8-no-zero-point", (x, array("float32", [0.25]), None), {"dtype": "int8"})
    vector = np.abs(normal(4, seed=1)) + 0.1, array("int8", [0, -5, 7, 1])
    yield Case("per-axis", (x, *vector), {"axis": -1, "dtype": "int8"})
    blocks = np.abs(normal(3, 2, seed=2)) + 0.1, np.zeros((3, 2), np.int8)
    yield Case("blocks", (x, *blocks), {"axis": 1, "block_size": 2, "dtype": "int8"})
    yield Case("4-bit", (x, np.float32(1), None), {"dtype": "int8", "low": -8, "high": 7})
    yield Case(
        "ties",
        (array("float32", [0.5, 1.5, 2.5, -0.5, -1.5]), np.float32(1), None),
        {"dtype": "int8"},
    )
    infinite = array("float32", [np.inf, -np.inf, 0])
    yield Case("infinite", (infinite, np.float32(0.1), np.int16(3)), {"dtype": "int16"})
    half = x.clip(-100, 100).astype(np.float16)
    yield Case("float16", (half, np.float16(0.5), np.uint8(100)))


def _dequantized() -> Iterable[Case]:
    yield Case("uint8", (_bytes(3, 4), np.float32(0.5), np.uint8(100)))
    yield Case("int32", (array("int32", [-(2**20), 5]), array("float32", [0.1]), None))
    vector = normal(4, seed=1), array("int8", [0, -5, 7, 1])
    yield Case("per-axis", (_bytes(3, 4, dtype="int8"), *vector), {"axis": -1})
    blocks = normal(3, 2, seed=2), np.ones((3, 2), np.uint8)
    yield Case("blocks-uneven", (_bytes(3, 5), *blocks), {"axis": 1, "block_size": 3})
    yield Case("float16", (_bytes(3, 4), np.float16(0.5), np.uint8(7)))
    yield Case("zero-size", (_bytes(0, 4), np.float32(0.5), None))


def _requantized() -> Iterable[Case]:
    x = np.random.default_rng(0).integers(-(2**16), 2**16, (2, 3, 4)).astype(np.int32)
    yield Case("tensor", (x, np.float32(1e-3), np.float32(0.5), np.uint8(128)), {"dtype": "uint8"})
    scales = array("float32", [1e-3, 2e-3, 5e-4])
    yield Case("per-axis", (x, scales, np.float32(0.4), np.int8(-3)), {"axis": 1})


def _dynamic() -> Iterable[Case]:
    yield Case("both-signs", (normal(3, 4),))
    yield Case("positive", (array("float32", [1, 2, 5]),))
    yield Case("zeros", (np.zeros((2, 2), np.float32),))


def _integer_products() -> Iterable[Case]:
    a, b = _bytes(5, 33), _bytes(33, 4, seed=1, dtype="int8")
    yield Case("zero-points", (a, b, np.uint8(12), np.int8(-3)))
    yield Case("none", (a, b, None, None))
    yield Case("per-row-column", (a, b, _bytes(5, seed=2), _bytes(4, seed=3, dtype="int8")))
    deep = np.full((1, 3000), 255, np.uint8), np.full((3000, 1), 255, np.uint8)
    yield Case("long-sum", (*deep, None, np.uint8(0)))
    yield Case("batch", (_bytes(2, 3, 4), _bytes(2, 4, 5, seed=1), np.uint8(1), np.uint8(200)))


def _integer_convs() -> Iterable[Case]:
    x, w = _bytes(1, 4, 5, 6), _bytes(6, 2, 3, 2, seed=1, dtype="int8")
    attrs = {"groups": 2, "padding": (1, 0, 1, 1), "strides": (2, 1)}
    yield Case("groups-padding", (x, w, np.uint8(9), np.int8(-3)), attrs)
    yield Case("plain", (x, _bytes(3, 4, 2, 2, seed=1), None, None))


def _qmatmuls() -> Iterable[Case]:
    a, b = _bytes(5, 7), _bytes(7, 4, seed=1, dtype="int8")
    scales = np.float32(0.02), np.uint8(120), b, np.float32(0.01), np.int8(2)
    yield Case("tensor", (a, *scales, np.float32(0.05), np.uint8(100)))
    columns = array("float32", [0.01, 0.02, 0.03, 0.005]), array("int8", [0, 1, -4, 3])
    yield Case(
        "per-column", (a, np.float32(0.02), np.uint8(3), b, *columns, np.float32(0.5), np.int8(0))
    )


def _qconvs() -> Iterable[Case]:
    x, w = _bytes(1, 3, 5, 6), _bytes(4, 3, 3, 2, seed=1, dtype="int8")
    head = x, np.float32(0.02), np.uint8(120), w
    bias = array("int32", [5, -100, 2000, 0])
    tail = (
        array("float32", [0.01, 0.02, 0.03, 0.005]),
        array("int8", [0, 0, 0, 0]),
        np.float32(0.1),
        np.uint8(9),
    )
    yield Case("bias-per-channel", (*head, *tail, bias), {"padding": (1, 1, 1, 1)})
    one = np.float32(0.01), np.int8(1), np.float32(0.3), np.uint8(128)
    yield Case("tensor", (*head, *one, None))


_PARAMETERS = (Operand("scale"), Operand("zero_point", optional=True))
_AXIS = (Attribute("axis", 1), Attribute("block_size", 0))
_ZEROS = (Operand("x_zero", optional=True), Operand("weight_zero", optional=True))
_WINDOW = (
    Attribute("strides", (1,)),
    Attribute("padding", (0,)),
    Attribute("dilation", (1,)),
    Attribute("groups", 1),
)


def _scaled(*names: str) -> tuple[Operand, ...]:
    return tuple(Operand(f"{name}{part}") for name in names for part in ("", "_scale", "_zero"))


SPECS = (
    OpSpec(
        "quantize",
        "quantization",
        quantize,
        _quantized_type,
        operands=(Operand("x"), *_PARAMETERS),
        attributes=(
            *_AXIS,
            Attribute("dtype", "uint8", INTEGERS),
            Attribute("low", None),
            Attribute("high", None),
        ),
        dtypes=(*FLOATS, "int32"),
        cases=_quantized,
        flops=5,
        source="ONNX QuantizeLinear-23",
    ),
    OpSpec(
        "dequantize",
        "quantization",
        dequantize,
        _real_type,
        operands=(Operand("x"), *_PARAMETERS),
        attributes=_AXIS,
        dtypes=INTEGERS,
        tolerance=TOLERANCES,
        cases=_dequantized,
        flops=3,
        source="ONNX DequantizeLinear-23",
    ),
    OpSpec(
        "requantize",
        "quantization",
        requantize,
        _requantized_type,
        operands=(
            Operand("x"),
            Operand("scale"),
            Operand("target_scale"),
            Operand("target_zero"),
        ),
        attributes=(Attribute("axis", 1), Attribute("dtype", "int8", INTEGERS)),
        dtypes=("int32",),
        cases=_requantized,
        decompose=decompose_requantize,
        flops=6,
    ),
    OpSpec(
        "dynamic_quantize",
        "quantization",
        dynamic_quantize,
        _dynamic_type,
        results=3,
        dtypes=("float32",),
        tolerance=LOOSE,
        cases=_dynamic,
        flops=8,
        source="ONNX DynamicQuantizeLinear-11",
    ),
    OpSpec(
        "matmul_integer",
        "quantization",
        matmul_integer,
        _product_type,
        operands=(
            Operand("a"),
            Operand("b"),
            Operand("a_zero", optional=True),
            Operand("b_zero", optional=True),
        ),
        dtypes=("int8", "uint8"),
        accumulation={"int8": "int32", "uint8": "int32"},
        cases=_integer_products,
        decompose=decompose_matmul_integer,
        flops=product_flops,
        source="ONNX MatMulInteger-10",
    ),
    OpSpec(
        "conv_integer",
        "quantization",
        conv_integer,
        _sum_type,
        operands=(Operand("x"), Operand("weight"), *_ZEROS),
        attributes=_WINDOW,
        dtypes=("int8", "uint8"),
        accumulation={"int8": "int32", "uint8": "int32"},
        cases=_integer_convs,
        decompose=decompose_conv_integer,
        flops=_flops,
        source="ONNX ConvInteger-10",
    ),
    OpSpec(
        "qlinear_matmul",
        "quantization",
        qlinear_matmul,
        _qmatmul_type,
        operands=(*_scaled("a", "b"), Operand("y_scale"), Operand("y_zero")),
        dtypes=("int8", "uint8"),
        cases=_qmatmuls,
        decompose=decompose_qlinear_matmul,
        flops=product_flops,
        source="ONNX QLinearMatMul-21",
    ),
    OpSpec(
        "qlinear_conv",
        "quantization",
        qlinear_conv,
        _qconv_type,
        operands=(
            *_scaled("x", "weight"),
            Operand("y_scale"),
            Operand("y_zero"),
            Operand("bias", optional=True),
        ),
        attributes=_WINDOW,
        dtypes=("int8", "uint8"),
        cases=_qconvs,
        decompose=decompose_qlinear_conv,
        flops=_qconv_flops,
        source="ONNX QLinearConv-10",
    ),
)
