"""Views that mix axes: pixel shuffles, diagonals, sliding windows, strides."""

from __future__ import annotations

import math
from typing import Any

from tvm import te

from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


@converts("aten.pixel_shuffle.default")
def pixel_shuffle(cx: Emitter, x: Any, factor: int) -> Any:
    """``[.., c*r*r, h, w]`` to ``[.., c, h*r, w*r]``."""
    *lead, channels, height, width = cx.static(x, "pixel_shuffle")
    n = len(lead)
    split_shape = [*lead, channels // (factor * factor), factor, factor, height, width]
    axes = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return cx.reshape(cx.permute(cx.reshape(x, split_shape), axes), cx.out_shape)


@converts("aten.pixel_unshuffle.default")
def pixel_unshuffle(cx: Emitter, x: Any, factor: int) -> Any:
    """``[.., c, h*r, w*r]`` to ``[.., c*r*r, h, w]``."""
    *lead, channels, height, width = cx.static(x, "pixel_unshuffle")
    n = len(lead)
    split_shape = [*lead, channels, height // factor, factor, width // factor, factor]
    axes = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return cx.reshape(cx.permute(cx.reshape(x, split_shape), axes), cx.out_shape)


@converts("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(cx: Emitter, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of two axes, as the last axis."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    rank = len(cx.shape(x))
    first, second = dim1 % rank, dim2 % rank
    rest = [a for a in range(rank) if a not in (first, second)]

    def kernel(data: te.Tensor) -> te.Tensor:
        def element(*ix: Any) -> Any:
            at: list[Any] = [None] * rank
            for position, axis in enumerate(rest):
                at[axis] = ix[position]
            at[first] = ix[-1] + max(0, -offset)
            at[second] = ix[-1] + max(0, offset)
            return data(*at)

        return te.compute(cx.out_shape, element, name="diagonal")

    return cx.te(kernel, x, name="diagonal")


@converts("aten.unfold.default", "aten.unfold_copy.default")
def unfold(cx: Emitter, x: Any, dim: int, size: int, step: int) -> Any:
    """Sliding windows of one axis, as a new last axis."""
    if not cx.shape(x):
        return cx.reshape(x, cx.out_shape)
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    axis = dim % len(cx.shape(x))

    def kernel(data: te.Tensor) -> te.Tensor:
        def element(*ix: Any) -> Any:
            at = list(ix[:-1])
            at[axis] = at[axis] * step + ix[-1]
            return data(*at)

        return te.compute(cx.out_shape, element, name="unfold")

    return cx.te(kernel, x, name="unfold")


@converts("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    cx: Emitter, x: Any, size: list[Any], stride: list[int], offset: int | None = None
) -> Any:
    """Elements of a contiguous tensor at arithmetic positions."""
    source = cx.source(0)
    if not source.is_contiguous() or source.storage_offset():
        raise RefusedError("as_strided of a tensor that is itself a view is not supported")
    shape = cx.static(x, "as_strided")
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    start = offset or 0
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if last >= math.prod(shape):
        raise RefusedError(f"as_strided reads element {last} of {math.prod(shape)}")
    flat = cx.reshape(x, [math.prod(shape)])

    def kernel(data: te.Tensor) -> te.Tensor:
        return te.compute(
            cx.out_shape,
            lambda *ix: data(sum((i * s for i, s in zip(ix, stride, strict=True)), start)),
            name="as_strided",
        )

    return cx.te(kernel, flat, name="as_strided")
