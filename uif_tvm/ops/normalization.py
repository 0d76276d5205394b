"""Normalisations at inference. Statistics of 16-bit floats are taken in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.linear import WIDE, exactly, normal
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


def _centred(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``."""
    mean = x.mean(tuple(axes), keepdims=True)
    return (x - mean) / np.sqrt(x.var(tuple(axes), keepdims=True) + epsilon)


def layer_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    axes: Sequence[int],
    epsilon: float,
    center: bool,
    scale: bool,
) -> Array:
    """Zero mean and unit variance over ``axes``, then ``gamma`` and ``beta`` along them."""
    places = infer.axes_of(axes, x.ndim)
    shape = [n if axis in places else 1 for axis, n in enumerate(x.shape)]
    y = _centred(x, places, epsilon)
    y = y * gamma.reshape(shape) if scale else y
    return y + beta.reshape(shape) if center else y


def rms_norm(x: Array, weight: Array, axes: Sequence[int], epsilon: float) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * weight."""
    places = infer.axes_of(axes, x.ndim)
    shape = [n if axis in places else 1 for axis, n in enumerate(x.shape)]
    mean = (x * x).mean(places, keepdims=True)
    return x / np.sqrt(mean + epsilon) * weight.reshape(shape)


def group_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    num_groups: int,
    channel_axis: int,
    axes: Sequence[int],
    epsilon: float,
    center: bool,
    scale: bool,
) -> Array:
    """Zero mean and unit variance over ``axes`` and the channels of each group."""
    channel = channel_axis % x.ndim
    split = (*x.shape[:channel], num_groups, -1, *x.shape[channel + 1 :])
    places = [channel + 1] + [a + (a > channel) for a in infer.axes_of(axes, x.ndim)]
    y = _centred(x.reshape(split), places, epsilon).reshape(x.shape)
    shape = [-1 if axis == channel else 1 for axis in range(x.ndim)]
    y = y * gamma.reshape(shape) if scale else y
    return y + beta.reshape(shape) if center else y


def instance_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    channel_axis: int,
    axes: Sequence[int],
    epsilon: float,
    center: bool,
    scale: bool,
) -> Array:
    """Zero mean and unit variance over ``axes`` of each sample and channel."""
    shape = [-1 if axis == channel_axis % x.ndim else 1 for axis in range(x.ndim)]
    y = _centred(x, infer.axes_of(axes, x.ndim), epsilon)
    y = y * gamma.reshape(shape) if scale else y
    return y + beta.reshape(shape) if center else y


def batch_norm(
    x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, axis: int, epsilon: float
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, all of them per channel."""
    shape = [-1 if place == axis % x.ndim else 1 for place in range(x.ndim)]
    gamma, beta, mean, variance = (item.reshape(shape) for item in (gamma, beta, mean, variance))
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """x / (bias + alpha / size * sum of squares over ``size`` nearby channels) ^ beta."""
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    near = np.lib.stride_tricks.sliding_window_view(np.pad(x * x, pads), size, 1)
    return x / (bias + alpha / size * near.sum(-1)) ** beta


def lp_normalize(x: Array, axis: int, p: int) -> Array:
    """x / ||x||_p along an axis; zero where the norm is."""
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


def mean_variance_normalize(x: Array, axes: Sequence[int]) -> Array:
    """(x - mean) / (deviation + 1e-9)."""
    places = infer.axes_of(axes, x.ndim)
    centred = x - x.mean(places, keepdims=True)
    return centred / (x.std(places, keepdims=True) + 1e-9)


def _flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    return 8.0 * elements(types[0])


