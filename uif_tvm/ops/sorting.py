"""Operators that order elements along an axis, or look them up in an order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.spec import (
    ALL,
    NUMBERS,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)

Result = tuple[TensorType, ...]


def argsort(x: Array, axis: int, descending: bool) -> Array:
    """Positions in sorted order; stable, NaN counts as the largest."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)


def sort(x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    """Sorted values and their positions; stable, NaN counts as the largest."""
    order = argsort(x, axis, descending)
    return np.take_along_axis(x, order, axis), order


def topk(x: Array, k: int, axis: int, largest: bool, sorted: bool) -> tuple[Array, Array]:
    """The k largest or smallest values and their positions, in order; equals by position."""
    values, order = sort(x, axis, largest)
    kept = range(k)
    return np.take(values, kept, axis), np.take(order, kept, axis)


def searchsorted(boundaries: Array, x: Array, right: bool) -> Array:
    """How many boundaries lie before each value; NaN lies behind all numbers."""
    side: Any = "right" if right else "left"
    return np.searchsorted(boundaries, x, side).astype(np.int64)


def nonzero(x: Array) -> Array:
    """Positions of the elements that are not zero, one column each: ``[rank, count]``."""
    return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)


def unique(x: Array, sorted: bool) -> tuple[Array, Array, Array, Array]:
    """Different values, where each stands first, which of them each element is, how often.

    In order of value, or of first occurrence.
    """
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    if sorted:
        return values, first, inverse, counts
    order = np.argsort(first, kind="stable")
    rank = np.argsort(order, kind="stable")
    return values[order], first[order], rank[inverse], counts[order]


def _ordered(types: Types, attrs: Attrs) -> Result:
    infer.axis_of(attrs["axis"], types[0].rank)
    return (types[0], TensorType(types[0].shape, "int64"))


def _positions(types: Types, attrs: Attrs) -> Result:
    return _ordered(types, attrs)[1:]


def _kept(types: Types, attrs: Attrs) -> Result:
    axis = infer.axis_of(attrs["axis"], types[0].rank)
    shape, k = list(types[0].shape), attrs["k"]
    if isinstance(shape[axis], int) and not 0 <= k <= shape[axis]:
        raise ShapeError(f"k = {k} for an axis of {shape[axis]}")
    shape[axis] = k
    return (TensorType(tuple(shape), types[0].dtype), TensorType(tuple(shape), "int64"))


def _counted(types: Types, attrs: Attrs) -> Result:
    if types[0].rank != 1:
        raise ShapeError(f"boundaries of rank {types[0].rank}, not 1")
    return (TensorType(types[1].shape, "int64"),)


def _comparisons(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    extent = types[0].shape[attrs["axis"]] if types[0].rank else 1
    return elements(types[0]) * math.log2(max(extent, 2) if isinstance(extent, int) else 2)


def _cases(**attrs: Any) -> Iterable[Case]:
    x = np.array([[3, 1, 3, np.nan, -np.inf], [np.inf, -0.0, 0.0, 2, 2]], np.float32)
    for name in ("descending", "largest"):
        if name in attrs:
            settings = {key: value for key, value in attrs.items() if key != name}
            for value in (False, True):
                yield Case(f"ties-{name}-{value}", (x,), {**settings, "axis": 1, name: value})
    yield Case("first-axis", (x[:, :2],), {**attrs, "axis": -2})
    yield Case("integers", (np.array([5, -7, 5, 2**31 - 1], np.int32),), {**attrs, "axis": 0})
    yield Case("size-1", (x[:1, :1].repeat(2, 0),), {**attrs, "axis": 0})


_AXIS = Attribute("axis", -1)

SPECS = (
    OpSpec(
        "sort",
        "sorting",
        sort,
        _ordered,
        attributes=(_AXIS, Attribute("descending", False)),
        results=2,
        dtypes=NUMBERS,
        flops=_comparisons,
        cases=lambda: _cases(descending=False),
    ),
    OpSpec(
        "argsort",
        "sorting",
        argsort,
        _positions,
        attributes=(_AXIS, Attribute("descending", False)),
        dtypes=NUMBERS,
        flops=_comparisons,
        cases=lambda: _cases(descending=False),
    ),
    OpSpec(
        "topk",
        "sorting",
        topk,
        _kept,
        attributes=(
            Attribute("k"),
            _AXIS,
            Attribute("largest", True),
            Attribute("sorted", True),
        ),
        results=2,
        dtypes=NUMBERS,
        flops=_comparisons,
        cases=lambda: (
            *_cases(k=2, largest=True),
            Case("nothing", (np.ones((2, 3), np.float32),), {"k": 0}),
        ),
        source="ONNX TopK-11",
    ),
    OpSpec(
        "searchsorted",
        "sorting",
        searchsorted,
        _counted,
        operands=(Operand("boundaries"), Operand("x")),
        attributes=(Attribute("right", False),),
        dtypes=NUMBERS,
        flops=8,
        cases=lambda: (
            *(
                Case(
                    f"right-{right}",
                    (
                        np.array([-1, 0, 0, 2.5], np.float32),
                        np.array([[-2, 0], [1, 9], [2.5, np.nan], [np.inf, -np.inf]], np.float32),
                    ),
                    {"right": right},
                )
                for right in (False, True)
            ),
            Case("no-boundaries", (np.empty(0, np.float32), np.array([1, 2], np.float32))),
        ),
        source="PyTorch searchsorted, bucketize",
    ),
    OpSpec(
        "nonzero",
        "sorting",
        nonzero,
        dtypes=ALL,
        data_dependent=True,
        cases=lambda: (
            Case("matrix", (np.array([[0, 1, np.nan], [2, 0, 0]], np.float32),)),
            Case("none", (np.zeros((2, 2), bool),)),
            Case("scalar", (np.array(5),)),
        ),
        source="ONNX NonZero-13",
    ),
    OpSpec(
        "unique",
        "sorting",
        unique,
        attributes=(Attribute("sorted", True),),
        results=4,
        dtypes=NUMBERS,
        data_dependent=True,
        cases=lambda: (
            Case("by-value", (np.array([[3, 1], [3, 2]]),)),
            Case("by-occurrence", (np.array([3, 1, 3, 2]),), {"sorted": False}),
        ),
        source="ONNX Unique-11",
    ),
)
