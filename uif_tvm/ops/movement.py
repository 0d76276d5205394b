"""Operators that only move elements: other shapes, other orders, parts, joins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.spec import (
    ALL,
    Array,
    Attribute,
    Attrs,
    Case,
    Dim,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
)

Result = tuple[TensorType, ...]


# -- shapes and orders -------------------------------------------------------------------------


def permute_dims(x: Array, axes: Sequence[int] | None) -> Array:
    """Axes in another order; reversed for ``None``."""
    return np.transpose(x, axes)


def expand_dims(x: Array, axis: Sequence[int]) -> Array:
    """New axes of extent 1 at these places of the result."""
    return np.expand_dims(x, tuple(axis))


def squeeze(x: Array, axis: Sequence[int] | None) -> Array:
    """Without axes of extent 1: those named, or all."""
    return np.squeeze(x, None if axis is None else tuple(axis))


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """The same elements in order; one extent may be -1: what is left."""
    return np.reshape(x, tuple(shape))


def flip(x: Array, axis: int) -> Array:
    """An axis backwards."""
    return np.flip(x, axis)


def _permuted(types: Types, attrs: Attrs) -> Result:
    rank = types[0].rank
    axes = attrs["axes"] or range(rank - 1, -1, -1)
    order = [infer.axis_of(int(axis), rank) for axis in axes]
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"axes {list(axes)} are no permutation of {rank} axes")
    return (TensorType(tuple(types[0].shape[axis] for axis in order), types[0].dtype),)


def _expanded(types: Types, attrs: Attrs) -> Result:
    rank = types[0].rank + len(attrs["axis"])
    places = infer.axes_of(attrs["axis"], rank)
    rest = iter(types[0].shape)
    shape = tuple(1 if place in places else next(rest) for place in range(rank))
    return (TensorType(shape, types[0].dtype),)


def _squeezed(types: Types, attrs: Attrs) -> Result:
    shape = types[0].shape
    if attrs["axis"] is None:
        gone: Sequence[int] = [place for place, n in enumerate(shape) if infer.is_one(n)]
    else:
        gone = infer.axes_of(attrs["axis"], len(shape))
    for place in gone:
        if isinstance(shape[place], int) and shape[place] != 1:
            raise ShapeError(f"axis {place} has extent {shape[place]}, not 1")
    return (TensorType(infer.reduced(shape, gone, False), types[0].dtype),)


def _reshaped(types: Types, attrs: Attrs) -> Result:
    shape = list(attrs["shape"])
    total = math.prod(types[0].shape)
    free = [place for place, extent in enumerate(shape) if isinstance(extent, int) and extent < 0]
    if len(free) > 1:
        raise ShapeError(f"shape {shape} leaves {len(free)} extents open")
    if free:
        rest = math.prod(extent for place, extent in enumerate(shape) if place != free[0])
        shape[free[0]] = total // (rest if not isinstance(rest, int) or rest else 1)
    goal = math.prod(shape)
    if isinstance(total, int) and isinstance(goal, int) and total != goal:
        raise ShapeError(f"{total} elements do not fill {shape}")
    return (TensorType(tuple(shape), types[0].dtype),)


def _along(types: Types, attrs: Attrs) -> Result:
    infer.axis_of(attrs["axis"], types[0].rank)
    return (types[0],)


# -- parts and joins ---------------------------------------------------------------------------


def split(x: Array, indices_or_sections: int | Sequence[int], axis: int) -> tuple[Array, ...]:
    """Consecutive parts of an axis: so many equal ones, or cut at these places."""
    return tuple(np.split(x, indices_or_sections, axis))


def concat(*tensors: Array, axis: int) -> Array:
    """Tensors end to end along an axis."""
    return np.concatenate(tensors, axis)


def stack(*tensors: Array, axis: int) -> Array:
    """Tensors along a new axis."""
    return np.stack(tensors, axis)


def strided_slice(
    x: Array,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None,
) -> Array:
    """Python's ``x[begin:end:stride]`` along each of ``axes``."""
    steps = strides or (1,) * len(axes)
    at: list[slice] = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        at[axis] = slice(first, last, step)
    return x[tuple(at)]


def visited(extent: int, begin: int, end: int, step: int) -> range:
    """Positions that a slice of an axis of ``extent`` visits."""
    return range(extent)[begin:end:step]


