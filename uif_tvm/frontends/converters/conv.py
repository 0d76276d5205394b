"""Convolutions, plain and transposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.padding import emit_pad
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.converters.slicing import cut
from uif_tvm.frontends.onnx.values import (
    Dim,
    at_least,
    is_static,
    same_dim,
    shape_of,
    simplify,
)

LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}
CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def spatial(ctx: NodeContext, name: str, rank: int, default: int) -> list[int]:
    """A per-axis attribute."""
    values = [int(v) for v in ctx.attrs.get(name) or [default] * rank]
    if len(values) != rank:
        raise ctx.invalid(f"{name} {values} for {rank} spatial axes")
    return values


def window_pads(
    ctx: NodeContext,
    dims: tuple[Dim, ...],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
) -> tuple[list[Dim], list[Dim]]:
    """Padding before and after each spatial axis, ``auto_pad`` resolved.

    Symbolic where a stride makes it depend on a symbolic extent.
    """
    rank = len(kernel)
    mode = ctx.attrs.get("auto_pad", "NOTSET")
    if min([*kernel, *strides, *dilations], default=1) < 1:
        raise ctx.invalid("kernel, strides and dilations must be positive")
    if mode in ("NOTSET", ""):
        pads = [int(v) for v in ctx.attrs.get("pads") or [0] * (2 * rank)]
        if len(pads) != 2 * rank:
            raise ctx.invalid(f"pads {pads} for {rank} spatial axes")
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return [0] * rank, [0] * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ctx.invalid(f"auto_pad {mode!r} does not exist")
    before, after = [], []
    for extent, k, s, d in zip(dims, kernel, strides, dilations, strict=True):
        need = at_least(simplify(((extent + s - 1) // s - 1) * s + (k - 1) * d + 1 - extent), 0)
        small = simplify(need // 2)
        large = simplify(need - small)
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before, after


def apply_symbolic_pads(
    ctx: NodeContext, x: relax.Expr, before: Sequence[Dim], after: Sequence[Dim]
) -> tuple[relax.Expr, list[int], list[int]]:
    """``x`` with zeros around it where pads are symbolic, and the pads that are left to do."""
    if is_static((*before, *after)):
        return x, [int(v) for v in before], [int(v) for v in after]
    lead = [0] * (len(shape_of(x)) - len(before))
    fill = ctx.const(0, str(x.ty.dtype))
    padded = emit_pad(ctx, x, [*lead, *before], [*lead, *after], "constant", fill)
    return padded, [0] * len(before), [0] * len(after)


def check_window(
    ctx: NodeContext,
    dims: Sequence[Dim],
    window: list[int],
    before: Sequence[Dim],
    after: Sequence[Dim],
) -> None:
    """Refuse a window larger than the padded input."""
    for extent, size, lo, hi in zip(dims, window, before, after, strict=True):
        if is_static((extent, lo, hi)) and extent + lo + hi < size:
            raise ctx.invalid(f"a window of {size} does not fit an input of {extent} + {lo} + {hi}")


def emit_conv(
    ctx: NodeContext,
    x: relax.Expr,
    w: relax.Expr,
    strides: list[int],
    before: list[int],
    after: list[int],
    dilations: list[int],
    groups: int,
    out_dtype: str | None = None,
) -> relax.Expr:
    """One Relax convolution over 1 to 3 spatial axes, NC... and OI... layouts."""
    rank = len(strides)
    if rank not in CONV:
        raise Unsupported(f"convolution over {rank} spatial axes")
    channels, per_group = shape_of(x)[1], shape_of(w)[1]
    if isinstance(channels, int) and isinstance(per_group, int) and channels != per_group * groups:
        raise ctx.invalid(f"{channels} channels, weights of {per_group}, {groups} groups")
    outputs = shape_of(w)[0]
    if groups < 1 or (isinstance(outputs, int) and outputs % groups):
        raise ctx.invalid(f"{outputs} output channels in {groups} groups")
    if min([*before, *after]) < 0:
        ranges: dict[int, tuple[Dim, Dim, int]] = {
            axis + 2: (max(-lo, 0), simplify(shape_of(x)[axis + 2] - max(-hi, 0)), 1)
            for axis, (lo, hi) in enumerate(zip(before, after, strict=True))
        }
        x = ctx.as_expr(cut(ctx, x, ranges))
        before, after = [max(v, 0) for v in before], [max(v, 0) for v in after]
    layout, kernel_layout = LAYOUTS[rank]
    return ctx.emit(
        CONV[rank](
            x,
            w,
            strides=strides,
            padding=[*before, *after],
            dilation=dilations,
            groups=groups,
            data_layout=layout,
            kernel_layout=kernel_layout,
            out_dtype=out_dtype,
        )
    )


def add_bias(ctx: NodeContext, y: relax.Expr, bias: relax.Expr) -> relax.Expr:
    """Per-channel bias."""
    rank = len(shape_of(y))
    count = shape_of(bias)[0]
    return ctx.emit(relax.op.add(y, ctx.reshape(bias, [1, count] + [1] * (rank - 2))))


@converter("Conv")
def conv(ctx: NodeContext) -> relax.Expr:
    """Convolution with optional bias."""
    dims, weights = ctx.shape(0), ctx.static_shape(1)
    rank = len(dims) - 2
    if rank < 1 or len(weights) != len(dims):
        raise ctx.invalid(f"input of rank {len(dims)}, weights of rank {len(weights)}")
    kernel = list(weights[2:])
    if "kernel_shape" in ctx.attrs and list(ctx.attrs["kernel_shape"]) != kernel:
        raise ctx.invalid(f"kernel_shape {ctx.attrs['kernel_shape']}, weights {weights}")
    strides = spatial(ctx, "strides", rank, 1)
    dilations = spatial(ctx, "dilations", rank, 1)
    before, after = window_pads(ctx, dims[2:], kernel, strides, dilations)
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    check_window(ctx, dims[2:], window, before, after)
    groups = int(ctx.attrs.get("group", 1))
    x, low, high = apply_symbolic_pads(ctx, ctx.expr(0), before, after)
    y = emit_conv(ctx, x, ctx.expr(1), strides, low, high, dilations, groups)
    return add_bias(ctx, y, ctx.expr(2)) if ctx.has(2) else y


def _phase_weights(
    ctx: NodeContext, index: int, strides: list[int], dilations: list[int], groups: int
) -> tuple[relax.Expr, list[int]]:
    """Weights of a transposed convolution as those of one plain convolution per output phase.

    With stride s, output s * q + r only meets taps k = s * j + r, so

        y[s q + r] = sum_j x[q - j] w[s j + r]

    which is a plain convolution of J = ceil(K / s) taps (reversed) with s times the channels.

    Returns:
        Weights of shape (groups * Cout/groups * prod(s), Cin/groups, *J), and J.
    """
    cin, cog, *kernel = ctx.static_shape(index)
    rank = len(kernel)
    sizes = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    taps = [-(-k // s) for k, s in zip(sizes, strides, strict=True)]
    shape = [groups * cog * math.prod(strides), cin // groups, *taps]
    array = ctx.array(index)
    if array is not None:
        spread = np.zeros(
            (cin, cog, *[j * s for j, s in zip(taps, strides, strict=True)]), array.dtype
        )
        steps = tuple(slice(0, k, d) for k, d in zip(sizes, dilations, strict=True))
        spread[(slice(None), slice(None), *steps)] = array
        split = [n for j, s in zip(taps, strides, strict=True) for n in (j, s)]
        spread = spread.reshape(groups, cin // groups, cog, *split)
        spread = np.flip(spread, tuple(3 + 2 * i for i in range(rank)))
        order = [0, 2, *[4 + 2 * i for i in range(rank)], 1, *[3 + 2 * i for i in range(rank)]]
        return ctx.importer.constant(
            np.ascontiguousarray(spread.transpose(order)).reshape(shape)
        ), taps

    def compute(w: te.Tensor) -> te.Tensor:
        def at(out: Any, inner: Any, *j: Any) -> Any:
            phases: list[Any] = []
            rest = out
            for s in reversed(strides):
                phases.insert(0, tirx.floormod(rest, s))
                rest = tirx.floordiv(rest, s)
            group, channel = tirx.floordiv(rest, cog), tirx.floormod(rest, cog)
            places = [
                (n - 1 - i) * s + r for i, n, s, r in zip(j, taps, strides, phases, strict=True)
            ]
            fits = [place < size for place, size in zip(places, sizes, strict=True)]
            fits += [
                tirx.floormod(place, d) == 0 for place, d in zip(places, dilations, strict=True)
            ]
            source = [tirx.floordiv(p, d) for p, d in zip(places, dilations, strict=True)]
            value = w(group * (cin // groups) + inner, channel, *source)
            return tirx.if_then_else(tirx.all(*fits), value, tirx.const(0, kind(w)))

        return te.compute(shape, at, name="phase_weights")

    return ctx.te(compute, ctx.expr(index), name="phase_weights"), taps


def _transpose_geometry(
    ctx: NodeContext, extents: list[int], sizes: list[int], strides: list[int]
) -> tuple[list[int], list[int]]:
    """Padding removed before each axis, and output extents, by ONNX's rules."""
    rank = len(sizes)
    extra = spatial(ctx, "output_padding", rank, 0)
    mode = ctx.attrs.get("auto_pad", "NOTSET")
    full = [s * (n - 1) + o + k for n, s, o, k in zip(extents, strides, extra, sizes, strict=True)]
    wanted = ctx.attrs.get("output_shape")
    if not wanted and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(extents, strides, strict=True)]
    if wanted:
        wanted = [int(v) for v in wanted][-rank:]
        total = [max(f - w, 0) for f, w in zip(full, wanted, strict=True)]
        upper = mode == "SAME_UPPER"
        before = [t // 2 if upper else t - t // 2 for t in total]
        return before, wanted
    pads = [int(v) for v in ctx.attrs.get("pads") or [0] * (2 * rank)]
    if mode == "VALID":
        pads = [0] * (2 * rank)
    if len(pads) != 2 * rank:
        raise ctx.invalid(f"pads {pads} for {rank} spatial axes")
    return pads[:rank], [f - pads[i] - pads[i + rank] for i, f in enumerate(full)]


@converter("ConvTranspose")
def conv_transpose(ctx: NodeContext) -> relax.Expr:
    """Transposed convolution as a plain one over phases, whose outputs are interleaved."""
    dims, weights = ctx.shape(0), ctx.static_shape(1)
    rank = len(dims) - 2
    if rank < 1 or len(weights) != len(dims):
        raise ctx.invalid(f"input of rank {len(dims)}, weights of rank {len(weights)}")
    groups = int(ctx.attrs.get("group", 1))
    if groups < 1 or weights[0] % groups or dims[1] != weights[0]:
        raise ctx.invalid(f"{dims[1]} channels, weights {weights}, {groups} groups")
    strides = spatial(ctx, "strides", rank, 1)
    dilations = spatial(ctx, "dilations", rank, 1)
    kernel = list(weights[2:])
    if min([*strides, *dilations]) < 1 or max(strides) > 1024:
        raise ctx.invalid(f"strides {strides}, dilations {dilations}")
    sizes = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    w, taps = _phase_weights(ctx, 1, strides, dilations, groups)
    symbolic = not is_static(dims[2:])
    extents = list(dims[2:])
    before, outputs = _transpose_geometry(ctx, extents, sizes, strides)  # type: ignore[arg-type]
    outputs = [simplify(v) for v in outputs]  # type: ignore[misc]
    if not symbolic and min(outputs) < 1:
        raise ctx.invalid(f"output extents {outputs}")
    # Conv output position q runs over [first, last); output o stands at (o + before) / stride.
    left, right, firsts = [], [], []
    for lo, out, n, s, j in zip(before, outputs, extents, strides, taps, strict=True):
        first = max(min(lo // s, j - 1), 0)
        last = simplify(-((-(out + lo)) // s)) if isinstance(out, int) else None
        tail = max(last - n, 0) if isinstance(last, int) else None
        if tail is None:  # symbolic extent: the reach is that of the static part
            reach = simplify(out + lo - s * (n - 1))
            if not isinstance(reach, int):
                raise Unsupported("this padding over a dimension that depends on the data")
            tail = max(-(-reach // s) - 1, 0)
        left.append(j - 1 - first)
        right.append(tail)
        firsts.append(first)
    y = emit_conv(ctx, ctx.expr(0), w, [1] * rank, left, right, [1] * rank, groups)
    y = _interleave(ctx, y, strides, weights[1] * groups)
    ranges: dict[int, tuple[Dim, Dim, int]] = {}
    for axis, (lo, out, first, s) in enumerate(zip(before, outputs, firsts, strides, strict=True)):
        begin = lo - first * s
        if begin < 0:  # nothing of the input reaches so far: zeros
            missing = [0] * (rank + 2)
            missing[axis + 2] = -begin
            zeros = [0] * (rank + 2)
            fill = ctx.const(0, ctx.dtype(0))
            y = emit_pad(ctx, y, missing, zeros, "constant", fill)
            begin = 0
        if begin or not same_dim(shape_of(y)[axis + 2], out):
            ranges[axis + 2] = (begin, simplify(begin + out), 1)
    if ranges:
        y = ctx.as_expr(cut(ctx, y, ranges))
    return add_bias(ctx, y, ctx.expr(2)) if ctx.has(2) else y


def _interleave(ctx: NodeContext, y: relax.Expr, strides: list[int], channels: int) -> relax.Expr:
    """(N, C * prod(s), *Q) to (N, C, *(Q * s))."""
    if math.prod(strides) == 1:
        return y
    rank = len(strides)
    batch, _, *extents = shape_of(y)
    x = ctx.reshape(y, [batch, channels, *strides, *extents])
    order = [0, 1, *[n for i in range(rank) for n in (2 + rank + i, 2 + i)]]
    x = ctx.emit(relax.op.permute_dims(x, order))
    merged = [simplify(q * s) for q, s in zip(extents, strides, strict=True)]
    return ctx.reshape(x, [batch, channels, *merged])


@converter("Col2Im")
def col2im(ctx: NodeContext) -> relax.Expr:
    """Sum sliding blocks back into an image."""
    image = [int(v) for v in ctx.known(1, "image_shape")]
    block = [int(v) for v in ctx.known(2, "block_shape")]
    rank = len(image)
    strides = spatial(ctx, "strides", rank, 1)
    dilations = spatial(ctx, "dilations", rank, 1)
    pads = [int(v) for v in ctx.attrs.get("pads") or [0] * (2 * rank)]
    counts = [
        (n + pads[i] + pads[i + rank] - (b - 1) * d - 1) // s + 1
        for i, (n, b, d, s) in enumerate(zip(image, block, dilations, strides, strict=True))
    ]
    if min(counts) < 1 or math.prod(counts) != ctx.static_shape(0)[2]:
        raise ctx.invalid("the number of blocks does not fit the image")

    return ctx.op(
        "col2im",
        ctx.expr(0),
        image=image,
        kernel=block,
        strides=strides,
        padding=pads,
        dilation=dilations,
    )
