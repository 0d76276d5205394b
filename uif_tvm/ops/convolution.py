"""Convolutions over one to three spatial axes: activations ``[N, C, spatial ...]``.

Padding lists what stands before each spatial axis, then what stands after each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.linear import WIDE, exactly, normal
from uif_tvm.ops.sampling import interpolate, zero_padded
from uif_tvm.ops.spec import (
    LOOSE,
    Array,
    Attribute,
    Attrs,
    Case,
    Dim,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder


def each(value: int | Sequence[int], rank: int) -> list[int]:
    """One value per spatial axis."""
    values = [value] if isinstance(value, int) else [int(item) for item in value]
    values = values * rank if len(values) == 1 else values
    if len(values) != rank:
        raise ShapeError(f"{len(values)} values for {rank} spatial axes")
    return values


def padding_of(value: int | Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """Padding before and after the spatial axes; one value per axis counts for both sides."""
    values = [value] if isinstance(value, int) else [int(item) for item in value]
    values = values * rank if len(values) == 1 else values
    values = values * 2 if len(values) == rank else values
    if len(values) != 2 * rank:
        raise ShapeError(f"padding {values} for {rank} spatial axes")
    return values[:rank], values[rank:]


def windows(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    dilation: Sequence[int],
    fill: float = 0,
) -> Array:
    """All windows over the spatial axes, ``[N, C, positions ..., kernel ...]``."""
    rank = len(kernel)
    pads = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    padded = np.pad(x, pads, constant_values=fill)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
    steps = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilation]
    view: Array = views[(slice(None), slice(None), *steps)]
    return view


def conv(
    x: Array,
    weight: Array,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """sum over i, k of x[n, g(o) i, p s + k d - before] weight[o, i, k]."""
    rank = x.ndim - 2
    before, after = padding_of(padding, rank)
    seen = windows(x, weight.shape[2:], each(strides, rank), before, after, each(dilation, rank))
    taps = range(2, 2 + rank)
    parts = [
        np.tensordot(data, w, ([1, *(t + rank for t in taps)], [1, *taps]))
        for data, w in zip(np.split(seen, groups, 1), np.split(weight, groups, 0), strict=True)
    ]
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)


def conv_transpose(
    x: Array,
    weight: Array,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Each element of x adds its multiple of the kernel; ``weight`` is [in, out / groups, ...]."""
    rank = x.ndim - 2
    strides, dilation = each(strides, rank), each(dilation, rank)
    before, after = padding_of(padding, rank)
    kernel, sizes = weight.shape[2:], x.shape[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + extra
        for n, s, k, d, extra in zip(
            sizes, strides, kernel, dilation, each(output_padding, rank), strict=True
        )
    ]
    outputs = weight.shape[1]
    y = np.zeros((x.shape[0], outputs * groups, *full), x.dtype)
    pairs = zip(np.split(x, groups, 1), np.split(weight, groups, 0), strict=True)
    for group, (data, w) in enumerate(pairs):
        channels = slice(group * outputs, (group + 1) * outputs)
        for tap in np.ndindex(*kernel):
            place = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilation, sizes, strides, strict=True)
            )
            product = np.tensordot(data, w[(slice(None), slice(None), *tap)], ([1], [0]))
            y[(slice(None), channels, *place)] += np.moveaxis(product, -1, 1)
    crop = tuple(slice(b, n - a) for b, n, a in zip(before, full, after, strict=True))
    return y[(slice(None), slice(None), *crop)]