def _split(types: Types, attrs: Attrs) -> Result:
    axis = infer.axis_of(attrs["axis"], types[0].rank)
    extent, parts = types[0].shape[axis], attrs["indices_or_sections"]
    if isinstance(parts, int):
        if isinstance(extent, int) and extent % parts:
            raise ShapeError(f"axis {axis} of {extent} has no {parts} equal parts")
        sizes: list[Dim] = [extent // parts] * parts
    else:
        bounds = [0, *parts, extent]
        sizes = [
            max(last - first, 0) if isinstance(last, int) else last - first
            for first, last in itertools.pairwise(bounds)
        ]
    head, tail = types[0].shape[:axis], types[0].shape[axis + 1 :]
    return tuple(TensorType((*head, size, *tail), types[0].dtype) for size in sizes)


def _joined(types: Types, attrs: Attrs) -> Result:
    axis = infer.axis_of(attrs["axis"], types[0].rank)
    shape = list(types[0].shape)
    for item in types[1:]:
        if item.rank != len(shape):
            raise ShapeError(f"ranks {len(shape)} and {item.rank} differ")
        for place, (mine, other) in enumerate(zip(shape, item.shape, strict=True)):
            both = isinstance(mine, int) and isinstance(other, int)
            if place != axis and both and mine != other:
                raise ShapeError(f"extents {mine} and {other} of axis {place} differ")
        shape[axis] = shape[axis] + item.shape[axis]
    return (TensorType(tuple(shape), types[0].dtype),)


def _stacked(types: Types, attrs: Attrs) -> Result:
    axis = infer.axis_of(attrs["axis"], types[0].rank + 1)
    for item in types[1:]:
        if not all(map(infer.equal, item.shape, types[0].shape)) or item.rank != types[0].rank:
            raise ShapeError("tensors of different shapes cannot be stacked")
    shape = (*types[0].shape[:axis], len(types), *types[0].shape[axis:])
    return (TensorType(shape, types[0].dtype),)


def _sliced(types: Types, attrs: Attrs) -> Result:
    shape = list(types[0].shape)
    steps = attrs["strides"] or (1,) * len(attrs["axes"])
    ranges = zip(attrs["axes"], attrs["begin"], attrs["end"], steps, strict=True)
    for axis, begin, end, step in ranges:
        place = infer.axis_of(axis, len(shape))
        if step == 0:
            raise ShapeError("a step of 0")
        if all(isinstance(item, int) for item in (shape[place], begin, end)):
            shape[place] = len(visited(shape[place], begin, end, step))
        else:
            shape[place] = (end - begin + step - 1) // step
    return (TensorType(tuple(shape), types[0].dtype),)


def box(*shape: int) -> Array:
    """Numbers in order."""
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def view(name: str, reference: Any, inferred: Any, cases: Sequence[Case], **more: Any) -> OpSpec:
    """An operator that copies elements and computes nothing."""
    settings: dict[str, Any] = {"relax": f"relax.{name}", "dtypes": ALL, "flops": 0}
    return OpSpec(name, "movement", reference, inferred, cases=lambda: cases, **(settings | more))


_AXIS = (Attribute("axis"),)

SPECS = (
    view(
        "permute_dims",
        permute_dims,
        _permuted,
        [
            Case("reverse", (box(2, 3, 4),)),
            Case("negative-axes", (box(2, 3, 4),), {"axes": (-1, 0, -2)}),
            Case("zero-size", (box(2, 0, 4),), {"axes": (2, 0, 1)}),
            Case("scalar", (box(),)),
        ],
        attributes=(Attribute("axes", None),),
    ),
    view(
        "expand_dims",
        expand_dims,
        _expanded,
        [
            Case("several", (box(2, 3),), {"axis": (0, 3)}),
            Case("negative", (box(2, 3),), {"axis": (-1,)}),
        ],
        attributes=_AXIS,
    ),
    view(
        "squeeze",
        squeeze,
        _squeezed,
        [Case("all", (box(1, 3, 1),)), Case("negative", (box(1, 3, 1),), {"axis": (-1,)})],
        attributes=(Attribute("axis", None),),
    ),
    view(
        "reshape",
        reshape,
        _reshaped,
        [
            Case("merge", (box(2, 3, 4),), {"shape": (6, 4)}),
            Case("open-extent", (box(2, 3, 4),), {"shape": (4, -1)}),
            Case("to-scalar", (box(1, 1),), {"shape": ()}),
            Case("zero-size", (box(0, 3),), {"shape": (3, 0)}),
        ],
        attributes=(Attribute("shape"),),
    ),
    view(
        "flip",
        flip,
        _along,
        [
            Case("negative-axis", (box(2, 3, 4),), {"axis": -2}),
            Case("zero-size", (box(2, 0),), {"axis": 1}),
        ],
        attributes=_AXIS,
    ),
    view(
        "split",
        split,
        _split,
        [
            Case("equal", (box(2, 6),), {"indices_or_sections": 3, "axis": 1}),
            Case("uneven", (box(7, 2),), {"indices_or_sections": (1, 4), "axis": 0}),
            Case("negative-axis", (box(2, 4),), {"indices_or_sections": (3,), "axis": -1}),
            Case("empty-part", (box(4),), {"indices_or_sections": (0, 4), "axis": 0}),
        ],
        attributes=(Attribute("indices_or_sections"), Attribute("axis", 0)),
        results=0,
    ),
    view(
        "concat",
        concat,
        _joined,
        [
            Case("three", (box(2, 3), box(1, 3), box(4, 3)), {"axis": 0}),
            Case("negative-axis", (box(2, 1, 3), box(2, 2, 3)), {"axis": -2}),
            Case("one", (box(2, 2),), {"axis": 0}),
            Case("zero-size-part", (box(2, 0), box(2, 3)), {"axis": 1}),
        ],
        attributes=(Attribute("axis", 0),),
        variadic=True,
    ),
    view(
        "stack",
        stack,
        _stacked,
        [
            Case("new-axis", (box(2, 3), -box(2, 3)), {"axis": 1}),
            Case("negative-axis", (box(2), box(2), box(2)), {"axis": -1}),
        ],
        attributes=(Attribute("axis", 0),),
        variadic=True,
    ),
    view(
        "strided_slice",
        strided_slice,
        _sliced,
        [
            Case(
                "steps",
                (box(5, 7),),
                {"axes": (0, 1), "begin": (1, 0), "end": (4, 7), "strides": (2, 3)},
            ),
            Case("beyond-the-end", (box(5, 7),), {"axes": (1,), "begin": (-3,), "end": (99,)}),
            Case(
                "backwards",
                (box(5, 7),),
                {"axes": (0, 1), "begin": (-1, 5), "end": (-99, 1), "strides": (-2, -3)},
            ),
            Case("nothing", (box(5),), {"axes": (0,), "begin": (4,), "end": (2,)}),
            Case("negative-axis", (box(5, 7),), {"axes": (-2,), "begin": (1,), "end": (-1,)}),
        ],
        attributes=(
            Attribute("axes"),
            Attribute("begin"),
            Attribute("end"),
            Attribute("strides", None),
        ),
    ),
)
