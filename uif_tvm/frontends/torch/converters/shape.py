"""Views: other shapes of the same elements, slices, joins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


@converts(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
    "aten.flatten.using_ints",
    "aten.view_copy.default",
    "prims.collapse_view.default",
)
def to_result_shape(cx: Emitter, x: Any, *_: Any) -> Any:
    """The same elements in the shape that PyTorch computed."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    return cx.reshape(x, cx.out_shape)


@converts("aten.view.dtype")
def view_dtype(cx: Emitter, x: Any, *_: Any) -> Any:
    """The same bits as another dtype of the same width."""
    want = cx.out_dtype
    if cx.dtype(x) == want:
        return x
    if _width(cx.dtype(x)) != _width(want) or "bool" in (want, cx.dtype(x)):
        raise RefusedError(f"view of {cx.dtype(x)} as {want} is not supported")
    return cx.elementwise(lambda v: tirx.reinterpret(want, v), x, name="reinterpret")


def _width(dtype: str) -> str:
    return "".join(c for c in dtype if c.isdigit())


@converts("aten.permute.default")
def permute(cx: Emitter, x: Any, dims: list[int]) -> Any:
    """Axes in another order."""
    rank = len(cx.shape(x))
    return cx.permute(x, [d % rank for d in dims])


@converts("aten.transpose.int")
def transpose(cx: Emitter, x: Any, a: int, b: int) -> Any:
    """Two axes swapped."""
    rank = len(cx.shape(x))
    if rank == 0:
        return x
    axes = list(range(rank))
    axes[a], axes[b] = axes[b], axes[a]
    return cx.permute(x, axes)


@converts("aten.t.default")
def t(cx: Emitter, x: Any) -> Any:
    """Matrix transpose."""
    return cx.permute(x, list(range(len(cx.shape(x))))[::-1])


@converts("aten.expand.default", "aten.expand_copy.default", "prims.broadcast_in_dim.default")
def expand(cx: Emitter, x: Any, *args: Any) -> Any:
    """Repeat along axes of size one."""
    if "broadcast_in_dim" in str(cx.node.target):
        where = args[1]
        shape: list[Any] = [1] * len(cx.out_shape)
        for axis, size in zip(where, cx.shape(x), strict=True):
            shape[axis] = size
        x = cx.reshape(x, shape)
    return cx.broadcast(x, cx.out_shape)


@converts("aten.select.int", "aten.select_copy.int")
def select(cx: Emitter, x: Any, dim: int, index: Any) -> Any:
    """One position of an axis, counted from the end when negative."""
    axis = dim % len(cx.shape(x))
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    size = cx.shape(x)[axis]
    if not isinstance(index, int):
        raise RefusedError("select at a position that depends on sizes is not supported")
    start = index if index >= 0 else size + index
    return cx.reshape(slice_axis(cx, x, axis, start, start + 1, 1), cx.out_shape)


def slice_axis(
    cx: Emitter, x: relax.Expr, axis: int, start: Any, stop: Any, step: int
) -> relax.Expr:
    """``x[start:stop:step]`` along one axis; the bounds are inside already."""
    size = cx.shape(x)[axis]
    if step == 1 and isinstance(start, int) and start == 0 and cx.same_shape([size], [stop]):
        return x
    known = cx.value_of(x)
    if known is not None:
        where = (slice(None),) * axis + (slice(start, stop, step),)
        return cx.const(np.ascontiguousarray(known[where]), cx.dtype(x))
    return cx.emit(relax.op.strided_slice(x, [axis], [start], [stop], [step], assume_inbound=True))


@converts("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_tensor(
    cx: Emitter, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """``x[start:end:step]`` along one axis with Python's rules."""
    axis = dim % len(cx.shape(x))
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    if not isinstance(step, int):
        raise RefusedError("slice with a step that depends on sizes is not supported")
    length = cx.out_shape[axis]
    first = _bound(cx.shape(x)[axis], 0 if start is None else start)
    # PyTorch has computed the length; the last position follows from it.
    stop = first + length if step == 1 else first + (length - 1) * step + 1
    return slice_axis(cx, x, axis, first, stop, step)


def _bound(size: Any, index: Any) -> Any:
    """A slice bound counted from the start and limited to ``0 .. size``."""
    if isinstance(size, int) and isinstance(index, int):
        return min(max(index + size if index < 0 else index, 0), size)
    if isinstance(index, int):
        return (
            tirx.max(size + index, 0) if index < 0 else tirx.min(tirx.const(index, "int64"), size)
        )
    return index


@converts(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.unsafe_split.Tensor",
    "aten.split_with_sizes_copy.default",
    "aten.chunk.default",
    "aten.split_copy.Tensor",
)
def split(cx: Emitter, x: Any, sizes: Any, dim: int = 0) -> Any:
    """Consecutive parts of an axis, uneven ones too."""
    rank = len(cx.shape(x))
    axis = dim % rank
    parts: list[Any] = []
    start: Any = 0
    for index, meta in enumerate(cx.out):
        shape = cx.dims(meta.shape)
        stop = start + shape[axis]
        if not cx.is_used(index):
            parts.append(None)
        elif 0 in shape:
            parts.append(cx.full(shape, 0, cx.out_dtype))
        else:
            parts.append(slice_axis(cx, x, axis, start, stop, 1))
        start = stop
    return parts


@converts("aten.unbind.int", "aten.unbind_copy.int")
def unbind(cx: Emitter, x: Any, dim: int = 0) -> Any:
    """Every position of an axis."""
    axis = dim % len(cx.shape(x))
    parts: list[Any] = []
    for index, meta in enumerate(cx.out):
        if not cx.is_used(index):
            parts.append(None)
            continue
        shape = cx.dims(meta.shape)
        if 0 in shape:
            parts.append(cx.full(shape, 0, cx.out_dtype))
        else:
            parts.append(cx.reshape(slice_axis(cx, x, axis, index, index + 1, 1), shape))
    return parts


@converts("aten.cat.default", "aten.concat.default")
def cat(cx: Emitter, tensors: list[Any], dim: int = 0) -> Any:
    """Tensors end to end; PyTorch ignores empty vectors among them."""
    dtype = cx.out_dtype
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, dtype)
    rank = len(cx.out_shape)
    axis = dim % rank
    parts = [
        cx.tensor(x, dtype) for x in tensors if len(cx.shape(x)) == rank and 0 not in cx.shape(x)
    ]
    return parts[0] if len(parts) == 1 else cx.emit(relax.op.concat(parts, axis))