def deform_columns(
    x: Array,
    offset: Array,
    mask: Array | None,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    offset_groups: int,
) -> Array:
    """Windows whose taps are moved by ``offset`` and weighted by ``mask``.

    Args:
        x: ``[N, C, spatial ...]``; taps between pixels are interpolated, outside counts as zero.
        offset: ``[N, offset_groups * taps * axes, positions ...]``, in pixels.
        mask: ``[N, offset_groups * taps, positions ...]``.

    Returns:
        ``[N, C, taps, positions ...]``.
    """
    rank = x.ndim - 2
    strides, dilation = each(strides, rank), each(dilation, rank)
    before, _ = padding_of(padding, rank)
    out, taps = offset.shape[2:], math.prod(kernel)
    moves = offset.reshape(x.shape[0], offset_groups, taps, rank, *out)
    weights = None if mask is None else mask.reshape(x.shape[0], offset_groups, taps, *out)
    seen = np.zeros((*x.shape[:2], taps, *out), x.dtype)
    per = x.shape[1] // offset_groups
    for number, tap in enumerate(np.ndindex(*kernel)):
        for n, c in np.ndindex(*x.shape[:2]):
            places = []
            for axis in range(rank):
                first = np.arange(out[axis]) * strides[axis] - before[axis]
                line = first + tap[axis] * dilation[axis]
                shape = [-1 if a == axis else 1 for a in range(rank)]
                places.append(line.reshape(shape) + moves[n, c // per, number, axis])
            value = interpolate(zero_padded(x[n, c]), places, "linear")
            seen[n, c, number] = value if weights is None else value * weights[n, c // per, number]
    return seen


def deform_conv(
    x: Array,
    weight: Array,
    offset: Array,
    bias: Array | None,
    mask: Array | None,
    groups: int,
    **attrs: Any,
) -> Array:
    """Convolution over :func:`deform_columns`."""
    seen = deform_columns(x, offset, mask, kernel=weight.shape[2:], **attrs)
    flat = weight.reshape(*weight.shape[:2], -1)
    parts = [
        np.tensordot(data, w, ([1, 2], [1, 2]))
        for data, w in zip(np.split(seen, groups, 1), np.split(flat, groups, 0), strict=True)
    ]
    result = np.moveaxis(np.concatenate(parts, -1), -1, 1)
    return result if bias is None else result + bias.reshape(1, -1, *(1,) * (x.ndim - 2))


def decompose_deform(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """The moved taps as columns, then one matrix product per group."""
    x, weight, offset, bias, mask = (*operands, None, None)[:5]
    outputs, per_group, *kernel = b.shape(weight)
    batch, out, groups = b.shape(x)[0], b.shape(offset)[2:], attrs["groups"]
    options = {name: value for name, value in attrs.items() if name != "groups"}
    columns = b.op("deform_columns", x, offset, mask, kernel=tuple(kernel), **options)
    depth, pixels = per_group * math.prod(kernel), math.prod(out)
    columns = b.op("reshape", columns, shape=(batch, groups, depth, pixels))
    flat = b.op("reshape", weight, shape=(1, groups, outputs // groups, depth))
    y = b.op("reshape", b.op("matmul", flat, columns), shape=(batch, outputs, *out))
    if bias is None:
        return y
    return b.op("add", y, b.op("expand_dims", bias, axis=tuple(range(1, 1 + len(kernel)))))


def im2col(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Every window as a column, ``[N, C prod(kernel), positions]``."""
    rank = x.ndim - 2
    before, after = padding_of(padding, rank)
    seen = windows(x, kernel, each(strides, rank), before, after, each(dilation, rank))
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    return seen.transpose(order).reshape(x.shape[0], x.shape[1] * math.prod(kernel), -1)


def col2im(
    x: Array,
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Columns of :func:`im2col` added back where they came from."""
    rank = len(image)
    strides, dilation = each(strides, rank), each(dilation, rank)
    before, after = padding_of(padding, rank)
    counts = positions(image, kernel, strides, before, after, dilation)
    channels = x.shape[1] // math.prod(kernel)
    blocks = x.reshape(x.shape[0], channels, *kernel, *counts)
    full = [n + b + a for n, b, a in zip(image, before, after, strict=True)]
    y = np.zeros((x.shape[0], channels, *full), x.dtype)
    for tap in np.ndindex(*kernel):
        place = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, counts, strides, strict=True)
        )
        y[(slice(None), slice(None), *place)] += blocks[(slice(None), slice(None), *tap)]
    crop = tuple(slice(b, b + n) for b, n in zip(before, image, strict=True))
    return y[(slice(None), slice(None), *crop)]


def positions(
    extents: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    dilation: Sequence[int],
) -> list[Any]:
    """How many windows fit along each axis.

    Raises:
        ShapeError: none does.
    """
    counts = [
        infer.window(*row)
        for row in zip(extents, kernel, strides, before, after, dilation, strict=True)
    ]
    if any(isinstance(count, int) and count < 1 for count in counts):
        raise ShapeError(f"a window of {list(kernel)} does not fit {list(extents)}")
    return counts


def _conv_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, weight = types[:2]
    rank = x.rank - 2
    if rank < 1 or weight.rank != x.rank:
        raise ShapeError(f"input of rank {x.rank}, weight of rank {weight.rank}")
    inputs, groups = weight.shape[1], attrs["groups"]
    if isinstance(x.shape[1], int) and x.shape[1] != inputs * groups:
        raise ShapeError(f"{x.shape[1]} channels, {groups} groups of {inputs}")
    before, after = padding_of(attrs["padding"], rank)
    strides, dilation = each(attrs["strides"], rank), each(attrs["dilation"], rank)
    out = positions(x.shape[2:], weight.shape[2:], strides, before, after, dilation)
    return (TensorType((x.shape[0], weight.shape[0], *out), x.dtype),)


def _transpose_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, weight = types
    rank = x.rank - 2
    if rank < 1 or weight.rank != x.rank or not infer.equal(x.shape[1], weight.shape[0]):
        raise ShapeError("the weight must be [channels, outputs / groups, kernel ...]")
    before, after = padding_of(attrs["padding"], rank)
    out = tuple(
        (n - 1) * s + (k - 1) * d + 1 + extra - lo - hi
        for n, s, k, d, extra, lo, hi in zip(
            x.shape[2:],
            each(attrs["strides"], rank),
            weight.shape[2:],
            each(attrs["dilation"], rank),
            each(attrs["output_padding"], rank),
            before,
            after,
            strict=True,
        )
    )
    return (TensorType((x.shape[0], weight.shape[1] * attrs["groups"], *out), x.dtype),)


def _columns_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, offset = types[:2]
    rank, kernel, groups = x.rank - 2, attrs["kernel"], attrs["offset_groups"]
    before, after = padding_of(attrs["padding"], rank)
    strides, dilation = each(attrs["strides"], rank), each(attrs["dilation"], rank)
    out = positions(x.shape[2:], kernel, strides, before, after, dilation)
    taps = math.prod(kernel)
    wanted = (x.shape[0], groups * taps * rank, *out)
    if len(offset.shape) != len(wanted) or not all(map(infer.equal, offset.shape, wanted)):
        raise ShapeError(f"offsets must be {list(wanted)}, got {list(offset.shape)}")
    if groups < 1 or (isinstance(x.shape[1], int) and x.shape[1] % groups):
        raise ShapeError(f"{x.shape[1]} channels in {groups} groups of offsets")
    return (TensorType((*x.shape[:2], taps, *out), x.dtype),)


def _deform_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    columns = {name: value for name, value in attrs.items() if name != "groups"}
    _columns_type((types[0], types[2]), {**columns, "kernel": types[1].shape[2:]})
    return _conv_type(types, attrs)


def _im2col_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), rank = types, types[0].rank - 2
    before, after = padding_of(attrs["padding"], rank)
    kernel = each(attrs["kernel"], rank)
    strides, dilation = each(attrs["strides"], rank), each(attrs["dilation"], rank)
    counts = positions(x.shape[2:], kernel, strides, before, after, dilation)
    rows = x.shape[1] * math.prod(kernel)
    return (TensorType((x.shape[0], rows, math.prod(counts)), x.dtype),)


def _col2im_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, image = types[0], list(attrs["image"])
    rank = len(image)
    before, after = padding_of(attrs["padding"], rank)
    kernel = each(attrs["kernel"], rank)
    strides, dilation = each(attrs["strides"], rank), each(attrs["dilation"], rank)
    counts = positions(image, kernel, strides, before, after, dilation)
    if isinstance(x.shape[2], int) and math.prod(counts) != x.shape[2]:
        raise ShapeError(f"{x.shape[2]} columns, the image {image} has {math.prod(counts)} windows")
    return (TensorType((x.shape[0], x.shape[1] // math.prod(kernel), *image), x.dtype),)


def _flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    taps = math.prod(n if isinstance(n, int) else 1 for n in types[1].shape[1:])
    return 2.0 * elements(results[0]) * taps


def _transpose_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    taps = math.prod(n if isinstance(n, int) else 1 for n in types[1].shape[1:])
    return 2.0 * elements(types[0]) * taps


def _box(rank: int, size: int = 6) -> list[int]:
    """Uneven spatial extents."""
    return [size + axis for axis in range(rank)]


def _conv_cases(rank: int) -> Callable[[], Iterable[Case]]:
    def cases() -> Iterable[Case]:
        x = normal(2, 4, *_box(rank))
        kernel = [3, 2, 3][:rank]
        yield Case("plain", (x, normal(5, 4, *kernel, seed=1)))
        strided = {"strides": (2,) * rank, "padding": (1,) * rank + (2,) * rank}
        yield Case("stride-uneven-padding", (x, normal(5, 4, *kernel, seed=1)), strided)
        grouped = {"groups": 2, "dilation": (2,) * rank}
        yield Case("groups-dilation", (x, normal(6, 2, *kernel, seed=1)), grouped)
        depthwise = {"groups": 4, "padding": (1,) * (2 * rank)}
        yield Case("depthwise", (x, normal(4, 1, *kernel, seed=1)), depthwise)
        yield Case("pointwise", (x, normal(3, 4, *(1,) * rank, seed=1)))
        special = x.copy()
        special[0, 0, 0], special[1, 1, 2] = np.nan, np.inf
        yield Case("nan-inf", (special, normal(2, 4, *kernel, seed=1)))

    return cases


def _transpose_cases(rank: int) -> Callable[[], Iterable[Case]]:
    def cases() -> Iterable[Case]:
        x = normal(2, 4, *_box(rank, 3))
        kernel = [3, 2, 3][:rank]
        yield Case("plain", (x, normal(4, 5, *kernel, seed=1)))
        extra = {"strides": (2,) * rank, "output_padding": (1,) * rank, "padding": (1,) * rank}
        yield Case("output-padding", (x, normal(4, 5, *kernel, seed=1)), extra)
        grouped = {"groups": 2, "dilation": (2,) * rank, "strides": (3,) * rank}
        yield Case("groups-dilation", (x, normal(4, 3, *kernel, seed=1)), grouped)

    return cases


def _deformed() -> Iterable[Case]:
    x, weight = normal(2, 4, 5, 6), normal(6, 2, 3, 3, seed=1)
    offset, mask = normal(2, 36, 5, 6, seed=2), normal(2, 18, 5, 6, seed=3)
    attrs = {"padding": (1, 1, 1, 1), "groups": 2, "offset_groups": 2}
    yield Case("mask-bias", (x, weight, offset, normal(6, seed=4), mask), attrs)
    zero = np.zeros((2, 18, 2, 2), np.float32)
    strided = {"strides": (2, 3), "padding": (0, 1, 0, 0), "groups": 2}
    yield Case("zero-offset", (x, weight, zero, None, None), strided)
    far = np.full((2, 18, 3, 4), 100, np.float32)
    yield Case("outside", (x, normal(3, 4, 3, 3), far, None, None))


def _columns() -> Iterable[Case]:
    x, offset = normal(1, 2, 4, 5), normal(1, 24, 3, 4, seed=1)
    plane = {"kernel": (2, 3), "padding": (0, 1, 0, 1), "offset_groups": 2}
    yield Case(
        "plane", (x, offset[:, :, :, :4].repeat(1, 0), None), {**plane, "padding": (0, 0, 0, 1)}
    )
    line = {"kernel": (3,), "strides": (2,), "dilation": (2,)}
    yield Case("line", (normal(1, 3, 9), normal(1, 3, 3, seed=1), normal(1, 3, 3, seed=2)), line)


_X_W = (Operand("x"), Operand("weight"))


def _geometry(*extra: Attribute) -> tuple[Attribute, ...]:
    return (
        Attribute("strides", (1,)),
        Attribute("padding", (0,)),
        *extra,
        Attribute("dilation", (1,)),
    )


def _conv(rank: int) -> OpSpec:
    return OpSpec(
        f"conv{rank}d",
        "convolution",
        exactly(conv),
        _conv_type,
        operands=_X_W,
        attributes=(*_geometry(), Attribute("groups", 1)),
        accumulation=WIDE,
        tolerance=LOOSE,
        relax=f"relax.nn.conv{rank}d",
        cases=_conv_cases(rank),
        flops=_flops,
        source="ONNX Conv-22",
    )


def _transpose(rank: int) -> OpSpec:
    return OpSpec(
        f"conv{rank}d_transpose",
        "convolution",
        exactly(conv_transpose),
        _transpose_type,
        operands=_X_W,
        attributes=(*_geometry(Attribute("output_padding", (0,))), Attribute("groups", 1)),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_transpose_cases(rank),
        flops=_transpose_flops,
        source="ONNX ConvTranspose-22",
    )


_COLUMNS = Attribute("kernel")

SPECS = (
    *(_conv(rank) for rank in (1, 2, 3)),
    *(_transpose(rank) for rank in (1, 2, 3)),
    OpSpec(
        "deform_columns",
        "convolution",
        exactly(deform_columns),
        _columns_type,
        operands=(Operand("x"), Operand("offset"), Operand("mask", optional=True)),
        attributes=(_COLUMNS, *_geometry(), Attribute("offset_groups", 1)),
        tolerance=LOOSE,
        cases=_columns,
        flops=10,
    ),
    OpSpec(
        "deform_conv",
        "convolution",
        exactly(deform_conv),
        _deform_type,
        operands=(
            *_X_W,
            Operand("offset"),
            Operand("bias", optional=True),
            Operand("mask", optional=True),
        ),
        attributes=(*_geometry(), Attribute("groups", 1), Attribute("offset_groups", 1)),
        tolerance=LOOSE,
        cases=_deformed,
        decompose=decompose_deform,
        flops=lambda types, results, attrs: 5 * _flops(types, results, attrs),
        source="ONNX DeformConv-22",
    ),
    OpSpec(
        "im2col",
        "convolution",
        im2col,
        _im2col_type,
        attributes=(_COLUMNS, *_geometry()),
        cases=lambda: (
            Case("plain", (normal(2, 3, 5, 6),), {"kernel": (2, 3)}),
            Case(
                "padded",
                (normal(1, 2, 5, 6),),
                {"kernel": (3, 2), "strides": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2)},
            ),
        ),
        flops=0,
        source="PyTorch im2col",
    ),
    OpSpec(
        "col2im",
        "convolution",
        exactly(col2im),
        _col2im_type,
        attributes=(Attribute("image"), _COLUMNS, *_geometry()),
        tolerance=LOOSE,
        cases=lambda: (
            Case("plain", (normal(2, 18, 16),), {"image": (5, 6), "kernel": (2, 3)}),
            Case(
                "padded",
                (normal(1, 12, 18),),
                {
                    "image": (5, 6),
                    "kernel": (3, 2),
                    "strides": (2, 1),
                    "padding": (1, 0, 1, 2),
                    "dilation": (1, 2),
                },
            ),
            Case("one-axis", (normal(1, 6, 4),), {"image": (6,), "kernel": (3,)}),
        ),
        flops=lambda types, results, attrs: elements(types[0]),
        source="ONNX Col2Im-18",
    ),
)
