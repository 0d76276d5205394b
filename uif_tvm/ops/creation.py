"""Tensors made of nothing but a rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.ops.spec import ALL, INTS, Array, Attribute, Attrs, Case, Operand, OpSpec, ShapeError
from uif_tvm.ops.spec import TensorType as Type


def full(value: Array, shape: Sequence[int]) -> Array:
    """Every element the same."""
    return np.full(tuple(shape), value)


def arange(start: float, step: float, count: int, dtype: str) -> Array:
    """``start + i step`` for ``count`` numbers."""
    return (start + np.arange(count) * step).astype(numpy_dtype(dtype))


def eye(rows: int, columns: int, k: int, dtype: str) -> Array:
    """Ones on diagonal ``k``."""
    return np.eye(rows, columns, k).astype(numpy_dtype(dtype))


def one_hot(indices: Array, values: Array, depth: int, axis: int) -> Array:
    """``values[1]`` at the index along a new axis, ``values[0]`` elsewhere.

    Negative indices count from the end; those outside have no hit.
    """
    place = axis % (indices.ndim + 1)
    wide = indices.astype(np.int64)
    wrapped = np.expand_dims(np.where(wide < 0, wide + depth, wide), place)
    range_shape = [depth if at == place else 1 for at in range(indices.ndim + 1)]
    return np.where(np.arange(depth).reshape(range_shape) == wrapped, values[1], values[0])


def _hot(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    indices, values = types
    axis = infer.axis_of(attrs["axis"], indices.rank + 1)
    if values.rank != 1 or (isinstance(values.shape[0], int) and values.shape[0] != 2):
        raise ShapeError(f"two values are needed, got {values}")
    return (Type((*indices.shape[:axis], attrs["depth"], *indices.shape[axis:]), values.dtype),)


SPECS = (
    OpSpec(
        "full",
        "creation",
        full,
        lambda types, attrs: (Type(tuple(attrs["shape"]), types[0].dtype),),
        operands=(Operand("value"),),
        attributes=(Attribute("shape"),),
        relax="relax.full",
        dtypes=ALL,
        flops=0,
        cases=lambda: (
            Case("nan", (np.float32(np.nan),), {"shape": (2, 3)}),
            Case("scalar", (np.float32(2),), {"shape": ()}),
            Case("zero-size", (np.float32(2),), {"shape": (0, 2)}),
        ),
    ),
    OpSpec(
        "arange",
        "creation",
        arange,
        lambda types, attrs: (Type((attrs["count"],), attrs["dtype"]),),
        operands=(),
        attributes=(
            Attribute("start", 0),
            Attribute("step", 1),
            Attribute("count"),
            Attribute("dtype", "int64"),
        ),
        dtypes=ALL,
        cases=lambda: (
            Case("backwards", (), {"start": 5, "step": -2, "count": 4}),
            Case("floats", (), {"start": 0.5, "step": 0.25, "count": 5, "dtype": "float32"}),
            Case("nothing", (), {"count": 0}),
        ),
    ),
    OpSpec(
        "eye",
        "creation",
        eye,
        lambda types, attrs: (Type((attrs["rows"], attrs["columns"]), attrs["dtype"]),),
        operands=(),
        attributes=(
            Attribute("rows"),
            Attribute("columns"),
            Attribute("k", 0),
            Attribute("dtype", "float32"),
        ),
        dtypes=ALL,
        flops=0,
        cases=lambda: (
            Case("below", (), {"rows": 3, "columns": 4, "k": -1}),
            Case("outside", (), {"rows": 2, "columns": 2, "k": 5}),
        ),
    ),
    OpSpec(
        "one_hot",
        "creation",
        one_hot,
        _hot,
        operands=(Operand("indices"), Operand("values")),
        attributes=(Attribute("depth"), Attribute("axis", -1)),
        dtypes=INTS,
        flops=1,
        cases=lambda: (
            Case("last", (np.array([1, -1, 7]), np.array([0, 5], np.float32)), {"depth": 3}),
            Case("first", (np.array([[1, 0]]), np.array([2, 3])), {"depth": 2, "axis": 0}),
        ),
        source="ONNX OneHot-11",
    ),
)