@converts("aten.stack.default")
def stack(cx: Emitter, tensors: list[Any], dim: int = 0) -> Any:
    """Tensors along a new axis."""
    shape = cx.out_shape
    axis = dim % len(shape)
    if 0 in shape:
        return cx.full(shape, 0, cx.out_dtype)
    one = [*shape[:axis], 1, *shape[axis + 1 :]]
    parts = [cx.reshape(cx.tensor(x, cx.out_dtype), one) for x in tensors]
    return parts[0] if len(parts) == 1 else cx.emit(relax.op.concat(parts, axis))


@converts("aten.repeat.default", "aten.tile.default")
def repeat(cx: Emitter, x: Any, times: list[Any]) -> Any:
    """The tensor side by side with itself."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    if all(isinstance(number, int) for number in times):
        return (
            cx.op("tile", x, repeats=tuple(times))
            if set(times) - {1}
            else cx.reshape(x, cx.out_shape)
        )
    extra = max(len(times) - len(cx.shape(x)), 0)
    x = cx.reshape(x, [*([1] * extra), *cx.shape(x)])
    shape = cx.shape(x)

    def kernel(data: te.Tensor) -> te.Tensor:
        return te.compute(
            cx.out_shape,
            lambda *ix: data(*(tirx.floormod(i, n) for i, n in zip(ix, data.shape, strict=True))),
            name="repeat",
        )

    if cx.same_shape(shape, cx.out_shape):
        return x
    return cx.te(kernel, x, name="repeat")


@converts("aten.flip.default")
def flip(cx: Emitter, x: Any, dims: list[int]) -> Any:
    """Axes backwards."""
    rank = len(cx.shape(x))
    turned = {d % rank for d in dims} if rank else set()
    for axis in sorted(turned):
        x = cx.op("flip", x, axis=axis)
    return x


@converts("aten.roll.default")
def roll(cx: Emitter, x: Any, shifts: list[int], dims: list[int]) -> Any:
    """Rotate along axes; along the flat tensor where none are given."""
    if 0 in cx.out_shape or not cx.out_shape:
        return x
    shape = cx.shape(x)
    if not dims:
        shape = cx.static(x, "roll of the flat tensor")
        flat = cx.reshape(x, [math.prod(shape)])
        return cx.reshape(_roll(cx, flat, {0: shifts[0]}), shape)
    moved: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        moved[dim % len(shape)] = moved.get(dim % len(shape), 0) + shift
    return _roll(cx, x, moved)


def _roll(cx: Emitter, x: relax.Expr, moved: dict[int, int]) -> relax.Expr:
    if not all(isinstance(shift, int) for shift in moved.values()):
        raise RefusedError("roll by shifts that depend on sizes is not supported")
    return cx.op("roll", x, shift=tuple(moved.values()), axis=tuple(moved))


@converts("aten.constant_pad_nd.default")
def constant_pad(cx: Emitter, x: Any, pad: list[Any], value: Any = 0) -> Any:
    """Numbers around the tensor; negative amounts cut off."""
    dtype = cx.out_dtype
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, dtype)
    if 0 in cx.shape(x):
        return cx.full(cx.out_shape, value, dtype)
    shape = cx.shape(x)
    before = [0] * len(shape)
    for position in range(len(pad) // 2):
        axis = len(shape) - 1 - position
        before[axis] = pad[2 * position]
    if cx.same_shape(shape, cx.out_shape) and not any(before):
        return x
    if all(isinstance(amount, int) for amount in pad):
        after = [0] * len(shape)
        for position in range(len(pad) // 2):
            after[len(shape) - 1 - position] = pad[2 * position + 1]
        fill = cx.const(value, dtype) if value else None
        return cx.op("pad", x, fill, before=tuple(before), after=tuple(after))

    def kernel(data: te.Tensor) -> te.Tensor:
        def element(*ix: Any) -> Any:
            at = [i - b for i, b in zip(ix, before, strict=True)]
            inside = [
                tirx.all(p >= 0, p < size)
                for p, size, b, total in zip(at, data.shape, before, cx.out_shape, strict=True)
                if b != 0 or not cx.same_shape([size], [total])
            ]
            return tirx.if_then_else(
                tirx.all(*inside) if len(inside) > 1 else inside[0],
                data(*at),
                tirx.const(value, data.dtype),
            )

        return te.compute(cx.out_shape, element, name="pad")

    return cx.te(kernel, x, name="pad")
