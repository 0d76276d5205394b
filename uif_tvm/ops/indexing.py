"""Operators that read and write at positions given by data.

Negative positions count from the end. Beyond the tensor, reads take the nearest element and writes
are dropped: nothing outside is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.movement import box
from uif_tvm.ops.spec import (
    ALL,
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

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

Result = tuple[TensorType, ...]
REDUCTIONS = ("update", "add", "mul", "max", "min")
_FOLDS: dict[str, Any] = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _wrapped(indices: Array, extent: int) -> Array:
    """Positions counted from the start."""
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + extent, wide)


def _clamped(indices: Array, extent: int) -> Array:
    return np.clip(_wrapped(indices, extent), 0, max(extent - 1, 0))


def take(x: Array, indices: Array, axis: int) -> Array:
    """``out[.., i.., ..] = x[.., indices[i..], ..]`` along ``axis``."""
    return np.take(x, _clamped(indices, x.shape[axis]), axis)


def gather_elements(x: Array, indices: Array, axis: int) -> Array:
    """``out[i][j] = x[indices[i][j]][j]`` for axis 0; ``indices`` may be smaller elsewhere."""
    at: list[Array] = list(np.indices(indices.shape))
    at[axis] = _clamped(indices, x.shape[axis])
    return x[tuple(at)]


def gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    """``out[b.., i..] = x[b.., indices[b.., i.., 0], indices[b.., i.., 1] ..]``."""
    lead = indices.shape[:-1]
    batch = np.indices(lead)[:batch_dims]
    at = [_clamped(indices[..., k], x.shape[batch_dims + k]) for k in range(indices.shape[-1])]
    return x[(*batch, *at)]


def _put(x: Array, places: Iterable[tuple[Any, ...]], values: Iterable[Any], fold: str) -> Array:
    out = x.copy()
    for place, value in zip(places, values, strict=True):
        if all(0 <= int(i) < n for i, n in zip(place, x.shape, strict=False)):
            out[place] = _FOLDS[fold](out[place], value)
    return out


def scatter_elements(x: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    """``out[indices[i][j]][j] = f(out[..], updates[i][j])`` for axis 0, in order."""
    axis %= x.ndim
    wrapped = _wrapped(indices, x.shape[axis])
    places = [(*at[:axis], int(wrapped[at]), *at[axis + 1 :]) for at in np.ndindex(*indices.shape)]
    return _put(x, places, [updates[at] for at in np.ndindex(*indices.shape)], reduction)


def scatter_nd(x: Array, indices: Array, updates: Array, reduction: str) -> Array:
    """``out[indices[i.., 0], indices[i.., 1] ..] = f(out[..], updates[i..])``, in order."""
    lead = indices.shape[:-1]
    depth = indices.shape[-1]
    wrapped = [_wrapped(indices[..., k], x.shape[k]) for k in range(depth)]
    places = [tuple(int(w[at]) for w in wrapped) for at in np.ndindex(*lead)]
    return _put(x, places, [updates[at] for at in np.ndindex(*lead)], reduction)


def index(x: Array, *indices: Array, axes: Sequence[int]) -> Array:
    """NumPy's ``x[.., i0, .., i1]`` with integer tensors at ``axes``.

    The joint index axes stand where the indexed axes were when those are neighbours, else first.
    """
    at: list[Any] = [slice(None)] * x.ndim
    for axis, positions in zip(axes, indices, strict=True):
        at[axis] = _clamped(positions, x.shape[axis])
    return x[tuple(at)]


def index_put(
    x: Array, values: Array, *indices: Array, axes: Sequence[int], accumulate: bool
) -> Array:
    """NumPy's ``x[.., i0, .., i1] = values`` (or ``+=``, duplicates adding up)."""
    at: list[Any] = [slice(None)] * x.ndim
    for axis, positions in zip(axes, indices, strict=True):
        at[axis] = _wrapped(positions, x.shape[axis])
    flat = np.arange(x.size).reshape(x.shape)[tuple(at)]
    out = x.copy().reshape(-1)
    new = np.broadcast_to(values, flat.shape)
    if accumulate:
        np.add.at(out, flat, new)
    else:
        out[flat] = new
    return out.reshape(x.shape)


