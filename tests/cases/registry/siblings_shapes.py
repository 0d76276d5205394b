"""Shapes, indices and reductions: siblings of known faults."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, i32, i64, node, randn, ref, seq

# fmt: off
R = Registry("shapes")
A = np.array


def I(*values):  # noqa: E743 - short on purpose: it occurs in every line
    return np.array(values, i64)


# --- reductions -------------------------------------------------------------------------------
R.single("x-reducesum-noop", "no axes and noop_with_empty_axes=1 changes nothing", "ReduceSum",
         {"x": randn(2, 3)}, opset=13, attrs={"noop_with_empty_axes": 1})
R.single("x-reducesum-empty-axes", "an empty axes tensor reduces everything", "ReduceSum",
         {"x": randn(2, 3)}, inits={"a": np.zeros(0, i64)}, opset=13,
         attrs={"keepdims": 0})
R.single("x-reducesum-axes-input", "axes at run time", "ReduceSum",
         {"x": randn(2, 3, 4), "a": I(-1, 0)}, opset=13, attrs={"keepdims": 0})
R.single("x-reducemax-zero-size", "ReduceMax over an empty axis", "ReduceMax",
         {"x": np.zeros((2, 0, 3), f32)}, inits={"a": I(1)}, opset=20,
         expected=[np.full((2, 1, 3), -np.inf, f32)])
R.single("x-reduceprod-zero-size", "ReduceProd over an empty axis is one", "ReduceProd",
         {"x": np.zeros((2, 0), f32)}, inits={"a": I(1)}, opset=18,
         expected=[np.ones((2, 1), f32)])
R.single("x-reducel2-negative", "ReduceL2 over negative axes", "ReduceL2", {"x": randn(2, 3, 4)},
         opset=13, attrs={"axes": [-1, -3], "keepdims": 0})
R.single("x-reducesumsquare-int", "ReduceSumSquare of int32", "ReduceSumSquare",
         {"x": seq(2, 3, dtype=i32)}, opset=13, attrs={"axes": [0]})
R.single("x-reducemean-int", "ReduceMean of int32 truncates", "ReduceMean",
         {"x": A([[1, 2], [3, 5]], i32)}, opset=13, attrs={"axes": [1], "keepdims": 0})
R.single("x-reducemin-bool", "ReduceMin of bool", "ReduceMin",
         {"x": A([[True, False], [True, True]])}, inits={"a": I(1)}, opset=20,
         expected=[A([[False], [True]])])
R.single("x-argmax-last", "ArgMax with select_last_index", "ArgMax",
         {"x": A([[2, 2, 1], [0, 3, 3]], f32)},
         attrs={"axis": -1, "keepdims": 0, "select_last_index": 1})
R.single("x-argmin-last-negative-axis", "ArgMin with select_last_index", "ArgMin",
         {"x": A([[2, 1], [2, 1], [5, 9]], f32)},
         attrs={"axis": -2, "select_last_index": 1})
R.single("x-cumsum-exclusive-reverse", "exclusive reverse CumSum", "CumSum", {"x": randn(3, 4)},
         inits={"a": A(-1, i32)}, attrs={"exclusive": 1, "reverse": 1})
R.single("x-cumsum-exclusive-int", "exclusive CumSum of int64", "CumSum",
         {"x": seq(2, 3, dtype=i64)}, inits={"a": A(0, i64)}, attrs={"exclusive": 1})

# --- indices ----------------------------------------------------------------------------------
R.single("x-gather-scalar-negative", "Gather by a negative scalar drops the axis", "Gather",
         {"x": randn(3, 4)}, inits={"i": A(-1, i64)}, attrs={"axis": 1})
R.single("x-gather-2d-indices", "Gather by a matrix in the middle", "Gather",
         {"x": randn(2, 5, 3), "i": A([[0, -1], [2, 2]], i32)}, attrs={"axis": -2})
R.single("x-gathernd-batch", "GatherND with batch_dims", "GatherND",
         {"x": seq(2, 3, 4), "i": A([[-1], [0]], i64)}, attrs={"batch_dims": 1})
R.single("x-scatternd-add-duplicates", "ScatterND adds duplicates", "ScatterND",
         {"x": np.ones(5, f32), "i": A([[1], [1], [-1]], i64), "u": A([2, 3, 4], f32)}, opset=18,
         attrs={"reduction": "add"}, expected=[A([1, 6, 1, 1, 5], f32)])
R.single("x-scatternd-mul-rows", "ScatterND multiplies whole rows", "ScatterND",
         {"x": seq(3, 2, start=1), "i": A([[0], [2], [0]], i64),
          "u": A([[2, 3], [4, 5], [10, 100]], f32)}, opset=18, attrs={"reduction": "mul"},
         expected=[A([[20, 600], [3, 4], [20, 30]], f32)])
R.single("x-scatterelements-max-duplicates", "ScatterElements with max and duplicates",
         "ScatterElements", {"x": np.zeros((2, 3), f32), "i": A([[0, 0, -1]], i64),
                             "u": A([[5, 3, -2]], f32)}, opset=18,
         attrs={"axis": 1, "reduction": "max"}, expected=[A([[5, 0, 0], [0, 0, 0]], f32)])
R.single("x-scatterelements-negative", "ScatterElements on a negative axis", "ScatterElements",
         {"x": np.zeros((2, 4), f32), "i": A([[-1, 0], [1, -2]], i64), "u": seq(2, 2, start=1)},
         attrs={"axis": -1})
R.single("x-topk-smallest-ties", "TopK: smallest, ties by index", "TopK",
         {"x": A([[3, 1, 1, 2, 1]], f32)}, outputs=("v", "i"), inits={"k": I(3)},
         attrs={"largest": 0})
R.single("x-topk-axis-zero", "TopK along the first axis", "TopK", {"x": randn(5, 3)},
         outputs=("v", "i"), inits={"k": I(2)}, attrs={"axis": 0})
R.single("x-topk-int64", "TopK of int64", "TopK", {"x": A([[2**60, 2**60 + 1, -5]], i64)},
         outputs=("v", "i"), inits={"k": I(2)})
R.single("x-topk-opset1", "TopK with k as an attribute", "TopK", {"x": randn(2, 5)},
         outputs=("v", "i"), opset=9, attrs={"k": 2, "axis": 1})
R.single("x-onehot-negative", "OneHot wraps negative indices", "OneHot",
         {"i": A([0, -1, 2], i64)}, inits={"d": A(3, i64), "v": A([2, 5], f32)},
         attrs={"axis": 0})
R.single("x-onehot-out-of-range", "OneHot is all off for indices out of range", "OneHot",
         {"i": A([3, -4, 1], i64)}, inits={"d": A(3, i64), "v": A([0, 1], f32)})
R.single("x-compress-no-axis", "Compress without axis flattens", "Compress", {"x": seq(2, 3)},
         inits={"c": A([False, True, False, True])})
R.single("x-nonzero", "NonZero's size depends on the data", "NonZero",
         {"x": A([[0, 1, 0], [2, 0, 3]], f32)})
R.single("x-unique-sorted-axis", "Unique rows with counts", "Unique",
         {"x": A([[1, 0], [1, 0], [0, 3]], f32)}, outputs=("y", "i", "r", "n"),
         attrs={"axis": 0})
R.single("x-trilu-k", "Trilu above the diagonal", "Trilu", {"x": randn(2, 3, 4)},
         inits={"k": A(-1, i64)}, attrs={"upper": 0})
R.single("x-eyelike-k", "EyeLike with an offset and another dtype", "EyeLike",
         {"x": np.zeros((3, 4), f32)}, attrs={"k": -1, "dtype": 7})

# --- slices, pads, splits ---------------------------------------------------------------------
R.single("x-slice-beyond", "Slice clamps ends beyond the axis", "Slice", {"x": seq(3, 5)},
         inits={"st": I(-100, 1), "en": I(2**62, -1), "ax": I(0, 1), "sp": I(2, 1)})
R.single("x-slice-reverse-all", "Slice backwards over everything", "Slice", {"x": seq(5)},
         inits={"st": I(-1), "en": I(-(2**62)), "ax": I(0), "sp": I(-2)})
R.single("x-slice-runtime", "Slice with starts and ends at run time", "Slice",
         {"x": seq(4, 6), "st": I(1, 0), "en": I(3, 5)})
R.single("x-slice-opset1", "Slice with attributes", "Slice", {"x": seq(4, 6)}, opset=9,
         attrs={"starts": [1, -3], "ends": [4, 100], "axes": [0, 1]})
R.single("x-slice-int32-indices", "Slice with int32 indices", "Slice", {"x": seq(4)},
         inits={"st": A([1], i32), "en": A([3], i32)})
R.single("x-pad-negative", "negative pads crop", "Pad", {"x": seq(3, 5)},
         inits={"p": I(-1, 1, 0, -2)})
R.single("x-pad-reflect", "Pad by reflection, both sides", "Pad", {"x": seq(2, 4)},
         inits={"p": I(0, 3, 1, 2)}, attrs={"mode": "reflect"})
R.single("x-pad-edge-uneven", "Pad by the edge", "Pad", {"x": seq(2, 3)},
         inits={"p": I(2, 0, 1, 3)},         attrs={"mode": "edge"})
R.single("x-pad-wrap", "Pad by wrapping round", "Pad", {"x": seq(2, 3)}, opset=19,
         inits={"p": I(0, 2, 1, 3)}, attrs={"mode": "wrap"},
         expected=[np.pad(seq(2, 3), ((0, 1), (2, 3)), mode="wrap")])
R.single("x-pad-axes", "Pad on named axes", "Pad", {"x": seq(2, 3)}, opset=18,
         inits={"p": I(1, 2), "v": A(7, f32), "ax": I(-1)})
R.single("x-pad-int", "Pad of int64 with a value", "Pad", {"x": seq(2, 2, dtype=i64)},
         inits={"p": I(0, 1, 1, 0), "v": A(-9, i64)})
R.single("x-split-uneven", "Split into named sizes", "Split", {"x": seq(2, 7)},
         outputs=("a", "b", "c"), inits={"s": I(1, 4, 2)}, attrs={"axis": 1})
R.single("x-split-num-outputs", "Split with num_outputs and a smaller last part", "Split",
         {"x": seq(7, 2)}, outputs=("a", "b", "c"), opset=18, attrs={"num_outputs": 3})
R.single("x-split-zero-part", "Split with an empty part", "Split", {"x": seq(4)},
         outputs=("a", "b"), inits={"s": I(0, 4)})
R.single("x-split-opset11", "Split with an attribute", "Split", {"x": seq(6)},
         outputs=("a", "b"), opset=11, attrs={"split": [2, 4]})
R.single("x-concat-negative-axis", "Concat on a negative axis with an empty part", "Concat",
         {"a": seq(2, 3), "b": np.zeros((2, 0), f32), "c": seq(2, 1)}, attrs={"axis": -1})
R.single("x-tile-zero", "Tile with a zero repeat", "Tile", {"x": seq(2, 3)},
         inits={"r": I(2, 0)})

# --- shapes -----------------------------------------------------------------------------------
R.single("x-reshape-allowzero", "Reshape with allowzero keeps the zero", "Reshape",
         {"x": np.zeros((0, 3), f32)}, inits={"s": I(3, 0)}, attrs={"allowzero": 1})
R.single("x-reshape-zero-and-minus-one", "Reshape with 0 and -1", "Reshape", {"x": seq(2, 3, 4)},
         inits={"s": I(0, -1, 2)})
R.single("x-flatten-axis-zero", "Flatten at axis 0", "Flatten", {"x": seq(2, 3, 4)},
         attrs={"axis": 0})
R.single("x-flatten-negative", "Flatten at a negative axis", "Flatten", {"x": seq(2, 3, 4)},
         attrs={"axis": -1})
R.single("x-squeeze-all", "Squeeze without axes", "Squeeze", {"x": seq(1, 3, 1)})
R.single("x-squeeze-negative-input", "Squeeze on negative axes", "Squeeze", {"x": seq(1, 3, 1)},
         inits={"a": I(-1, 0)})
R.single("x-unsqueeze-unordered", "Unsqueeze with unordered negative axes", "Unsqueeze",
         {"x": seq(2, 3)}, inits={"a": I(-1, 0)})
R.single("x-shape-start-end", "Shape of a part", "Shape", {"x": randn(2, 3, 4)}, opset=15,
         attrs={"start": -2, "end": 100})
R.single("x-size", "Size is a scalar", "Size", {"x": randn(2, 3, 4)})
R.single("x-expand-runtime", "Expand to a shape at run time", "Expand",
         {"x": randn(3, 1), "s": I(2, 1, 4)})
R.single("x-constantofshape-runtime", "ConstantOfShape at run time, default value",
         "ConstantOfShape", {"s": I(2, 3)})
R.single("x-range-negative", "Range downwards at run time", "Range",
         {"a": A(10, i64), "b": A(0, i64), "d": A(-3, i64)})
R.single("x-range-float", "Range of floats", "Range", {},
         inits={"a": A(0.5, f32), "b": A(2.0, f32), "d": A(0.4, f32)})
R.single(
    "x-transpose-default", "Transpose without perm reverses", "Transpose", {"x": randn(2, 3, 4)}
)
R.single("x-depthtospace-crd", "DepthToSpace CRD", "DepthToSpace", {"x": seq(1, 8, 2, 3)},
         attrs={"blocksize": 2, "mode": "CRD"})
R.single("x-spacetodepth", "SpaceToDepth", "SpaceToDepth", {"x": seq(1, 2, 4, 6)},
         attrs={"blocksize": 2})
R.single("x-matmul-vectors", "MatMul of two vectors is a scalar", "MatMul",
         {"a": randn(4), "b": randn(4, seed=1)})
R.single("x-matmul-vector-batch", "MatMul of a vector and a batch", "MatMul",
         {"a": randn(4), "b": randn(2, 3, 4, 5, seed=1)})
R.single("x-matmul-batch-broadcast", "MatMul broadcasts batches both ways", "MatMul",
         {"a": randn(2, 1, 3, 4), "b": randn(5, 4, 2, seed=1)})
R.single("x-matmul-empty", "MatMul over an empty axis is zero", "MatMul",
         {"a": np.zeros((2, 0), f32), "b": np.zeros((0, 3), f32)},
         expected=[np.zeros((2, 3), f32)])
R.single("x-gemm-transposed-scalar-c", "Gemm: transposed, scaled, scalar C", "Gemm",
         {"a": randn(4, 2), "b": randn(3, 4, seed=1), "c": A(2.5, f32)},
         attrs={"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0})
R.single("x-gemm-column-c", "Gemm with a column C", "Gemm",
         {"a": randn(2, 4), "b": randn(4, 3, seed=1), "c": randn(2, 1, seed=2)})
R.single("x-gemm-no-c", "Gemm without C", "Gemm", {"a": randn(2, 4), "b": randn(4, 3, seed=1)})
R.single("x-einsum-ellipsis", "Einsum with an ellipsis", "Einsum",
         {"a": randn(2, 3, 4), "b": randn(2, 4, 5, seed=1)},
         attrs={"equation": "...ij,...jk->...ik"})
R.single("x-einsum-diagonal", "Einsum takes a diagonal", "Einsum", {"a": randn(3, 3)},
         attrs={"equation": "ii->i"})
R.single("x-einsum-implicit", "Einsum without an output sorts its letters", "Einsum",
         {"a": randn(2, 3), "b": randn(3, 4, seed=1)}, attrs={"equation": "bz,za"})
R.graph(
    "x-matmul-add-broadcast", "MatMul and an Add that broadcasts wider are no Gemm",
    lambda: [node("MatMul", ["a", "b"], ["m"]), node("Add", ["m", "c"], ["y"])],
    {"a": randn(3, 3), "b": randn(3, 1, seed=1), "c": randn(1, 4, seed=2)},
)
R.graph(
    "x-shape-arithmetic", "a target shape computed from another tensor's shape",
    lambda: [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Mul", ["n", "two"], ["m"]), node("Unsqueeze", ["m", "ax"], ["u"]),
        node("Concat", ["u", "rest"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"]),
    ],
    {"x": seq(2, 6)},
    inits={"zero": A(0, i64), "two": A(2, i64), "ax": I(0), "rest": I(-1)},
    dyn={"x": ["n", 6]},
)
R.graph(
    "x-dynamic-batch-matmul", "a named batch dimension through a product and a softmax",
    lambda: [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)],
    {"x": randn(3, 4)}, inits={"w": randn(4, 5, seed=1)}, dyn={"x": ["batch", 4]},
)
R.single("x-center-crop-pad", "CenterCropPad crops and pads", "CenterCropPad", {"x": seq(3, 6)},
         inits={"s": I(5, 3)}, opset=18, expected=ref)
R.single("x-col2im", "Col2Im", "Col2Im", {"x": seq(1, 4, 4)},
         inits={"i": I(3, 3), "b": I(2, 2)}, opset=18, expected=ref)
