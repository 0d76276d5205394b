"""Steps that add convolutions, pooling and what stands around them in networks."""

from __future__ import annotations

import math
from typing import Any

from tests.fuzz.graphs.evaluate import Refused
from tests.fuzz.graphs.maker import Maker, Value
from tests.fuzz.graphs.steps_linear import activation

CHANNELS = (1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 24, 32, 48)


def _image(maker: Maker) -> Value:
    return maker.pick_float(
        lambda v: v.rank in (3, 4) and v.array.size > 0 and v.shape[1] <= 64 and v.shape[-1] >= 2
    )


def _window(maker: Maker, extents: tuple[int, ...]) -> dict[str, Any]:
    kernel, strides, dilations, pads = [], [], [], []
    for extent in extents:
        kernel.append(min(extent, maker.rng.choice((1, 1, 2, 3, 3, 3, 5, 7))))
        strides.append(maker.rng.choice((1, 1, 1, 2, 3)))
        dilations.append(maker.rng.choice((1, 1, 1, 2)))
        pads.append((maker.rng.randrange(3), maker.rng.randrange(3)))
    if maker.chance(0.5):  # what most networks have
        kernel = [kernel[0] if kernel[0] <= extent else 1 for extent in extents]
        strides = [strides[0]] * len(extents)
        dilations = [1] * len(extents)
        pads = [(k // 2, k // 2) for k in kernel]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if maker.chance(0.1):
        attrs["auto_pad"] = maker.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        attrs["dilations"] = [1] * len(extents)
    else:
        attrs["pads"] = [before for before, _ in pads] + [after for _, after in pads]
    return attrs


def convolve(maker: Maker, value: Value, channels: int, groups: int = 1, **attrs: Any) -> Value:
    """A convolution with its weight, and with a bias half the time."""
    depth = value.shape[1] // groups
    kernel = attrs["kernel_shape"]
    scale = 1 / math.sqrt(depth * math.prod(kernel))
    operands = [value, maker.random((channels, depth, *kernel), value.dtype, scale)]
    if maker.chance(0.5):
        operands.append(maker.random((channels,), value.dtype, 0.3))
    result: Value = maker.node("Conv", operands, group=groups, **attrs)
    return result


def batch_norm(maker: Maker, value: Value) -> Value:
    """An inference batch-norm with constants."""
    channels = value.shape[1]
    gamma, beta, mean = (maker.random((channels,), value.dtype, 0.5) for _ in range(3))
    spread = maker.random((channels,), value.dtype, 0.3)
    variance = maker.weight(1 + abs(spread.array), value.dtype)
    result: Value = maker.node(
        "BatchNormalization", [value, gamma, beta, mean, variance], epsilon=1e-3
    )
    return result


def _after(maker: Maker, result: Value) -> Value:
    if maker.chance(0.4):
        result = batch_norm(maker, result)
    elif maker.chance(0.25):
        shape = (result.shape[1],) + (1,) * (result.rank - 2)
        result = maker.node("Mul", [result, maker.random(shape, result.dtype)])
        result = maker.node("Add", [maker.random(shape, result.dtype), result])
    if maker.chance(0.5):
        result = activation(maker, result)
    return result


def conv(maker: Maker) -> None:
    """A convolution, plain or depthwise or grouped, and what follows it."""
    value = _image(maker)
    window = _window(maker, value.shape[2:])
    kind = maker.rng.choice(("plain", "plain", "plain", "depthwise", "grouped"))
    groups, channels = 1, maker.rng.choice(CHANNELS)
    if kind == "depthwise":
        groups = value.shape[1]
        channels = groups * maker.rng.choice((1, 1, 1, 2))
    elif kind == "grouped":
        divisors = [d for d in (2, 3, 4, 8) if value.shape[1] % d == 0]
        if not divisors:
            raise Refused("no groups")
        groups = maker.rng.choice(divisors)
        channels = groups * maker.rng.choice((1, 2, 3, 4, 8))
    if maker.chance(0.15):
        value = _padded(maker, value)
    _after(maker, convolve(maker, value, channels, groups, **window))


def _padded(maker: Maker, value: Value) -> Value:
    spatial = [maker.rng.randrange(3) for _ in range(2 * (value.rank - 2))]
    half = len(spatial) // 2
    amounts = maker.ints(0, 0, *spatial[:half], 0, 0, *spatial[half:])
    number = maker.weight(maker.rng.choice((0.0, 0.0, 1.0)), value.dtype)
    result: Value = maker.node("Pad", [value, amounts, number])
    return result


def residual(maker: Maker) -> None:
    """Two convolutions and the way around them."""
    value = _image(maker)
    channels = value.shape[1]
    side = 3 if min(value.shape[2:]) >= 3 else 1
    spatial = value.rank - 2
    same = {"kernel_shape": [side] * spatial, "pads": [side // 2] * (2 * spatial)}
    inner = _after(maker, convolve(maker, value, maker.rng.choice(CHANNELS), **same))
    outer = convolve(maker, inner, channels, **same)
    if maker.chance(0.4):
        outer = batch_norm(maker, outer)
    total = maker.node("Add", [outer, value] if maker.chance(0.5) else [value, outer])
    if maker.chance(0.6):
        activation(maker, total)


def separable(maker: Maker) -> None:
    """Expansion, depthwise convolution, projection, maybe squeeze-and-excite."""
    value = maker.pick_float(lambda v: v.rank == 4 and v.array.size > 0 and v.shape[1] <= 32)
    channels = value.shape[1]
    point = {"kernel_shape": [1, 1]}
    wide = activation(maker, convolve(maker, value, 2 * channels, **point))
    side = 3 if min(value.shape[2:]) >= 3 else 1
    deep: dict[str, Any] = {
        "kernel_shape": [side, side],
        "pads": [side // 2] * 4,
        "strides": [maker.rng.choice((1, 2))] * 2,
    }
    inner = activation(maker, convolve(maker, wide, 2 * channels, 2 * channels, **deep))
    if maker.chance(0.4):
        squeezed = maker.node("GlobalAveragePool", [inner])
        small = maker.node("Relu", [convolve(maker, squeezed, 4, **point)])
        gate = convolve(maker, small, 2 * channels, **point)
        inner = maker.node("Mul", [inner, maker.node("Sigmoid", [gate])])
    out = convolve(maker, inner, channels, **point)
    if out.shape == value.shape:
        maker.node("Add", [value, out])


def transposed(maker: Maker) -> None:
    """A transposed convolution."""
    value = _image(maker)
    spatial = value.rank - 2
    divisors = [d for d in (1, 1, 1, 2, 4) if value.shape[1] % d == 0]
    groups = maker.rng.choice(divisors)
    channels = groups * maker.rng.choice((1, 2, 3, 8))
    kernel = [maker.rng.choice((1, 2, 3, 4)) for _ in range(spatial)]
    strides = [maker.rng.choice((1, 2, 2)) for _ in range(spatial)]
    pads = [maker.rng.randrange(min(2, k)) for k in kernel] * 2
    scale = 1 / math.sqrt(value.shape[1] / groups * math.prod(kernel))
    weight = maker.random((value.shape[1], channels // groups, *kernel), value.dtype, scale)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if maker.chance(0.3):
        attrs["output_padding"] = [s - 1 for s in strides]
    if maker.chance(0.2):
        attrs["dilations"] = [maker.rng.choice((1, 2)) for _ in range(spatial)]
    _after(maker, maker.node("ConvTranspose", [value, weight], group=groups, **attrs))


def pool(maker: Maker) -> None:
    """Max, average or global pooling."""
    value = maker.pick(
        lambda v: v.rank in (3, 4) and v.dtype == "float32" and v.array.size and v.shape[-1] >= 2
    )
    op = maker.rng.choice(
        ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
    )
    if op.startswith("Global"):
        maker.node(op, [value])
        return
    window = _window(maker, value.shape[2:])
    if "pads" in window:
        half = len(window["kernel_shape"])
        limits = [k - 1 for k in window["kernel_shape"]] * 2
        window["pads"] = [min(p, most) for p, most in zip(window["pads"], limits, strict=True)]
        assert len(window["pads"]) == 2 * half
        window["ceil_mode"] = maker.rng.randrange(2)
    if op == "AveragePool":
        window["count_include_pad"] = maker.rng.randrange(2)
    maker.node(op, [value], **window)