def masked_fill(x: Array, mask: Array, value: Array) -> Array:
    """``value`` where the mask holds."""
    return np.where(mask, value.astype(x.dtype), x)


# -- types -------------------------------------------------------------------------------------


def _taken(types: Types, attrs: Attrs) -> Result:
    x, indices = types
    axis = infer.axis_of(attrs["axis"], x.rank)
    return (TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)


def _gathered(types: Types, attrs: Attrs) -> Result:
    x, indices = types
    infer.axis_of(attrs["axis"], x.rank)
    if x.rank != indices.rank:
        raise ShapeError(f"ranks {x.rank} and {indices.rank} differ")
    return (TensorType(indices.shape, x.dtype),)


def _gathered_tuples(types: Types, attrs: Attrs) -> Result:
    x, indices = types
    depth, batch = indices.shape[-1], attrs["batch_dims"]
    if not isinstance(depth, int) or batch + depth > x.rank:
        raise ShapeError(f"tuples of {depth} positions in rank {x.rank}")
    return (TensorType((*indices.shape[:-1], *x.shape[batch + depth :]), x.dtype),)


def _indexed(types: Types, attrs: Attrs) -> Result:
    x, indices = types[0], types[1:]
    axes = [infer.axis_of(axis, x.rank) for axis in attrs["axes"]]
    if len(axes) != len(indices):
        raise ShapeError(f"{len(indices)} index tensors for axes {list(attrs['axes'])}")
    joint = infer.broadcast(*(item.shape for item in indices))
    rest = [extent for axis, extent in enumerate(x.shape) if axis not in axes]
    first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    return (TensorType((*rest[:first], *joint, *rest[first:]), x.dtype),)


