"""Kernels that read and write at positions given by data, and never outside their tensors.

A negative index in ``-n .. -1`` counts from the end. Beyond that, reads are clamped to the
nearest element (zero where the tensor is empty) and writes are dropped: what the caller meant is
unknown, but nothing else is touched. All kernels take ``int32`` or ``int64`` positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from uif_tvm.kernels import arithmetic


def wrap(index: Any, size: Any) -> tirx.Expr:
    """Count a negative position from the end."""
    size = tirx.Cast(str(index.ty.dtype), size) if not isinstance(size, int) else size
    if isinstance(size, int):
        size = tirx.const(size, str(index.ty.dtype))
    zero = tirx.const(0, str(index.ty.dtype))
    return tirx.Select(index < zero, index + size, index)


def clamp(index: Any, size: Any) -> tirx.Expr:
    """A position wrapped and then limited to ``0 .. size - 1``."""
    dtype = str(index.ty.dtype)
    last = tirx.Cast(dtype, size) - tirx.const(1, dtype)
    return tirx.max(tirx.min(wrap(index, size), last), tirx.const(0, dtype))


def within(data: te.Tensor, *at: Any) -> tirx.Expr:
    """``data[at]``, or zero where ``data`` has no element at all: not even index 0 is inside."""
    zero = tirx.const(0, str(data.dtype))
    if any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in data.shape):
        return zero
    value = data(*at)
    for size in data.shape:
        if not isinstance(size, tirx.IntImm):
            value = tirx.if_then_else(size > 0, value, zero)
    return value


def take(data: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """``out[.., i.., ..] = data[.., indices[i..], ..]`` along ``axis``."""
    rank = len(indices.shape)
    shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]

    def element(*ix: Any) -> Any:
        at = clamp(indices(*ix[axis : axis + rank]), data.shape[axis])
        return within(data, *ix[:axis], at, *ix[axis + rank :])

    return te.compute(shape, element, name="take")


def gather_elements(data: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """``out[i][j] = data[indices[i][j]][j]`` for axis 0; ``indices`` may be smaller elsewhere."""

    def element(*ix: Any) -> Any:
        at = [*ix]
        at[axis] = clamp(indices(*ix), data.shape[axis])
        return within(data, *at)

    return te.compute(indices.shape, element, name="gather_elements")


def gather_nd(data: te.Tensor, indices: te.Tensor, batch_dims: int) -> te.Tensor:
    """``out[b.., i..] = data[b.., indices[b.., i.., 0], indices[b.., i.., 1] ..]``."""
    depth = int(indices.shape[-1])
    lead = len(indices.shape) - 1
    shape = [*indices.shape[:-1], *data.shape[batch_dims + depth :]]

    def element(*ix: Any) -> Any:
        at = [clamp(indices(*ix[:lead], k), data.shape[batch_dims + k]) for k in range(depth)]
        return within(data, *ix[:batch_dims], *at, *ix[lead:])

    return te.compute(shape, element, name="gather_nd")


def _joint_shape(indices: Sequence[te.Tensor]) -> list[Any]:
    """The shape that index tensors broadcast to."""
    rank = max(len(index.shape) for index in indices)
    shape: list[Any] = [1] * rank
    for index in indices:
        for axis, size in enumerate(index.shape):
            at = rank - len(index.shape) + axis
            if not (isinstance(size, tirx.IntImm) and int(size) == 1):
                shape[at] = size
    return shape


def _read(index: te.Tensor, at: Sequence[Any]) -> tirx.Expr:
    """Element of ``index`` broadcast to the joint shape."""
    offset = len(at) - len(index.shape)
    return index(
        *(
            0 if isinstance(size, tirx.IntImm) and int(size) == 1 else at[offset + axis]
            for axis, size in enumerate(index.shape)
        )
    )


def advanced_gather(data: te.Tensor, indices: list[te.Tensor], axes: list[int]) -> te.Tensor:
    """NumPy's ``data[.., i0, .., i1]`` with integer tensors at ``axes``.

    The joint index axes stand where the indexed axes were when those are neighbours, else first.
    """
    joint = _joint_shape(indices)
    rank = len(joint)
    neighbours = axes == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if neighbours else 0
    kept = [axis for axis in range(len(data.shape)) if axis not in axes]
    rest = [data.shape[axis] for axis in kept]
    shape = [*rest[:first], *joint, *rest[first:]]

    def element(*ix: Any) -> Any:
        where = ix[first : first + rank]
        others = [*ix[:first], *ix[first + rank :]]
        at: list[Any] = [None] * len(data.shape)
        for axis, i in zip(kept, others, strict=True):
            at[axis] = i
        for axis, index in zip(axes, indices, strict=True):
            at[axis] = clamp(_read(index, where), data.shape[axis])
        return within(data, *at)

    return te.compute(shape, element, name="advanced_gather")


# -- writes ---------------------------------------------------------------------------------

_REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": arithmetic.minimum,
    "max": arithmetic.maximum,
}


def _product(sizes: Sequence[Any]) -> Any:
    result: Any = 1
    for size in sizes:
        result = result * size
    return result


def _unflatten(flat: Any, shape: Sequence[Any]) -> list[Any]:
    """Position along each axis of a row-major flat position."""
    positions = []
    for axis in range(len(shape)):
        inner = _product(shape[axis + 1 :])
        positions.append(tirx.floormod(tirx.floordiv(flat, inner), shape[axis]))
    return positions


def _flatten(positions: Sequence[Any], shape: Sequence[Any]) -> Any:
    flat: Any = tirx.const(0, "int64")
    for position, size in zip(positions, shape, strict=True):
        flat = flat * tirx.Cast("int64", size) + tirx.Cast("int64", position)
    return flat


def scatter(
    data: te.Tensor,
    inputs: Sequence[te.Tensor],
    count: Any,
    locate: Callable[[Any, Sequence[Any]], tuple[list[Any], Any, Any]],
    reduction: str,
    name: str,
) -> te.Tensor:
    """Copy ``data``, then write ``count`` elements one after the other.

    Args:
        data: what is written to.
        inputs: index and update tensors.
        count: number of writes.
        locate: (number of the write, input buffers) -> (position in ``data`` per axis, already
            wrapped; whether each lies inside, as one condition; the new value).
        reduction: ``update``, ``add``, ``mul``, ``min`` or ``max``.
        name: kernel name.
    """
    reduce = _REDUCE[reduction]
    total = _product(data.shape)
    if any(isinstance(size, (int, tirx.IntImm)) and int(size) == 0 for size in (count, total)):
        return te.compute(data.shape, lambda *i: data(*i), name=name)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, target = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        buffers = [T.buffer_proxy(buffer) for buffer in ins[1:]]
        with IRBuilder() as ib:
            with T.serial(0, 1):
                with T.parallel(0, total) as i:
                    target[i] = source[i]
                # In order: with repeated positions the last write stands, and sums are repeatable.
                with T.serial(0, count) as n:
                    position, inside, value = locate(n, buffers)
                    flat = _flatten(position, data.shape)
                    with T.If(inside), T.Then():
                        target[flat] = reduce(target[flat], value)
            return ib.get()

    return te.extern([data.shape], [data, *inputs], body, dtype=[data.dtype], name=name, tag=name)


def _inside(position: Any, size: Any) -> Any:
    dtype = str(position.ty.dtype)
    return tirx.all(position >= tirx.const(0, dtype), position < tirx.Cast(dtype, size))


def scatter_elements(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str
) -> te.Tensor:
    """``out[indices[i][j]][j] = f(out[..], updates[i][j])`` for axis 0.

    ``indices`` may be smaller than ``data``, and ``updates`` larger than ``indices``.
    """

    def locate(n: Any, buffers: Sequence[Any]) -> tuple[list[Any], Any, Any]:
        at = _unflatten(n, indices.shape)
        place = [*at]
        index = buffers[0][_flatten(at, indices.shape)]
        place[axis] = wrap(index, data.shape[axis])
        return (
            place,
            _inside(place[axis], data.shape[axis]),
            (buffers[1][_flatten(at, updates.shape)]),
        )

    count = _product(indices.shape)
    return scatter(data, [indices, updates], count, locate, reduction, "scatter_elements")


def scatter_nd(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, reduction: str
) -> te.Tensor:
    """``out[indices[i.., 0], indices[i.., 1] .., j..] = f(out[..], updates[i.., j..])``."""
    depth = int(indices.shape[-1])
    lead = len(indices.shape) - 1
    loop = [*indices.shape[:-1], *data.shape[depth:]]

    def locate(n: Any, buffers: Sequence[Any]) -> tuple[list[Any], Any, Any]:
        at = _unflatten(n, loop)
        place = [
            wrap(buffers[0][_flatten([*at[:lead], k], indices.shape)], data.shape[k])
            for k in range(depth)
        ]
        inside = [_inside(p, data.shape[k]) for k, p in enumerate(place)]
        condition = tirx.all(*inside) if len(inside) > 1 else inside[0]
        return [*place, *at[lead:]], condition, buffers[1][n]

    return scatter(data, [indices, updates], _product(loop), locate, reduction, "scatter_nd")


def advanced_scatter(
    data: te.Tensor,
    indices: list[te.Tensor],
    values: te.Tensor,
    axes: list[int],
    accumulate: bool,
) -> te.Tensor:
    """NumPy's ``data[.., i0, .., i1] = values`` (or ``+=``); ``values`` broadcasts."""
    joint = _joint_shape(indices)
    rank = len(joint)
    neighbours = axes == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if neighbours else 0
    kept = [axis for axis in range(len(data.shape)) if axis not in axes]
    rest = [data.shape[axis] for axis in kept]
    loop = [*rest[:first], *joint, *rest[first:]]

    def locate(n: Any, buffers: Sequence[Any]) -> tuple[list[Any], Any, Any]:
        ix = _unflatten(n, loop)
        where = ix[first : first + rank]
        others = [*ix[:first], *ix[first + rank :]]
        place: list[Any] = [None] * len(data.shape)
        for axis, i in zip(kept, others, strict=True):
            place[axis] = i
        inside = []
        for axis, index, buffer in zip(axes, indices, buffers[1:], strict=True):
            position = buffer[_broadcast_flat(where, index.shape)]
            place[axis] = wrap(position, data.shape[axis])
            inside.append(_inside(place[axis], data.shape[axis]))
        condition = tirx.all(*inside) if len(inside) > 1 else inside[0]
        return place, condition, buffers[0][_broadcast_flat(ix, values.shape)]

    reduction = "add" if accumulate else "update"
    return scatter(data, [values, *indices], _product(loop), locate, reduction, "advanced_scatter")


def _broadcast_flat(at: Sequence[Any], shape: Sequence[Any]) -> Any:
    """Flat position in a tensor of ``shape`` broadcast to the loop ``at`` runs over."""
    offset = len(at) - len(shape)
    positions = [
        0 if isinstance(size, tirx.IntImm) and int(size) == 1 else at[offset + axis]
        for axis, size in enumerate(shape)
    ]
    return _flatten(positions, shape)
