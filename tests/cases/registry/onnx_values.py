"""Values, dtypes, NaN, infinities and precision of ONNX operators."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, f64, i32, i64, node, randn

R = Registry("values")
T = "apache/tvm#"
A = np.array

# --- ONNX: values and dtypes
R.op(
    "o-round-half-even",
    T + "18590",
    "onnx-value",
    "Round sends .5 away from zero",
    "ties go to the even integer",
    "Round",
    {"x": A([0.5, 1.5, 2.5, -0.5, -2.5, 3.49], f32)},
    {"y": (f32, [6])},
)
R.onnx(
    "o-const-int-div-big",
    T + "20281",
    "onnx-constfold",
    "int64 Div of two constants is folded through float64",
    "exact integer quotient, truncated toward zero",
    lambda: [node("Div", ["a", "b"], ["q"]), node("Add", ["q", "x"], ["y"])],
    {"x": np.zeros(3, i64)},
    {"y": (i64, [3])},
    {"a": A([2**53 + 1, -9, 9], i64), "b": A([1, 4, -4], i64)},
    expected=[A([2**53 + 1, -2, -2], i64)],
)
R.onnx(
    "o-const-min-max",
    T + "20117",
    "onnx-constfold",
    "Min/Max of two constant tensors raises TypeError at import",
    "element-wise minimum / maximum",
    lambda: [
        node("Min", ["a", "b"], ["lo"]),
        node("Max", ["a", "b"], ["hi"]),
        node("Sub", ["hi", "lo"], ["d"]),
        node("Mul", ["d", "x"], ["y"]),
    ],
    {"x": A([1, 2, 3], f32)},
    {"y": (f32, [3])},
    {"a": A([1, 5, -2], f32), "b": A([4, 0, -7], f32)},
)
R.op(
    "o-pow-int-base-float-exp",
    T + "15718",
    "onnx-dtype",
    "Pow with int32 base and float32 exponent rejected",
    "result in the base's dtype",
    "Pow",
    {"x": A([1, 2, 3, 4], i32), "e": A([2, 2, 2, 3], f32)},
    {"y": (i32, [4])},
    expected=[A([1, 4, 9, 64], i32)],
)
R.op(
    "o-prelu-channel-slope",
    T + "18598",
    "onnx-value",
    "PRelu with a per-channel slope gives wrong values",
    "slope broadcast as in the ONNX spec",
    "PRelu",
    {"x": randn(1, 4, 3, 3)},
    {"y": (f32, [1, 4, 3, 3])},
    {"s": A([0.1, -0.5, 2.0, 0.0], f32).reshape(4, 1, 1)},
)
R.op(
    "o-argmin-int-ties",
    "openvinotoolkit/openvino#13491",
    "onnx-reduce",
    "ArgMin over a long int vector with many ties returns a wrong index",
    "first index of the smallest value",
    "ArgMin",
    {"x": A([0] * 5 + [-1] * 14, i32)},
    {"y": (i64, [1])},
    attrs={"axis": 0, "keepdims": 1},
)
R.op(
    "o-reducemean-opset13-axes",
    T + "18698",
    "onnx-reduce",
    "ReduceMean at opset 13: converter of a newer opset chosen, `axes` attribute lost",
    "mean over the named axis only",
    "ReduceMean",
    {"x": randn(2, 3, 4)},
    {"y": (f32, [2, 3])},
    opset=13,
    attrs={"axes": [2], "keepdims": 0},
)
R.onnx(
    "o-flatten-reducesum",
    T + "7270",
    "onnx-reduce",
    "Reshape to one dimension, Abs, then ReduceSum with keepdims gives a wrong shape",
    "shape [1]",
    lambda: [
        node("Reshape", ["x", "s"], ["r"]),
        node("Abs", ["r"], ["a"]),
        node("ReduceSum", ["a", "ax"], ["y"], keepdims=1),
    ],
    {"x": randn(2, 3, 2)},
    {"y": (f32, [1])},
    {"s": A([-1], i64), "ax": A([0], i64)},
    opset=13,
)
# --- ONNX: NaN, infinities, precision
R.op(
    "o-relu-nan",
    T + "19572",
    "onnx-nan",
    "Relu(NaN) returns 0",
    "NaN",
    "Relu",
    {"x": A([np.nan, 1, -2, np.nan], f32)},
    {"y": (f32, [4])},
    expected=[A([np.nan, 1, 0, np.nan], f32)],
)
R.op(
    "o-min-nan",
    T + "19540",
    "onnx-nan",
    "Min drops a NaN in its first operand",
    "NaN when either operand is NaN",
    "Min",
    {"a": A([np.nan, 3, 4, np.nan], f32), "b": A([7, np.nan, 9, np.nan], f32)},
    {"y": (f32, [4])},
    expected=[A([np.nan, np.nan, 4, np.nan], f32)],
)
R.op(
    "o-sinh-near-limit",
    T + "19559",
    "onnx-precision",
    "Sinh overflows to inf although the result fits float32",
    "finite value",
    "Sinh",
    {"x": A([88.9, 89.1, -89.0, 1e-6], f32)},
    {"y": (f32, [4])},
    expected=lambda i: [np.sinh(i["x"].astype(f64)).astype(f32)],
    tol=(1e-4, 1e-12),
)
R.op(
    "o-atan-huge",
    T + "19560",
    "onnx-precision",
    "Atan of a huge finite value returns 0",
    "close to pi/2 with the sign of x",
    "Atan",
    {"x": A([5e21, -3e24, 1e30, 2.0], f32)},
    {"y": (f32, [4])},
)
R.op(
    "o-softplus-large",
    T + "18241",
    "onnx-precision",
    "Softplus of a large input is inf",
    "about x",
    "Softplus",
    {"x": A([250.0, 600.0, -30.0, 1.0], f32)},
    {"y": (f32, [4])},
    expected=lambda i: [np.logaddexp(0, i["x"].astype(f64)).astype(f32)],
)
R.op(
    "o-layernorm-large-mean",
    T + "19592",
    "onnx-precision",
    "LayerNormalization loses all digits when the mean is large",
    "two-pass accuracy",
    "LayerNormalization",
    {"x": A([[70000, 70001, 70003, 70004]], f32)},
    {"y": (f32, [1, 4])},
    {"s": np.ones(4, f32), "b": np.zeros(4, f32)},
    expected=lambda i: [
        ((lambda z: (z - z.mean()) / np.sqrt(z.var() + 1e-5))(i["x"].astype(f64))).astype(f32)
    ],
    tol=(1e-2, 1e-2),
)
