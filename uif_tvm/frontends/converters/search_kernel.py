"""Search in sorted keys by halves."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from uif_tvm.kernels.math import is_nan


def search_kernel(total: Any, size: int, dtype: str, count: int, knows_nan: bool) -> Any:
    """A function of (elements, sorted keys, rows).

    Args:
        total: number of elements, an integer or a variable.
        size: number of keys stored, at least 1; the first ``count`` of them count.
        knows_nan: whether row ``count`` belongs to NaN; elements without key get ``count`` + 1.
    """

    def after_nan(item: Any, row: Any) -> Any:
        if knows_nan and "float" in dtype:
            return tirx.Select(is_nan(item), tirx.const(count, "int64"), row)
        return row

    @T.prim_func(private=True, s_tir=True)
    def search(
        x: T.Buffer((total,), dtype),
        keys: T.Buffer((size,), dtype),
        rows: T.Buffer((total,), "int64"),
    ):
        with T.sblock("root"):
            ends = T.alloc_buffer((2,), "int64")
            with T.sblock("loops"):
                for i in range(total):
                    ends[0] = T.int64(0)
                    ends[1] = T.int64(count)
                    while ends[0] < ends[1]:  # keys before ends[0] are at most x, others above
                        if keys[(ends[0] + ends[1]) // T.int64(2)] <= x[i]:
                            ends[0] = (ends[0] + ends[1]) // T.int64(2) + T.int64(1)
                        else:
                            ends[1] = (ends[0] + ends[1]) // T.int64(2)
                    rows[i] = T.int64(count + 1)
                    if ends[0] > T.int64(0):
                        if keys[ends[0] - T.int64(1)] == x[i]:
                            rows[i] = ends[0] - T.int64(1)
                    rows[i] = after_nan(x[i], rows[i])

    return search
