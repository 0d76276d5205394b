"""Fourier transforms as matrix products with tables made at import."""

from __future__ import annotations

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Array, shape_of

MAX_LENGTH = 4096
"""Points of a transform: its table has the square of that many elements."""


def table(length: int, used: int, inverse: bool) -> tuple[Array, Array]:
    """cos and sin of 2 pi j k / length, shapes (used, length); float64."""
    if length > MAX_LENGTH:
        raise Unsupported(f"a transform of {length} points (at most {MAX_LENGTH})")
    angle = 2 * np.pi * ((np.arange(used)[:, None] * np.arange(length)[None]) % length) / length
    return np.cos(angle), np.sin(angle) * (1 if inverse else -1)


@converter("DFT", since=17)
def dft(ctx: NodeContext) -> relax.Expr:
    """Discrete Fourier transform along an axis; the last axis holds real and imaginary parts."""
    dims = ctx.static_shape(0)
    rank = len(dims)
    if ctx.version >= 20:
        axis = int(ctx.known(2, "the axis").reshape(())) if ctx.has(2) else -2
    else:
        axis = int(ctx.attrs.get("axis", 1))
    axis = ctx.axis(axis, rank)
    if axis == rank - 1 or dims[-1] not in (1, 2):
        raise ctx.invalid("the last axis must hold one or two parts, and is not transformed")
    inverse = bool(ctx.attrs.get("inverse", 0))
    onesided = bool(ctx.attrs.get("onesided", 0))
    length = int(ctx.known(1, "dft_length").reshape(())) if ctx.has(1) else dims[axis]
    dtype = ctx.dtype(0)
    if onesided and inverse:
        return _real_from_half(ctx, axis, length)
    used = min(length, dims[axis])
    cos, sin = table(length, used, inverse)
    if onesided:
        keep = length // 2 + 1
        cos, sin = cos[:, :keep], sin[:, :keep]
    if inverse:
        cos, sin = cos / length, sin / length
    return _transform(ctx, axis, used, cos, sin, dtype)


def _parts(ctx: NodeContext, axis: int, used: int) -> tuple[relax.Expr, list[int], list[int]]:
    """The input with the transformed axis and the parts last, cut to ``used`` points."""
    x, rank = ctx.expr(0), ctx.rank(0)
    dims = ctx.static_shape(0)
    if used < dims[axis]:
        x = ctx.emit(relax.op.strided_slice(x, [axis], [0], [used]))
    order = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    return ctx.emit(relax.op.permute_dims(x, order)), order, [dims[a] for a in order[:-2]]


def _transform(
    ctx: NodeContext, axis: int, used: int, cos: Array, sin: Array, dtype: str
) -> relax.Expr:
    """(real, imaginary) rows times [[cos, sin], [-sin, cos]], as one product."""
    moved, order, lead = _parts(ctx, axis, used)
    parts = ctx.static_shape(0)[-1]
    flat = ctx.reshape(moved, [*lead, used * parts])
    count = cos.shape[1]
    weights = np.zeros((used, parts, count, 2))
    weights[:, 0, :, 0], weights[:, 0, :, 1] = cos, sin
    if parts == 2:
        weights[:, 1, :, 0], weights[:, 1, :, 1] = -sin, cos
    matrix = ctx.const(weights.reshape(used * parts, count * 2), dtype)
    if not lead:
        flat = ctx.reshape(flat, [1, used * parts])
    y = ctx.reshape(emit_matmul(ctx, flat, matrix), [*lead, count, 2])
    back = [order.index(a) for a in range(len(order))]
    return ctx.emit(relax.op.permute_dims(y, back))


def _real_from_half(ctx: NodeContext, axis: int, length: int) -> relax.Expr:
    """Inverse of a one-sided transform: real values from half a spectrum."""
    dims = ctx.static_shape(0)
    if not ctx.has(1):
        length = 2 * (dims[axis] - 1)
    used = min(length // 2 + 1, dims[axis])
    cos, sin = table(length, used, True)
    twice = np.full((used, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and used == length // 2 + 1:
        twice[-1] = 1.0
    moved, order, lead = _parts(ctx, axis, used)
    if dims[-1] != 2:
        raise ctx.invalid("half a spectrum has real and imaginary parts")
    weights = np.stack([cos * twice, -sin * twice], 1).reshape(used * 2, length) / length
    flat = ctx.reshape(moved, [*(lead or [1]), used * 2])
    y = emit_matmul(ctx, flat, ctx.const(weights, ctx.dtype(0)))
    y = ctx.reshape(y, [*lead, length, 1])
    return ctx.emit(relax.op.permute_dims(y, [order.index(a) for a in range(len(order))]))


@converter("STFT", since=17)
def stft(ctx: NodeContext) -> relax.Expr:
    """Windowed transforms of overlapping frames, as a strided one-dimensional convolution."""
    dims = ctx.static_shape(0)
    step = int(ctx.known(1, "frame_step").reshape(()))
    window = ctx.known(2, "the window") if ctx.has(2) else None
    if ctx.has(3):
        length = int(ctx.known(3, "frame_length").reshape(()))
    elif window is not None:
        length = len(window)
    else:
        raise ctx.invalid("neither a window nor a frame length is given")
    parts = dims[2] if len(dims) == 3 else 1
    if step < 1 or not 1 <= length <= dims[1]:
        raise ctx.invalid(f"frames of {length} every {step} in a signal of {dims[1]}")
    onesided = bool(ctx.attrs.get("onesided", 1)) and parts == 1
    cos, sin = table(length, length, False)
    keep = length // 2 + 1 if onesided else length
    shape = np.ones(length) if window is None else window.astype(np.float64)
    cos, sin = cos[:, :keep] * shape[:, None], sin[:, :keep] * shape[:, None]
    filters = np.zeros((keep, 2, parts, length))
    filters[:, 0, 0], filters[:, 1, 0] = cos.T, sin.T
    if parts == 2:
        filters[:, 0, 1], filters[:, 1, 1] = -sin.T, cos.T
    dtype = ctx.dtype(0)
    signal = ctx.reshape(ctx.expr(0), [dims[0], dims[1], parts])
    signal = ctx.emit(relax.op.permute_dims(signal, [0, 2, 1]))
    weights = ctx.const(filters.reshape(keep * 2, parts, length), dtype)
    y = ctx.emit(
        relax.op.nn.conv1d(signal, weights, strides=step, data_layout="NCW", kernel_layout="OIW")
    )
    frames = shape_of(y)[2]
    y = ctx.emit(relax.op.permute_dims(y, [0, 2, 1]))
    return ctx.reshape(y, [dims[0], frames, keep, 2])
