"""Determinants."""

# mypy: ignore-errors
from __future__ import annotations

import math
from typing import Any


def det(x: Any) -> Any:
    """Determinant of each matrix, by Gaussian elimination with the largest pivot of a column.

    Args:
        x: type of the operand, ``[..., n, n]`` with static extents.
    """
    from tvm import tirx
    from tvm.script import tirx as T

    dtype = x.dtype
    lead = x.shape[:-2]
    size = tirx.IntImm("int64", x.shape[-1])
    count = tirx.IntImm("int64", math.prod(lead))

    def at(m: Any) -> list[Any]:
        """Index of the m-th matrix along the leading axes."""
        index = []
        for extent in reversed(lead):
            index.insert(0, tirx.floormod(m, extent))
            m = tirx.floordiv(m, extent)
        return index

    @T.prim_func(private=True, s_tir=True)
    def determinant(a: T.Buffer(x.shape, dtype), out: T.Buffer(lead, dtype)):
        with T.sblock("root"):
            work = T.alloc_buffer((size, size), dtype)
            state = T.alloc_buffer((2,), dtype)  # product of pivots, and what to exchange
            pivot = T.alloc_buffer((1,), "int64")
            with T.sblock("loops"):
                for m in range(count):
                    for i in range(size):
                        for j in range(size):
                            work[i, j] = a[*at(m), i, j]
                    state[0] = T.Cast(dtype, 1)
                    for k in range(size):
                        pivot[0] = k
                        for i in range(size):
                            if i > k and T.fabs(work[i, k]) > T.fabs(work[pivot[0], k]):
                                pivot[0] = i
                        if pivot[0] != k:
                            state[0] = T.Cast(dtype, 0) - state[0]
                            for j in range(size):
                                state[1] = work[k, j]
                                work[k, j] = work[pivot[0], j]
                                work[pivot[0], j] = state[1]
                        state[0] = state[0] * work[k, k]
                        if work[k, k] != T.Cast(dtype, 0):
                            for i in range(size):
                                if i > k:
                                    state[1] = work[i, k] / work[k, k]
                                    for j in range(size):
                                        if j > k:
                                            work[i, j] = work[i, j] - state[1] * work[k, j]
                    out[*at(m)] = state[0]

    return determinant
