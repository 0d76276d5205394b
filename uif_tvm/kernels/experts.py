"""Routing of rows to experts, and products with one matrix per group of rows."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from uif_tvm.kernels.norm import accumulator


def grouped_matmul(x: Any, weight: Any, ends: Any) -> Any:
    """Each row times the matrix of its group; zero past the last group."""
    from tvm import te, tirx

    dtype, wide = str(x.dtype), accumulator(str(x.dtype))
    rows, depth, groups = x.shape[0], x.shape[1], weight.shape[0]
    g = te.reduce_axis((0, groups), name="g")

    def passed(s: Any) -> Any:
        return te.sum((ends(g).astype("int64") <= s.astype("int64")).astype("int64"), axis=g)

    group = te.compute((rows,), passed, name="group")
    k = te.reduce_axis((0, depth), name="k")

    def product(s: Any, n: Any) -> Any:
        # Rows past the last group read a matrix too; what they read is dropped below.
        matrix = tirx.min(group(s), groups - 1)
        return te.sum(x(s, k).astype(wide) * weight(matrix, k, n).astype(wide), axis=k)

    total = te.compute((rows, weight.shape[2]), product, name="grouped_matmul")

    def owned(s: Any, n: Any) -> Any:
        zero = tirx.const(0, dtype)
        return tirx.Select(group(s) < groups, total(s, n).astype(dtype), zero)

    return te.compute((rows, weight.shape[2]), owned, name="owned")


def moe_routing(logits: Any, top_k: int, normalize: bool, softmax_first: bool) -> Any:
    """The best experts of each row by repeated maximum, and their weights.

    Args:
        logits: type of the operand, ``[rows, experts]``.
    """
    from tvm import tirx
    from tvm.script import tirx as T

    dtype, wide = logits.dtype, accumulator(logits.dtype)
    rows, experts = (
        tirx.IntImm("int64", n) if isinstance(n, int) else tirx.Var(f"n{axis}", "int64")
        for axis, n in enumerate(logits.shape)
    )
    top = tirx.IntImm("int64", top_k)

    @T.prim_func(private=True, s_tir=True)
    def routing(
        x: T.Buffer((rows, experts), dtype),
        weights: T.Buffer((rows, top), dtype),
        chosen: T.Buffer((rows, top), "int64"),
    ):
        with T.sblock("root"):
            taken = T.alloc_buffer((experts,), "bool")
            best = T.alloc_buffer((1,), "int64")
            total = T.alloc_buffer((2,), wide)  # over all experts, over the chosen ones
            with T.sblock("loops"):
                for r in range(rows):
                    for e in range(experts):
                        taken[e] = T.bool(False)
                    for k in range(top):
                        best[0] = T.int64(-1)
                        for e in range(experts):
                            if not taken[e]:
                                if best[0] < T.int64(0) or x[r, e] > x[r, T.max(best[0], 0)]:
                                    best[0] = e
                        taken[best[0]] = T.bool(True)
                        chosen[r, k] = best[0]
                    total[0] = T.Cast(wide, 0)
                    total[1] = T.Cast(wide, 0)
                    for e in range(experts):
                        total[0] = total[0] + T.exp(
                            T.Cast(wide, x[r, e]) - T.Cast(wide, x[r, chosen[r, 0]])
                        )
                    for k in range(top):
                        total[1] = total[1] + T.exp(
                            T.Cast(wide, x[r, chosen[r, k]]) - T.Cast(wide, x[r, chosen[r, 0]])
                        )
                    for k in range(top):
                        weights[r, k] = T.Cast(
                            dtype,
                            T.exp(
                                T.Cast(wide, x[r, chosen[r, k]]) - T.Cast(wide, x[r, chosen[r, 0]])
                            )
                            / total[0 if softmax_first and not normalize else 1],
                        )

    return routing
