"""Convolution and transposed convolution in one, two and three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.torch.dtypes import compute_dtype
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts

_CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


@converts("aten.convolution.default")
def convolution(
    cx: Emitter,
    x: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    """Convolution over ``[batch, channels, spatial ...]`` plus bias."""
    rank = len(cx.shape(x)) - 2
    if rank not in _CONV:
        raise RefusedError(f"convolution over {rank} dimensions is not supported")
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    dtype = cx.out_dtype
    work = compute_dtype(dtype)
    x, weight = cx.cast(x, work), cx.cast(weight, work)
    if 0 in cx.out_shape or 0 in cx.shape(x) or 0 in cx.shape(weight):
        result = cx.full(cx.out_shape, 0, work)
    elif transposed:
        result = _transposed(
            cx, x, weight, stride, padding, dilation, _each(output_padding, rank), groups
        )
    else:
        result = cx.emit(
            _CONV[rank](
                x,
                weight,
                strides=tuple(stride),
                padding=(*padding, *padding),
                dilation=tuple(dilation),
                groups=groups,
            )
        )
    if bias is not None:
        bias = cx.reshape(cx.cast(bias, work), [1, *cx.shape(bias), *([1] * rank)])
        result = cx.emit(relax.op.add(result, bias))
    return cx.cast(result, dtype)


def _each(values: list[int], rank: int) -> list[int]:
    """One value per spatial dimension."""
    return list(values) * rank if len(values) == 1 else list(values)


def _transposed(
    cx: Emitter,
    x: relax.Expr,
    weight: relax.Expr,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
) -> relax.Expr:
    """Transposed convolution as a convolution: spread the input, turn the kernel around.

    out[o] = sum over k of spread[o + p' - k*d] * w[k] with p' = dilation * (kernel - 1) - padding,
    which is a stride-1 convolution of the spread input with the reversed kernel.
    """
    kernel = cx.static(weight, "transposed convolution")[2:]
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    after = [b + extra for b, extra in zip(before, output_padding, strict=True)]
    spread = _spread(cx, x, stride, before, after)
    return cx.emit(
        _CONV[len(kernel)](
            spread,
            _reversed_kernel(cx, weight, groups),
            strides=(1,) * len(kernel),
            padding=(0,) * (2 * len(kernel)),
            dilation=tuple(dilation),
            groups=groups,
        )
    )


def _spread(
    cx: Emitter, x: relax.Expr, stride: list[int], before: list[int], after: list[int]
) -> relax.Expr:
    """``stride - 1`` zeros between elements, ``before`` and ``after`` around (may be negative)."""
    if all(s == 1 for s in stride) and not any(before) and not any(after):
        return x
    shape = cx.shape(x)
    sizes = [
        (n - 1) * s + 1 + b + a for n, s, b, a in zip(shape[2:], stride, before, after, strict=True)
    ]

    def kernel(data: te.Tensor) -> te.Tensor:
        def element(n: Any, c: Any, *spatial: Any) -> Any:
            inside, at = [], []
            for i, s, b, size in zip(spatial, stride, before, data.shape[2:], strict=True):
                position = i - b
                inside += [position >= 0, position < (size - 1) * s + 1]
                if s > 1:
                    inside.append(tirx.floormod(position, s) == 0)
                at.append(tirx.floordiv(position, s))
            return tirx.if_then_else(tirx.all(*inside), data(n, c, *at), tirx.const(0, data.dtype))

        return te.compute([*data.shape[:2], *sizes], element, name="spread")

    return cx.te(kernel, x, name="spread")


def _reversed_kernel(cx: Emitter, weight: relax.Expr, groups: int) -> relax.Expr:
    """``[in, out / groups, k ...]`` to ``[out, in / groups, reversed k ...]``."""
    inputs, outputs, *kernel = cx.static(weight, "transposed convolution")
    rank = len(kernel)
    known = cx.value_of(weight)
    split = [groups, inputs // groups, outputs, *kernel]
    axes = [0, 2, 1, *range(3, 3 + rank)]
    merged = [groups * outputs, inputs // groups, *kernel]
    if known is not None:
        turned = known.reshape(split).transpose(axes).reshape(merged)
        turned = np.flip(turned, axis=tuple(range(2, 2 + rank)))
        return cx.const(np.ascontiguousarray(turned), cx.dtype(weight))
    turned = cx.reshape(cx.permute(cx.reshape(weight, split), axes), merged)
    for axis in range(2, 2 + rank):
        turned = cx.emit(relax.op.flip(turned, axis))
    return turned