def _masked(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    return b.op("where", operands[1], operands[2], operands[0])


# -- cases -------------------------------------------------------------------------------------


def _take_cases() -> Iterable[Case]:
    yield Case("rows", (box(4, 3), np.array([[0, 3], [-1, 2]])), {"axis": 0})
    yield Case("columns", (box(4, 3), np.array([2, -3], np.int32)), {"axis": -1})
    yield Case("one", (box(4, 3), np.array(1)), {"axis": 0})
    yield Case("beyond", (box(4), np.array([9, -9, 4])), {"axis": 0})
    yield Case("none", (box(4, 3), np.empty((0,), np.int64)), {"axis": 0})


def _gather_cases() -> Iterable[Case]:
    yield Case("rows", (box(3, 4), np.array([[0, 2, -1, 1]])), {"axis": 0})
    yield Case("columns", (box(3, 4), np.array([[3, -4], [0, 0], [9, -9]])), {"axis": -1})


def _tuple_cases() -> Iterable[Case]:
    yield Case("rows", (box(3, 4), np.array([[0], [-1]])))
    yield Case("elements", (box(3, 4), np.array([[0, 3], [-1, -4], [9, 9]])))
    yield Case("batch", (box(2, 3, 4), np.array([[[1]], [[-1]]])), {"batch_dims": 1})


def _scatter_cases() -> Iterable[Case]:
    x, new = box(3, 4), -box(2, 3) - 1
    at = np.array([[0, 2, -1], [0, 9, -9]])
    for fold in REDUCTIONS:
        yield Case(f"duplicates-{fold}", (x, at, new), {"axis": 0, "reduction": fold})
    yield Case("columns", (x, np.array([[3], [-4], [1]]), new.reshape(3, 2)), {"axis": -1})
    yield Case("none", (x, np.empty((0, 4), np.int64), np.empty((0, 4), np.float32)))
    nan = np.array([[np.nan, 1, np.nan]], np.float32)
    yield Case("nan", (x, np.array([[0, 0, 1]]), nan), {"reduction": "max"})
    yield Case("integers", (np.arange(4), np.array([1, 1]), np.array([5, 6])), {"reduction": "add"})


def _scatter_tuple_cases() -> Iterable[Case]:
    x, rows = box(4, 3), -box(3, 3) - 1
    at = np.array([[0], [-1], [0]])
    for fold in REDUCTIONS:
        yield Case(f"rows-{fold}", (x, at, rows), {"reduction": fold})
    yield Case(
        "elements", (x, np.array([[1, 1], [-1, -1], [7, 0]]), np.array([5, 6, 7], np.float32))
    )
    yield Case("none", (x, np.empty((0, 1), np.int64), np.empty((0, 3), np.float32)))


def _index_cases() -> Iterable[Case]:
    x = box(3, 4, 5)
    rows, columns = np.array([[0], [-1]]), np.array([1, 3, -2])
    yield Case("neighbours", (x, rows, columns), {"axes": (0, 1)})
    yield Case("apart", (x, rows, columns), {"axes": (0, 2)})
    yield Case("last", (x, columns), {"axes": (2,)})


def _index_put_cases() -> Iterable[Case]:
    x = box(3, 4)
    rows, columns = np.array([0, -1, 0]), np.array([1, 2, 1])
    yield Case("elements", (x, np.array([7, 8, 9], np.float32), rows, columns), {"axes": (0, 1)})
    yield Case("add", (x, np.float32(1), rows, columns), {"axes": (0, 1), "accumulate": True})
    yield Case("rows", (x, np.array([[1], [2], [3]], np.float32), rows), {"axes": (0,)})


def _writes(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    return elements(types[2])


_TWO = (Operand("x"), Operand("indices"))
_THREE = (*_TWO, Operand("updates"))
_FOLD = Attribute("reduction", "update", REDUCTIONS)


def _reads(name: str, reference: Any, inferred: Any, cases: Any, **more: Any) -> OpSpec:
    settings: dict[str, Any] = {"operands": _TWO, "dtypes": ALL, "flops": 0}
    return OpSpec(name, "indexing", reference, inferred, cases=cases, **(settings | more))


SPECS = (
    _reads(
        "take", take, _taken, _take_cases, attributes=(Attribute("axis", 0),), relax="relax.take"
    ),
    _reads(
        "gather_elements",
        gather_elements,
        _gathered,
        _gather_cases,
        attributes=(Attribute("axis", 0),),
        source="ONNX GatherElements-13",
    ),
    _reads(
        "gather_nd",
        gather_nd,
        _gathered_tuples,
        _tuple_cases,
        attributes=(Attribute("batch_dims", 0),),
        source="ONNX GatherND-13",
    ),
    _reads(
        "scatter_elements",
        scatter_elements,
        infer.same,
        _scatter_cases,
        operands=_THREE,
        attributes=(Attribute("axis", 0), _FOLD),
        flops=_writes,
        source="ONNX ScatterElements-18",
    ),
    _reads(
        "scatter_nd",
        scatter_nd,
        infer.same,
        _scatter_tuple_cases,
        operands=_THREE,
        attributes=(_FOLD,),
        flops=_writes,
        source="ONNX ScatterND-18",
    ),
    _reads(
        "index",
        index,
        _indexed,
        _index_cases,
        attributes=(Attribute("axes"),),
        variadic=True,
        source="PyTorch index.Tensor",
    ),
    _reads(
        "index_put",
        index_put,
        infer.same,
        _index_put_cases,
        operands=(Operand("x"), Operand("values"), Operand("indices")),
        attributes=(Attribute("axes"), Attribute("accumulate", False)),
        variadic=True,
        source="PyTorch index_put",
    ),
    _reads(
        "masked_fill",
        masked_fill,
        infer.broadcasting,
        lambda: (
            Case("nan", (box(2, 3), np.array([[True], [False]]), np.float32(np.nan))),
            Case("never", (box(2, 3), np.zeros((2, 3), bool), np.float32(5))),
        ),
        operands=(Operand("x"), Operand("mask"), Operand("value")),
        decompose=_masked,
        source="PyTorch masked_fill",
    ),
)
