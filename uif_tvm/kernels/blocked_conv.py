"""What blocked convolutions compute, as tensor expressions; schedules decide how.

Layouts, with ``cb`` channels per block (lanes past the last real channel are unspecified):

* activations ``[N, ceil(C/cb), H, W, cb]``; the input may also be plain ``[N, C, H, W]``;
* weights ``[ceil(O/ob), ceil(I/ib), KH, KW, ib, ob]``, zero past the last channel, where ``I``
  counts input channels of one group and ``ib`` is the input's channel block (1 for plain input);
* depthwise weights ``[ceil(C/cb), KH, KW, cb]``.

No kernel ever reads an unspecified lane into a real one: reductions run over real channels only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.kernels.layout import (
    ELEMENTWISE_FUSABLE,
    Window,
    blocks,
    extents,
    prim_func,
    reduce_axis,
    within,
)
from uif_tvm.target.schedule import FAMILY_ATTR, Conv2dProblem

if TYPE_CHECKING:
    import tvm

CONV2D = "conv2d_blocked"
DEPTHWISE = "depthwise_blocked"
#: Anchor annotation: input channels, output channels, groups.
CHANNELS_ATTR = "uif.channels"


def conv2d(
    data: tuple[int, ...],
    weight: tuple[int, int, int, int, int, int],
    channels: tuple[int, int],
    groups: int,
    window: Window,
    out_block: int,
    dtype: str = "float32",
) -> tvm.tirx.PrimFunc:
    """``out[n,o,y,x] = sum_{i,p,q} data[n, g(o)+i, y*sh-t+p*dh, x*sw-l+q*dw] * w[o,i,p,q]``.

    Args:
        data: shape of the input, blocked (5 extents) or plain (4).
        weight: shape of the packed weights.
        channels: real input and output channels, over all groups.
        groups: both channel counts are multiples of it; with more than one group, channels per
            group are multiples of the blocks.
        window: kernel size, strides, padding and dilation.
        out_block: channel block of the result ``[N, ceil(O/cb), OH, OW, cb]``.
        dtype: element type of everything.
    """
    from tvm import te, tirx

    in_channels, out_channels = channels
    per_group, out_per_group = in_channels // groups, out_channels // groups
    height, width = data[2], data[3]
    in_block, weight_block = weight[4], weight[5]
    x = te.placeholder(extents(*data), dtype, name="data")
    w = te.placeholder(extents(*weight), dtype, name="weight")
    rc = reduce_axis(per_group, "rc")
    kh, kw = reduce_axis(window.kernel[0], "kh"), reduce_axis(window.kernel[1], "kw")

    def read(n: Any, c: Any, y: Any, xx: Any) -> Any:
        return x[n, c, y, xx] if len(data) == 4 else x[n, c // in_block, y, xx, c % in_block]

    def body(n: Any, co: Any, oy: Any, ox: Any, ci: Any) -> Any:
        o = co * out_block + ci
        first = 0 if groups == 1 else (o // out_per_group) * per_group
        y, xx = window.rows(oy, kh), window.columns(ox, kw)
        value = read(n, first + rc, y, xx)
        inside = within(window, height, width, y, xx)
        if inside is not None:
            value = tirx.if_then_else(inside, value, tirx.const(0, dtype))
        factor = w[o // weight_block, rc // in_block, kh, kw, rc % in_block, o % weight_block]
        return te.sum(value * factor, axis=[rc, kh, kw])

    shape = (data[0], blocks(out_channels, out_block), *window.out(height, width), out_block)
    attrs = {FAMILY_ATTR: CONV2D, CHANNELS_ATTR: [*channels, groups], **window.attrs()}
    out = te.compute(extents(*shape), body, name="conv2d", attrs=attrs)
    return prim_func([x, w, out], ELEMENTWISE_FUSABLE)


def depthwise(
    data: tuple[int, int, int, int, int], channels: int, window: Window, dtype: str = "float32"
) -> tvm.tirx.PrimFunc:
    """``out[n,c,y,x] = sum_{p,q} data[n, c, y*sh - t + p*dh, x*sw - l + q*dw] * w[c,p,q]``.

    Args:
        data: blocked shape ``[N, C/cb, H, W, cb]``; weights are ``[C/cb, KH, KW, cb]``.
        channels: real channels.
        window: kernel size, strides, padding and dilation.
        dtype: element type of everything.
    """
    from tvm import te, tirx

    batch, count, height, width, block = data
    x = te.placeholder(extents(*data), dtype, name="data")
    w = te.placeholder(extents(count, *window.kernel, block), dtype, name="weight")
    kh, kw = reduce_axis(window.kernel[0], "kh"), reduce_axis(window.kernel[1], "kw")

    def body(n: Any, co: Any, oy: Any, ox: Any, ci: Any) -> Any:
        y, xx = window.rows(oy, kh), window.columns(ox, kw)
        value = x[n, co, y, xx, ci]
        inside = within(window, height, width, y, xx)
        if inside is not None:
            value = tirx.if_then_else(inside, value, tirx.const(0, dtype))
        return te.sum(value * w[co, kh, kw, ci], axis=[kh, kw])

    shape = (batch, count, *window.out(height, width), block)
    attrs = {FAMILY_ATTR: DEPTHWISE, CHANNELS_ATTR: [channels] * 3, **window.attrs()}
    out = te.compute(extents(*shape), body, name="depthwise", attrs=attrs)
    return prim_func([x, w, out], ELEMENTWISE_FUSABLE)


def merge_groups(problem: Conv2dProblem, block: int) -> Conv2dProblem:
    """``problem`` with neighbouring groups joined until channels per group fill whole blocks.

    A joined group multiplies by zeros where its parts do not meet, which is cheaper than vectors
    that straddle groups. Depthwise problems have their own kernel and come back unchanged.
    """
    if problem.depthwise or problem.groups == 1:
        return problem
    inner = problem.in_channels // problem.groups
    outer = problem.out_channels // problem.groups
    for joined in range(1, problem.groups + 1):
        whole = joined * inner % block == 0 and joined * outer % block == 0
        if problem.groups % joined == 0 and (whole or joined == problem.groups):
            return replace(problem, groups=problem.groups // joined)
    return problem


def pack_weight(
    weight: np.ndarray[Any, Any], groups: tuple[int, int], in_block: int, out_block: int
) -> np.ndarray[Any, Any]:
    """OIHW weights as ``[ceil(O/ob), ceil(I/ib), KH, KW, ib, ob]``, zero past the last channel.

    Args:
        weight: ``[O, I / groups[0], KH, KW]``.
        groups: groups of the model, and of the kernel (see :func:`merge_groups`).
        in_block, out_block: ``ib`` and ``ob``.
    """
    out_channels, inner, rows, columns = weight.shape
    joined = groups[0] // groups[1]
    if joined > 1:
        spread = np.zeros((out_channels, inner * joined, rows, columns), weight.dtype)
        part = out_channels // groups[0]
        for group in range(groups[0]):
            first = group % joined * inner
            rows_of = slice(group * part, (group + 1) * part)
            spread[rows_of, first : first + inner] = weight[rows_of]
        weight, inner = spread, inner * joined
    count, depth = blocks(out_channels, out_block), blocks(inner, in_block)
    padded = np.zeros((count * out_block, depth * in_block, rows, columns), weight.dtype)
    padded[:out_channels, :inner] = weight
    shape = (count, out_block, depth, in_block, rows, columns)
    return np.ascontiguousarray(padded.reshape(shape).transpose(0, 2, 4, 5, 3, 1))


def unpack_weight(
    packed: np.ndarray[Any, Any], out_channels: int, in_channels: int
) -> np.ndarray[Any, Any]:
    """Inverse of :func:`pack_weight` for one group: ``[O, I, KH, KW]``."""
    count, depth, rows, columns, in_block, out_block = packed.shape
    full = packed.transpose(0, 5, 1, 4, 2, 3).reshape(
        count * out_block, depth * in_block, rows, columns
    )
    return full[:out_channels, :in_channels]


def pack_depthwise(weight: np.ndarray[Any, Any], block: int) -> np.ndarray[Any, Any]:
    """``[C, 1, KH, KW]`` as ``[ceil(C/cb), KH, KW, cb]``, zero past the last channel."""
    channels, _, rows, columns = weight.shape
    count = blocks(channels, block)
    padded = np.zeros((count * block, rows, columns), weight.dtype)
    padded[:channels] = weight[:, 0]
    return np.ascontiguousarray(padded.reshape(count, block, rows, columns).transpose(0, 2, 3, 1))
