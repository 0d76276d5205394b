"""Fourier transforms over real pairs, and the tables of spectral analysis.

Complex numbers are pairs (real, imaginary) in a last axis of extent 2; of extent 1 for real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.ops.linear import exactly, normal
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

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _complex(x: Array) -> Array:
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def _pairs(x: Array) -> Array:
    return np.stack([x.real, x.imag], -1)


def dft(x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    """Discrete Fourier transform along an axis, by NumPy's definition.

    Args:
        axis: the transformed one, not the last.
        length: points, zeros filled up or the rest cut off; 0 for as many as there are.
        onesided: of a forward transform the first half; of an inverse one real values from it.
    """
    axis %= x.ndim
    values = _complex(x)
    if onesided and inverse:
        points = length or 2 * (x.shape[axis] - 1)
        return np.fft.irfft(values, points, axis)[..., None]
    transform = np.fft.ifft if inverse else np.fft.fft
    spectrum = transform(values, length or x.shape[axis], axis)
    if onesided:
        spectrum = spectrum.take(range(spectrum.shape[axis] // 2 + 1), axis)
    return _pairs(spectrum)


def stft(
    x: Array, window: Array | None, frame_length: int, frame_step: int, onesided: bool
) -> Array:
    """``[batch, frames, bins, 2]`` of windowed frames of ``[batch, samples, 1 or 2]``."""
    frames = np.lib.stride_tricks.sliding_window_view(_complex(x), frame_length, 1)[:, ::frame_step]
    spectrum = np.fft.fft(frames if window is None else frames * window, axis=-1)
    bins = frame_length // 2 + 1 if onesided and x.shape[-1] == 1 else frame_length
    return _pairs(spectrum[..., :bins])


def dft_table(length: int, used: int, inverse: bool) -> tuple[Array, Array]:
    """cos and sin of 2 pi j k / length, shapes (used, length); float64."""
    angle = 2 * np.pi * ((np.arange(used)[:, None] * np.arange(length)[None]) % length) / length
    return np.cos(angle), np.sin(angle) * (1 if inverse else -1)


def dft_matrix(points: int, parts: int, length: int, inverse: bool, onesided: bool) -> Array:
    """What multiplies flattened (point, part) rows: ``(used * parts, bins * result parts)``."""
    if onesided and inverse:
        used = min(length // 2 + 1, points)
        cos, sin = dft_table(length, used, True)
        twice = np.full((used, 1), 2.0)
        twice[0] = 1.0
        if length % 2 == 0 and used == length // 2 + 1:
            twice[-1] = 1.0
        return np.stack([cos * twice, -sin * twice], 1).reshape(used * 2, length) / length
    used = min(length, points)
    cos, sin = dft_table(length, used, inverse)
    bins = length // 2 + 1 if onesided else length
    cos, sin = cos[:, :bins], sin[:, :bins]
    weights = np.zeros((used, parts, bins, 2))
    weights[:, 0, :, 0], weights[:, 0, :, 1] = cos, sin
    if parts == 2:
        weights[:, 1, :, 0], weights[:, 1, :, 1] = -sin, cos
    return weights.reshape(used * parts, bins * 2) / (length if inverse else 1)


def stft_filters(length: int, parts: int, onesided: bool) -> Array:
    """One-dimensional convolution filters ``(bins * 2, parts, length)``."""
    cos, sin = dft_table(length, length, False)
    bins = length // 2 + 1 if onesided and parts == 1 else length
    filters = np.zeros((bins, 2, parts, length))
    filters[:, 0, 0], filters[:, 1, 0] = cos[:, :bins].T, sin[:, :bins].T
    if parts == 2:
        filters[:, 0, 1], filters[:, 1, 1] = -sin[:, :bins].T, cos[:, :bins].T
    return filters.reshape(bins * 2, parts, length)


def decompose_dft(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """A matrix product with a table of cosines and sines.

    Raises:
        ShapeError: an extent is settled at run time; the table is made beforehand.
    """
    (x,) = operands
    shape, rank = b.shape(x), len(b.shape(x))
    axis = attrs["axis"] % rank
    points, parts = shape[axis], shape[-1]
    if not all(isinstance(extent, int) for extent in shape):
        raise ShapeError("tables for an extent that is settled at run time")
    half = attrs["onesided"] and attrs["inverse"]
    length = attrs["length"] or (2 * (points - 1) if half else points)
    matrix = dft_matrix(points, parts, length, attrs["inverse"], attrs["onesided"])
    used = matrix.shape[0] // parts
    if used < points:
        x = b.op("strided_slice", x, axes=(axis,), begin=(0,), end=(used,))
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    lead = tuple(shape[a] for a in order[:-2])
    moved = b.op("permute_dims", x, axes=tuple(order))
    flat = b.op("reshape", moved, shape=(*(lead or (1,)), used * parts))
    y = b.op("matmul", flat, b.const(matrix, b.dtype(x)))
    kept = 1 if half else 2
    y = b.op("reshape", y, shape=(*lead, matrix.shape[1] // kept, kept))
    return b.op("permute_dims", y, axes=tuple(order.index(a) for a in range(rank)))


def decompose_stft(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """A strided one-dimensional convolution with a filter per bin and part."""
    x, window = (*operands, None)[:2]
    (batch, _, parts), length = b.shape(x), attrs["frame_length"]
    filters = b.const(stft_filters(length, parts, attrs["onesided"]), b.dtype(x))
    if window is not None:
        filters = b.op("multiply", filters, window)
    signal = b.op("permute_dims", x, axes=(0, 2, 1))
    y = b.op("conv1d", signal, filters, strides=(attrs["frame_step"],))
    bins, frames = b.shape(y)[1] // 2, b.shape(y)[2]
    y = b.op("permute_dims", y, axes=(0, 2, 1))
    return b.op("reshape", y, shape=(batch, frames, bins, 2))


def cosine_window(*weights: float) -> Callable[..., Array]:
    """A window ``sum over k of (-1)^k weights[k] cos(2 pi k n / N)``."""

    def window(size: int, periodic: bool, dtype: str) -> Array:
        if size == 1:
            return np.ones(1, numpy_dtype(dtype))
        n = np.arange(size) / (size if periodic else size - 1)
        terms = [(-1) ** k * w * np.cos(2 * np.pi * k * n) for k, w in enumerate(weights)]
        return np.sum(terms, 0).astype(numpy_dtype(dtype))

    return window


def mel_weights(
    bins: int,
    dft_length: int,
    sample_rate: int,
    lower_edge: float,
    upper_edge: float,
    dtype: str,
) -> Array:
    """Triangular filters on the mel scale, ``[dft_length // 2 + 1, bins]``, as ONNX rounds them."""
    spectrum = dft_length // 2 + 1
    low, high = (2595 * np.log10(1 + edge / 700) for edge in (lower_edge, upper_edge))
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    places = ((dft_length + 1) * (700 * (10 ** (mel / 2595) - 1)) // sample_rate).astype(int)
    weights = np.zeros((spectrum, bins))
    for i in range(bins):
        first, middle, last = places[i : i + 3]
        if middle == first:
            weights[middle, i] = 1
        else:
            rise = np.arange(first, middle + 1)
            weights[rise, i] = (rise - first) / (middle - first)
        if last > middle:
            fall = np.arange(middle, last)
            weights[fall, i] = (last - fall) / (last - middle)
    return weights.astype(numpy_dtype(dtype))


def _constant(reference: Callable[..., Array]) -> Callable[[Builder, Sequence[Any], Attrs], Any]:
    """The table itself, made beforehand."""

    def decompose(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
        return b.const(reference(**attrs), attrs["dtype"])

    return decompose


def _dft_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = types[0]
    axis = infer.axis_of(attrs["axis"], x.rank)
    if axis == x.rank - 1 or x.shape[-1] not in (1, 2):
        raise ShapeError("the last axis must hold one or two parts, and is not transformed")
    half = attrs["onesided"] and attrs["inverse"]
    points = x.shape[axis]
    length = attrs["length"] or (2 * (points - 1) if half else points)
    if half and x.shape[-1] != 2:
        raise ShapeError("half a spectrum has real and imaginary parts")
    bins = length // 2 + 1 if attrs["onesided"] and not attrs["inverse"] else length
    shape = [*x.shape[:axis], bins, *x.shape[axis + 1 : -1], 1 if half else 2]
    return (TensorType(tuple(shape), x.dtype),)


def _stft_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, length, step = types[0], attrs["frame_length"], attrs["frame_step"]
    if x.rank != 3 or x.shape[2] not in (1, 2):
        raise ShapeError("the signal must be [batch, samples, 1 or 2]")
    if step < 1 or length < 1 or (isinstance(x.shape[1], int) and length > x.shape[1]):
        raise ShapeError(f"frames of {length} every {step} in a signal of {x.shape[1]}")
    bins = length // 2 + 1 if attrs["onesided"] and x.shape[2] == 1 else length
    frames = infer.window(x.shape[1], length, step, 0, 0, 1)
    return (TensorType((x.shape[0], frames, bins, 2), x.dtype),)


def _window_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType((attrs["size"],), attrs["dtype"]),)


def _mel_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType((attrs["dft_length"] // 2 + 1, attrs["bins"]), attrs["dtype"]),)


def _dft_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    points = types[0].shape[attrs["axis"] % types[0].rank]
    return 2.0 * elements(results[0]) * (points if isinstance(points, int) else 1)


def _transforms() -> Iterable[Case]:
    real, pairs = normal(2, 6, 3, 1), normal(2, 7, 2)
    yield Case("real", (real,), {"axis": 1})
    yield Case("onesided", (real,), {"axis": 1, "onesided": True})
    yield Case("last-but-one", (real,), {"axis": -2})
    yield Case("complex-inverse", (pairs,), {"axis": 1, "inverse": True})
    yield Case("cut", (pairs,), {"axis": 1, "length": 5})
    yield Case("filled-up", (pairs,), {"axis": 1, "length": 10})
    half = pairs.copy()
    half[:, 0, 1] = half[:, -1, 1] = 0
    yield Case("real-from-half", (half,), {"axis": 1, "inverse": True, "onesided": True})
    yield Case("vector", (normal(8, 1),), {"axis": 0})
    yield Case("one-point", (normal(3, 1, 2),), {"axis": 1})


def _frames() -> Iterable[Case]:
    signal, window = normal(2, 20, 1), np.abs(normal(8, seed=1))
    frames = {"frame_length": 8, "frame_step": 3}
    yield Case("window", (signal, window), frames)
    yield Case("no-window", (signal, None), {**frames, "onesided": False})
    yield Case("complex", (normal(1, 17, 2), window), frames)


_TABLE = Attribute("dtype", "float32", _FLOATS)


def _window(name: str, *weights: float) -> OpSpec:
    reference = cosine_window(*weights)
    return OpSpec(
        f"{name}_window",
        "signal",
        reference,
        _window_type,
        operands=(),
        attributes=(Attribute("size"), Attribute("periodic", True), _TABLE),
        tolerance=LOOSE,
        cases=lambda: (
            Case("periodic", (), {"size": 10}),
            Case("symmetric", (), {"size": 7, "periodic": False}),
            Case("one", (), {"size": 1, "dtype": "float64"}),
        ),
        decompose=_constant(reference),
        flops=20,
        source=f"ONNX {name.capitalize()}Window-17",
    )


SPECS = (
    OpSpec(
        "dft",
        "signal",
        exactly(dft),
        _dft_type,
        attributes=(
            Attribute("axis", -2),
            Attribute("length", 0),
            Attribute("inverse", False),
            Attribute("onesided", False),
        ),
        tolerance=LOOSE,
        cases=_transforms,
        decompose=decompose_dft,
        flops=_dft_flops,
        source="ONNX DFT-20",
    ),
    OpSpec(
        "stft",
        "signal",
        exactly(stft),
        _stft_type,
        operands=(Operand("x"), Operand("window", optional=True)),
        attributes=(
            Attribute("frame_length"),
            Attribute("frame_step"),
            Attribute("onesided", True),
        ),
        tolerance=LOOSE,
        cases=_frames,
        decompose=decompose_stft,
        flops=lambda types, results, attrs: 2 * elements(results[0]) * attrs["frame_length"],
        source="ONNX STFT-17",
    ),
    _window("hann", 0.5, 0.5),
    _window("hamming", 25 / 46, 21 / 46),
    _window("blackman", 0.42, 0.5, 0.08),
    OpSpec(
        "mel_weights",
        "signal",
        mel_weights,
        _mel_type,
        operands=(),
        attributes=(
            Attribute("bins"),
            Attribute("dft_length"),
            Attribute("sample_rate"),
            Attribute("lower_edge"),
            Attribute("upper_edge"),
            _TABLE,
        ),
        tolerance=LOOSE,
        cases=lambda: (
            Case(
                "speech",
                (),
                {
                    "bins": 8,
                    "dft_length": 64,
                    "sample_rate": 8192,
                    "lower_edge": 0.0,
                    "upper_edge": 4096.0,
                },
            ),
        ),
        decompose=_constant(mel_weights),
        flops=4,
        source="ONNX MelWeightMatrix-17",
    ),
)
