"""Operators that only move or re-index elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.spec import ALL, Array, Attribute, Case, OpSpec, ShapeError, TensorType


def permute_dims(x: Array, axes: Sequence[int] | None) -> Array:
    """Axes in another order; reversed for ``None``."""
    return np.transpose(x, axes)


def expand_dims(x: Array, axis: Sequence[int]) -> Array:
    """New axes of extent 1 at these places of the result."""
    return np.expand_dims(x, tuple(axis))


def squeeze(x: Array, axis: Sequence[int] | None) -> Array:
    """Without axes of extent 1: those named, or all."""
    return np.squeeze(x, None if axis is None else tuple(axis))


def _permuted(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
    rank = types[0].rank
    axes = attrs["axes"] or range(rank - 1, -1, -1)
    order = [infer.axis_of(int(axis), rank) for axis in axes]
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"axes {list(axes)} are no permutation of {rank} axes")
    return (TensorType(tuple(types[0].shape[axis] for axis in order), types[0].dtype),)


def _expanded(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
    rank = types[0].rank + len(attrs["axis"])
    places = infer.axes_of(attrs["axis"], rank)
    rest = iter(types[0].shape)
    shape = tuple(1 if place in places else next(rest) for place in range(rank))
    return (TensorType(shape, types[0].dtype),)


def _squeezed(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
    shape = types[0].shape
    if attrs["axis"] is None:
        gone: Sequence[int] = [place for place, n in enumerate(shape) if infer.is_one(n)]
    else:
        gone = infer.axes_of(attrs["axis"], len(shape))
    for place in gone:
        if isinstance(shape[place], int) and shape[place] != 1:
            raise ShapeError(f"axis {place} has extent {shape[place]}, not 1")
    return (TensorType(infer.reduced(shape, gone, False), types[0].dtype),)


def _box(*shape: int) -> tuple[Array]:
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape),)


SPECS = (
    OpSpec(
        "permute_dims",
        "movement",
        permute_dims,
        _permuted,
        attributes=(Attribute("axes", None),),
        relax="relax.permute_dims",
        dtypes=ALL,
        flops=0,
        cases=lambda: (
            Case("reverse", _box(2, 3, 4)),
            Case("negative-axes", _box(2, 3, 4), {"axes": (-1, 0, -2)}),
            Case("zero-size", _box(2, 0, 4), {"axes": (2, 0, 1)}),
            Case("scalar", (np.float32(3).reshape(()),)),
        ),
    ),
    OpSpec(
        "expand_dims",
        "movement",
        expand_dims,
        _expanded,
        attributes=(Attribute("axis"),),
        relax="relax.expand_dims",
        dtypes=ALL,
        flops=0,
        cases=lambda: (
            Case("several", _box(2, 3), {"axis": (0, 3)}),
            Case("negative", _box(2, 3), {"axis": (-1,)}),
        ),
    ),
    OpSpec(
        "squeeze",
        "movement",
        squeeze,
        _squeezed,
        attributes=(Attribute("axis", None),),
        relax="relax.squeeze",
        dtypes=ALL,
        flops=0,
        cases=lambda: (
            Case("all", _box(1, 3, 1)),
            Case("negative", _box(1, 3, 1), {"axis": (-1,)}),
        ),
    ),
)
