"""Indices and shapes of ONNX operators."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, i32, i64, node, randn, seq

R = Registry("indices")
T = "apache/tvm#"
A = np.array

# --- ONNX: indexing
R.op(
    "o-gather-negative",
    T + "19436",
    "onnx-index",
    "Gather with negative indices reads outside the buffer",
    "-1 is the last row",
    "Gather",
    {"x": seq(3, 4), "i": A([0, -1, -3], i64)},
    {"y": (f32, [3, 4])},
    attrs={"axis": 0},
)
R.op(
    "o-gatherelements-negative",
    T + "20217",
    "onnx-index",
    "GatherElements with negative indices",
    "counted from the end",
    "GatherElements",
    {"x": seq(3, 4), "i": A([[-1, -2], [0, -4], [2, -3]], i64)},
    {"y": (f32, [3, 2])},
    attrs={"axis": 1},
)
R.op(
    "o-gathernd-negative",
    T + "20217",
    "onnx-index",
    "GatherND with negative indices",
    "counted from the end",
    "GatherND",
    {"x": seq(3, 4), "i": A([[-1, -1], [0, -2], [-3, 3]], i64)},
    {"y": (f32, [3])},
)
R.op(
    "o-scatterelements-add",
    T + "19435",
    "onnx-index",
    "ScatterElements ignores reduction='add'",
    "updates accumulate onto the data",
    "ScatterElements",
    {"d": np.full((3, 3), 2, f32), "i": A([[0, 1, 2], [0, 1, 0]], i64), "u": seq(2, 3, start=1)},
    {"y": (f32, [3, 3])},
    opset=18,
    attrs={"axis": 0, "reduction": "add"},
)
R.op(
    "o-cumsum-runtime-axis",
    T + "19437",
    "onnx-index",
    "CumSum with the axis as a graph input (once always axis 0, now rejected)",
    "sum along the given axis",
    "CumSum",
    {"x": seq(3, 4), "a": A(1, i32)},
    {"y": (f32, [3, 4])},
)
R.op(
    "o-cumsum-reverse",
    T + "18135",
    "onnx-index",
    "CumSum with reverse=1 fails to import",
    "suffix sums",
    "CumSum",
    {"x": randn(3, 4)},
    {"y": (f32, [3, 4])},
    {"a": A(1, i64)},
    attrs={"reverse": 1},
)
R.op(
    "o-topk-scalar-k",
    T + "19573",
    "onnx-index",
    "TopK whose K initializer has shape [1]",
    "values and int64 indices",
    "TopK",
    {"x": randn(2, 6)},
    {"v": (f32, [2, 3]), "i": (i64, [2, 3])},
    {"k": A([3], i64)},
    attrs={"axis": 1},
)
# --- ONNX: shapes
R.onnx(
    "o-reshape-zero-constant",
    T + "20151",
    "onnx-shape",
    "Reshape of a constant with a 0 in the shape raises",
    "0 copies the input dimension",
    lambda: [node("Reshape", ["c", "s"], ["r"]), node("Mul", ["r", "x"], ["y"])],
    {"x": randn(2, 3)},
    {"y": (f32, [2, 3])},
    {"c": seq(2, 3), "s": A([0, 3], i64)},
    opset=14,
)
R.op(
    "o-reshape-runtime-shape",
    T + "20174",
    "onnx-shape",
    "Reshape with the target shape as a runtime input",
    "output with that shape",
    "Reshape",
    {"x": seq(2, 6), "s": A([3, 4], i64)},
    {"y": (f32, [3, 4])},
    dyn=None,
)
R.onnx(
    "o-expand-after-reduce",
    T + "17769",
    "onnx-shape",
    "Expand to a shape that does not cover the input's own dimension",
    "two-way broadcast: dim 3 against 1 stays 3",
    lambda: [
        node("ReduceMean", ["x"], ["m"], axes=[2], keepdims=0),
        node("Expand", ["m", "s"], ["y"]),
    ],
    {"x": randn(2, 3, 4)},
    {"y": (f32, [2, 2, 3])},
    {"s": A([2, 1, 1], i64)},
    opset=13,
)
R.op(
    "o-slice-negstep-empty",
    T + "19532",
    "onnx-shape",
    "Slice with step -1 whose result is empty aborts",
    "empty tensor",
    "Slice",
    {"x": seq(10)},
    {"y": (f32, [0])},
    {"st": A([0], i64), "en": A([5], i64), "ax": A([0], i64), "sp": A([-1], i64)},
)
R.onnx(
    "o-constant-value-float",
    T + "15719",
    "onnx-shape",
    "Constant given by value_float is rejected",
    "scalar constant",
    lambda: [node("Constant", [], ["c"], value_float=2.5), node("Mul", ["x", "c"], ["y"])],
    {"x": seq(3)},
    {"y": (f32, [3])},
)
R.onnx(
    "o-less-broadcast",
    T + "18030",
    "onnx-shape",
    "Less with operands that need two-way broadcasting",
    "broadcast bool result",
    lambda: [node("Less", ["a", "b"], ["y"])],
    {"a": randn(3, 1), "b": randn(1, 4, seed=1)},
    {"y": (np.bool_, [3, 4])},
)
R.op(
    "o-squeeze-opset11-axes",
    T + "19966",
    "onnx-shape",
    "Squeeze at opset 11 loses its axes attribute",
    "only that axis removed",
    "Squeeze",
    {"x": randn(1, 3, 1)},
    {"y": (f32, [1, 3])},
    opset=11,
    attrs={"axes": [2]},
)
