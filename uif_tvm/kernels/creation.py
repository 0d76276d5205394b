"""Kernels of tensors made of nothing but a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import te


def arange(start: float, step: float, count: Any, dtype: str) -> te.Tensor:
    """``start + i step`` for ``count`` numbers."""
    from tvm import te, tirx

    def element(i: Any) -> Any:
        if "float" not in dtype:
            return (tirx.const(start, "int64") + i * tirx.const(step, "int64")).astype(dtype)
        wide = "float64"
        value = tirx.const(start, wide) + i.astype(wide) * tirx.const(step, wide)
        return value.astype(dtype)

    return te.compute((count,), element, name="arange")


def eye(rows: int, columns: int, k: int, dtype: str) -> te.Tensor:
    """Ones on diagonal ``k``."""
    from tvm import te, tirx

    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    return te.compute((rows, columns), lambda i, j: tirx.Select(j - i == k, one, zero), name="eye")


def one_hot(indices: te.Tensor, values: te.Tensor, depth: int, axis: int) -> te.Tensor:
    """``values[1]`` at the index along a new axis, ``values[0]`` elsewhere."""
    from tvm import te, tirx

    axis %= len(indices.shape) + 1
    shape = [*indices.shape[:axis], depth, *indices.shape[axis:]]

    def element(*i: Any) -> Any:
        raw = indices(*i[:axis], *i[axis + 1 :]).astype("int64")
        counted = tirx.Select(raw < 0, raw + depth, raw)
        return tirx.Select(counted == i[axis].astype("int64"), values(1), values(0))

    return te.compute(shape, element, name="one_hot")
