"""Reads at positions that come from data."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def _checked(cx: Emitter, index: relax.Expr, size: Any, what: str) -> relax.Expr:
    """A constant index brought into ``0 .. size - 1`` now; others are guarded in the kernel."""
    known = cx.value_of(index)
    if known is None or not isinstance(size, int):
        return index
    if known.size and (known.min() < -size or known.max() >= size):
        raise RefusedError(f"{what} {int(known.min())}..{int(known.max())} outside size {size}")
    return cx.const(np.where(known < 0, known + size, known), cx.dtype(index))


@converts("aten.embedding.default")
def embedding(cx: Emitter, weight: Any, indices: Any, *_: Any) -> Any:
    """Rows of a table."""
    return _take(cx, weight, 0, indices)


@converts("aten.index_select.default")
def index_select(cx: Emitter, x: Any, dim: int, index: Any) -> Any:
    """Positions of one axis."""
    if not cx.shape(x):
        return cx.reshape(x, cx.out_shape)
    index = cx.reshape(index, [1]) if not cx.shape(index) else index
    return _take(cx, x, dim % len(cx.shape(x)), index)


def _take(cx: Emitter, x: relax.Expr, axis: int, index: relax.Expr) -> relax.Expr:
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    index = _checked(cx, index, cx.shape(x)[axis], "index")
    return cx.emit(relax.op.take(x, index, axis))


@converts("aten.gather.default")
def gather(cx: Emitter, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """``out[i][j] = x[index[i][j]][j]``; the index may be smaller than ``x``."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    if not cx.shape(x):
        return cx.broadcast(x, cx.out_shape)
    if not cx.shape(index):
        index = cx.reshape(index, [1])
    axis = dim % len(cx.shape(x))
    index = _checked(cx, index, cx.shape(x)[axis], "index")
    return cx.reshape(cx.op("gather_elements", x, index, axis=axis), cx.out_shape)


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_tensor(cx: Emitter, x: Any, indices: list[Any]) -> Any:
    """NumPy's advanced indexing with integer tensors."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    positions, axes = advanced_indices(cx, x, indices)
    if len(axes) == 1:
        return cx.emit(relax.op.take(x, positions[0], axes[0]))
    return cx.op("index", x, *positions, axes=tuple(axes))


@converts("aten._unsafe_masked_index.default")
def masked_index(cx: Emitter, x: Any, mask: Any, indices: list[Any], fill: Any) -> Any:
    """Advanced indexing where a mask holds, a number elsewhere."""
    picked = index_tensor(cx, x, indices)
    return cx.emit(relax.op.where(cx.cast(mask, "bool"), picked, cx.const(fill, cx.out_dtype)))


def advanced_indices(
    cx: Emitter, x: relax.Expr, indices: list[Any]
) -> tuple[list[relax.Expr], list[int]]:
    """Integer index tensors and the axes they index; constant masks become positions."""
    positions: list[relax.Expr] = []
    axes: list[int] = []
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        if cx.dtype(index) in ("bool", "uint8"):
            known = cx.value_of(index)
            if known is None:
                raise RefusedError(
                    "indexing with a mask gives a size that depends on the data",
                    "use torch.where, which keeps the size",
                )
            for found in np.nonzero(known):
                positions.append(cx.const(found, "int64"))
                axes.append(axis)
                axis += 1
            continue
        positions.append(_checked(cx, index, cx.shape(x)[axis], "index"))
        axes.append(axis)
        axis += 1
    return positions, axes


@converts("aten.take.default")
def take(cx: Emitter, x: Any, index: Any) -> Any:
    """Elements of the flattened tensor."""
    if 0 in cx.out_shape:
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    count = int(np.prod(cx.static(x, "take"), dtype=np.int64))
    flat = cx.reshape(x, [count])
    return cx.emit(relax.op.take(flat, _checked(cx, index, count, "index"), 0))
