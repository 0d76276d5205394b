"""Walking all trees of a forest as one TIR function."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from uif_tvm.kernels.math import is_nan


def forest_kernel(rows: Any, features: int, forest: Any, outputs: int, dtype: str) -> Any:
    """Sum of the leaf weights that each row of the input reaches, per output; in ``dtype``."""
    zero = tirx.const(0, dtype)
    nodes, trees, leaves, depth, features_, outputs_ = (
        tirx.IntImm("int64", n)
        for n in (
            len(forest.feature),
            len(forest.roots),
            len(forest.target),
            forest.depth,
            features,
            outputs,
        )
    )

    def goes_yes(value: Any, threshold: Any, mode: Any, missing: Any) -> Any:
        checks = (value <= threshold, value < threshold, value >= threshold,
                  value > threshold, value == threshold, value != threshold)  # fmt: skip
        result = tirx.const(False, "bool")
        for code, check in enumerate(checks):
            result = tirx.any(result, tirx.all(mode == tirx.const(code, "int32"), check))
        return tirx.any(result, tirx.all(is_nan(value), missing != tirx.const(0, "int32")))

    @T.prim_func(private=True, s_tir=True)
    def walk(
        x: T.Buffer((rows, features_), dtype),
        feature: T.Buffer((nodes,), "int64"),
        threshold: T.Buffer((nodes,), dtype),
        mode: T.Buffer((nodes,), "int32"),
        yes: T.Buffer((nodes,), "int64"),
        no: T.Buffer((nodes,), "int64"),
        missing: T.Buffer((nodes,), "int32"),
        roots: T.Buffer((trees,), "int64"),
        start: T.Buffer((nodes,), "int64"),
        count: T.Buffer((nodes,), "int64"),
        target: T.Buffer((leaves,), "int64"),
        weight: T.Buffer((leaves,), dtype),
        out: T.Buffer((rows, outputs_), dtype),
    ):
        with T.sblock("root"):
            at = T.alloc_buffer((1,), "int64")
            with T.sblock("loops"):
                for r in range(rows):
                    for o in range(outputs_):
                        out[r, o] = zero
                    for t in range(trees):
                        at[0] = roots[t]
                        for _ in range(depth):
                            if goes_yes(
                                x[r, feature[at[0]]], threshold[at[0]], mode[at[0]], missing[at[0]]
                            ):
                                at[0] = yes[at[0]]
                            else:
                                at[0] = no[at[0]]
                        for e in range(count[at[0]]):
                            out[r, target[start[at[0]] + e]] = (
                                out[r, target[start[at[0]] + e]] + weight[start[at[0]] + e]
                            )

    return walk