def _along_axes(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = types[0]
    shape = [x.shape[axis] for axis in infer.axes_of(attrs["axes"], x.rank)]
    for item in types[1:]:
        if len(item.shape) != len(shape) or not all(map(_fits, item.shape, shape)):
            raise ShapeError(f"parameters must have shape {shape}, got {list(item.shape)}")
    return (x,)


def _fits(left: Any, right: Any) -> bool:
    """Whether two extents may be equal."""
    return not (isinstance(left, int) and isinstance(right, int)) or left == right


def _per_channel(name: str) -> Any:
    def rule(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        x = types[0]
        channels = x.shape[infer.axis_of(attrs[name], x.rank)]
        for item in types[1:]:
            if item.rank != 1 or not _fits(item.shape[0], channels):
                raise ShapeError(f"parameters must have shape [{channels}], got {item}")
        groups = attrs.get("num_groups", 1)
        if groups < 1 or (isinstance(channels, int) and channels % groups):
            raise ShapeError(f"{channels} channels in {groups} groups")
        return (x,)

    return rule


def decompose_batch_norm(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """x * factor + offset per channel."""
    x, gamma, beta, mean, variance = operands
    rank = len(b.shape(x))
    after = tuple(range(1, rank - attrs["axis"] % rank))

    def spread(value: Any) -> Any:
        return b.op("expand_dims", value, axis=after) if after else value

    epsilon = b.const(attrs["epsilon"], b.dtype(variance))
    root = b.op("sqrt", b.op("add", variance, epsilon))
    centred = b.op("subtract", x, spread(mean))
    scaled = b.op("multiply", b.op("divide", centred, spread(root)), spread(gamma))
    return b.op("add", scaled, spread(beta))


def decompose_mean_variance(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """Two passes, as the definition has it."""
    (x,), axes = operands, tuple(attrs["axes"])
    centred = b.op("subtract", x, b.op("mean", x, axis=axes, keepdims=True))
    square = b.op("mean", b.op("multiply", centred, centred), axis=axes, keepdims=True)
    deviation = b.op("add", b.op("sqrt", square), b.const(1e-9, b.dtype(x)))
    return b.op("divide", centred, deviation)


def _rows() -> Iterable[tuple[str, Array, dict[str, Any]]]:
    yield "last-axis", normal(3, 5, 16), {"axes": (-1,)}
    yield "two-axes", normal(2, 3, 4, 5), {"axes": (-2, -1), "epsilon": 1e-3}
    yield "size-1", normal(3, 1), {"axes": (1,)}
    yield "large-mean", normal(4, 33) + np.float32(64), {"axes": (-1,)}
    yield "zero-size", normal(0, 8), {"axes": (-1,)}
    yield "constant-row", np.full((2, 7), 3, np.float32), {"axes": (-1,)}
    nan = normal(3, 8)
    nan[0, 1], nan[1, 2] = np.nan, np.inf
    yield "nan-inf", nan, {"axes": (-1,)}


def _layer_norms() -> Iterable[Case]:
    for name, x, attrs in _rows():
        shape = tuple(x.shape[axis] for axis in sorted(a % x.ndim for a in attrs["axes"]))
        gamma, beta = normal(*shape, seed=1), normal(*shape, seed=2)
        yield Case(name, (x, gamma, beta), attrs)
    half = (
        normal(2, 400, dtype="float16"),
        normal(400, dtype="float16"),
        normal(400, dtype="float16"),
    )
    yield Case("float16", half, {"axes": (-1,)})


def _rms_norms() -> Iterable[Case]:
    for name, x, attrs in _rows():
        shape = tuple(x.shape[axis] for axis in sorted(a % x.ndim for a in attrs["axes"]))
        yield Case(name, (x, normal(*shape, seed=1)), attrs)


def _group_norms() -> Iterable[Case]:
    x, gamma, beta = normal(2, 6, 4, 5), normal(6, seed=1), normal(6, seed=2)
    plane = {"axes": (2, 3), "channel_axis": 1}
    yield Case("three-groups", (x, gamma, beta), {"num_groups": 3, **plane})
    yield Case("one-group", (x, gamma, beta), {"num_groups": 1, **plane})
    yield Case("group-per-channel", (x, gamma, beta), {"num_groups": 6, **plane})
    line = {"axes": (2,), "channel_axis": 1, "num_groups": 2}
    yield Case("one-axis", (normal(1, 6, 1), gamma, beta), line)


def _instance_norms() -> Iterable[Case]:
    plane = {"axes": (2, 3), "channel_axis": 1}
    yield Case("plane", (normal(2, 6, 4, 5), normal(6, seed=1), normal(6, seed=2)), plane)
    line = {"axes": (2,), "channel_axis": 1, "epsilon": 1e-2}
    yield Case("line", (normal(2, 3, 9), normal(3, seed=1), normal(3, seed=2)), line)


def _batch_norms() -> Iterable[Case]:
    parameters = [normal(3, seed=s) for s in (1, 2, 3)] + [np.abs(normal(3, seed=4))]
    yield Case("images", (normal(2, 3, 4, 5), *parameters))
    yield Case("rows", (normal(5, 3), *parameters), {"epsilon": 0.1})
    yield Case("last-axis", (normal(2, 4, 3), *parameters), {"axis": -1})


def _channels() -> Iterable[Case]:
    yield Case("plain", (normal(2, 7, 4, 3),), {"size": 3})
    yield Case("even-size", (normal(1, 4, 5),), {"size": 4, "alpha": 0.1, "bias": 2.0})
    yield Case("wider-than-channels", (normal(1, 2, 3),), {"size": 9, "beta": 0.5})


def _norms() -> Iterable[Case]:
    x = normal(3, 4)
    x[1] = 0
    yield Case("euclidean", (x,))
    yield Case("manhattan", (x,), {"p": 1})
    yield Case("first-axis", (normal(3, 2, 4),), {"axis": 0})


_SCALE = (Attribute("epsilon", 1e-5), Attribute("center", True), Attribute("scale", True))
_PARAMETERS = (Operand("x"), Operand("gamma"), Operand("beta"))


def _norm(name: str, reference: Any, rule: Any, **more: Any) -> OpSpec:
    settings: dict[str, Any] = {"accumulation": WIDE, "tolerance": LOOSE, "flops": _flops}
    return OpSpec(name, "normalization", exactly(reference), rule, **(settings | more))


SPECS = (
    _norm(
        "layer_norm",
        layer_norm,
        _along_axes,
        operands=_PARAMETERS,
        attributes=(Attribute("axes"), *_SCALE),
        relax="relax.nn.layer_norm",
        cases=_layer_norms,
    ),
    _norm(
        "rms_norm",
        rms_norm,
        _along_axes,
        operands=(Operand("x"), Operand("weight")),
        attributes=(Attribute("axes"), Attribute("epsilon", 1e-5)),
        relax="relax.nn.rms_norm",
        cases=_rms_norms,
    ),
    _norm(
        "group_norm",
        group_norm,
        _per_channel("channel_axis"),
        operands=_PARAMETERS,
        attributes=(
            Attribute("num_groups"),
            Attribute("channel_axis"),
            Attribute("axes"),
            *_SCALE,
        ),
        relax="relax.nn.group_norm",
        cases=_group_norms,
    ),
    _norm(
        "instance_norm",
        instance_norm,
        _per_channel("channel_axis"),
        operands=_PARAMETERS,
        attributes=(Attribute("channel_axis"), Attribute("axes"), *_SCALE),
        relax="relax.nn.instance_norm",
        cases=_instance_norms,
    ),
    _norm(
        "batch_norm",
        batch_norm,
        _per_channel("axis"),
        operands=(*_PARAMETERS, Operand("mean"), Operand("variance")),
        attributes=(Attribute("axis", 1), Attribute("epsilon", 1e-5)),
        cases=_batch_norms,
        decompose=decompose_batch_norm,
        source="ONNX BatchNormalization-15, inference",
    ),
    _norm(
        "lrn",
        lrn,
        infer.same,
        attributes=(
            Attribute("size"),
            Attribute("alpha", 1e-4),
            Attribute("beta", 0.75),
            Attribute("bias", 1.0),
        ),
        cases=_channels,
        flops=lambda types, results, attrs: elements(types[0]) * (2 * attrs["size"] + 20),
        source="ONNX LRN-13",
    ),
    _norm(
        "lp_normalize",
        lp_normalize,
        infer.same,
        attributes=(Attribute("axis", -1), Attribute("p", 2, (1, 2))),
        cases=_norms,
        source="ONNX LpNormalization-22",
    ),
    _norm(
        "mean_variance_normalize",
        mean_variance_normalize,
        infer.same,
        attributes=(Attribute("axes", (0, 2, 3)),),
        cases=lambda: (
            Case("images", (normal(2, 3, 4, 5),)),
            Case("last-axis", (normal(3, 8),), {"axes": (-1,)}),
        ),
        decompose=decompose_mean_variance,
        source="ONNX MeanVarianceNormalization-13",
    ),
)
