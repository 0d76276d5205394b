"""Values, dtypes and rounding: siblings of known faults, judged by ONNX Runtime or by hand."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f16, f32, f64, i8, i32, i64, node, randn, rng, u8

# fmt: off
R = Registry("values")
A = np.array
NAN, INF = np.nan, np.inf

# --- integers --------------------------------------------------------------------------------
_N = A([-7, -7, 7, 7, 5, -1], i64)
_D = A([2, -2, 2, -2, 5, 3], i64)
R.single("v-div-int-truncates", "signed Div truncates", "Div", {"a": _N, "b": _D})
R.single("v-div-uint8", "unsigned Div", "Div", {"a": A([7, 255, 3], u8), "b": A([2, 16, 5], u8)})
R.single("v-mod-int-floor", "Mod takes the divisor's sign", "Mod", {"a": _N, "b": _D})
R.single("v-mod-fmod-int", "fmod=1 takes the dividend's sign", "Mod", {"a": _N, "b": _D},
         attrs={"fmod": 1})
R.single(
    "v-mod-fmod-float",
    "fmod=1 on floats, infinities included",
    "Mod",
    {"a": A([-7.5, 7.5, 3, -0.5], f32), "b": A([2, -2, INF, 0.3], f32)},
    attrs={"fmod": 1},
    expected=[np.fmod(A([-7.5, 7.5, 3, -0.5], f32), A([2, -2, INF, 0.3], f32))],
)
R.single("v-bitwise-not", "BitwiseNot has one operand", "BitwiseNot",
         {"x": A([0, 5, -1], i32)}, opset=18)
R.single(
    "v-bitshift-right-uint8", "BitShift keeps eight bits", "BitShift",
    {"x": A([200, 3, 255], u8), "s": A([1, 7, 4], u8)}, attrs={"direction": "RIGHT"},
)
R.single(
    "v-bitshift-left-uint8", "BitShift LEFT drops high bits", "BitShift",
    {"x": A([200, 3, 255], u8), "s": A([1, 7, 4], u8)}, attrs={"direction": "LEFT"},
    expected=[A([144, 128, 240], u8)],
)
R.single("v-abs-int-min", "Abs of the smallest int8 wraps", "Abs", {"x": A([-128, -5, 5], i8)},
         expected=[A([-128, 5, 5], i8)])
R.single("v-neg-int64", "Neg of int64", "Neg", {"x": A([2**62, -5, 0], i64)})
R.single("v-sign-int8", "Sign of int8", "Sign", {"x": A([-128, 0, 4], i8)})
R.single("v-sum-int64-reduce", "ReduceSum of large int64 stays exact", "ReduceSum",
         {"x": A([[2**53, 1], [2**60, 3]], i64)}, inits={"a": A([1], i64)},
         expected=[A([[2**53 + 1], [2**60 + 3]], i64)])
R.single("v-pow-int-negative-base", "Pow of a negative int base", "Pow",
         {"x": A([-2, -3, 2], i32), "e": A([3, 2, 5], i32)})
R.single("v-pow-float-base-int-exp", "Pow with float base and int64 exponent", "Pow",
         {"x": A([-2, 0.5, 0], f32), "e": A([3, -2, 0], i64)})
R.single("v-max-int8-three", "Max of three with broadcasting", "Max",
         {"a": A([[1], [-5]], i8), "b": A([0, 2, -9], i8), "c": A(1, i8)})
R.single("v-mean-four", "Mean of four broadcast operands", "Mean",
         {"a": randn(2, 1), "b": randn(3, seed=1), "c": A(2, f32), "d": randn(2, 3, seed=3)})

# --- casts -----------------------------------------------------------------------------------
R.single("v-cast-float-int8-trunc", "float to int8 truncates", "Cast",
         {"x": A([1.9, -1.9, 126.5, -0.5], f32)}, attrs={"to": 3})
R.single("v-cast-float-bool-nan", "NaN and tiny numbers are true", "Cast",
         {"x": A([NAN, 0, -0.0, 1e-40, -1], f32)}, attrs={"to": 9},
         expected=[A([True, False, False, True, True])])
R.single("v-cast-bool-float", "bool to float16", "Cast", {"x": A([True, False])},
         attrs={"to": 10})
R.single("v-cast-int64-int32-wraps", "int64 to int32 keeps the low bits", "Cast",
         {"x": A([2**32 + 5, -(2**31) - 1], i64)}, attrs={"to": 6})
R.single("v-cast-uint8-int8", "uint8 to int8 wraps", "Cast", {"x": A([200, 127, 128], u8)},
         attrs={"to": 3})
R.single("v-cast-double-float16", "float64 to float16 overflows to infinity", "Cast",
         {"x": A([1e6, -7e4, 1e-9, 1.0009765625], f64)}, attrs={"to": 10})
R.single("v-cast-float-large-int32", "floats at the border of int32", "Cast",
         {"x": A([2147483520.0, -2147483648.0, 16777217.0], f32)}, attrs={"to": 6})
R.single("v-castlike", "CastLike takes the other's type", "CastLike",
         {"x": A([1.5, -2.5], f32), "t": A([1], i64)},
         expected=[A([1, -2], i64)])

# --- NaN, infinities, signed zeros ------------------------------------------------------------
R.single("v-max-nan", "Max passes NaN on", "Max",
         {"a": A([NAN, 1, INF], f32), "b": A([1, NAN, 2], f32)},
         expected=[A([NAN, NAN, INF], f32)])
R.single("v-clip-nan", "Clip passes NaN on", "Clip", {"x": A([NAN, -5, 5, INF], f32)},
         inits={"lo": A(-1, f32), "hi": A(2, f32)}, expected=[A([NAN, -1, 2, 2], f32)])
R.single("v-clip-min-above-max", "Clip with min > max gives max", "Clip",
         {"x": A([-5, 0, 5], f32)}, inits={"lo": A(3, f32), "hi": A(1, f32)}, opset=13,
         expected=[A([1, 1, 1], f32)])
R.single("v-clip-only-max", "Clip without min", "Clip", {"x": A([-5, 0, 5], i64)},
         inits={"hi": A(1, i64)}, names=["x", "", "hi"])
R.single("v-clip-opset6", "Clip with attributes", "Clip", {"x": A([-5, 0.5, 5], f32)}, opset=6,
         attrs={"min": -1.0, "max": 1.0})
R.single("v-leakyrelu-nan", "LeakyRelu passes NaN on", "LeakyRelu",
         {"x": A([NAN, -2, 2], f32)}, attrs={"alpha": 0.1})
R.single("v-isinf-positive-only", "IsInf detects only what it is asked for", "IsInf",
         {"x": A([INF, -INF, NAN, 1], f32)}, attrs={"detect_negative": 0})
R.single("v-isnan-float16", "IsNaN of float16", "IsNaN", {"x": A([NAN, 1, INF], f16)})
R.single("v-reducemax-infinities", "ReduceMax over minus infinities", "ReduceMax",
         {"x": A([[-INF, -INF], [-INF, 3]], f32)}, opset=13,
         attrs={"axes": [1], "keepdims": 0})
R.single("v-logsumexp-large", "ReduceLogSumExp does not overflow", "ReduceLogSumExp",
         {"x": A([[1000, 1000], [-1000, -1000]], f32)}, opset=13, attrs={"axes": [1]},
         expected=[A([[1000 + np.log(2)], [-1000 + np.log(2)]], f32)])
R.single("v-softmax-minus-infinity", "Softmax of a masked row", "Softmax",
         {"x": A([[0, -INF, 1], [3, 3, -INF]], f32)})
R.single("v-where-nan", "Where does not mix in the branch not taken", "Where",
         {"c": A([True, False]), "a": A([1, NAN], f32), "b": A([NAN, 2], f32)})
R.single("v-equal-nan", "NaN equals nothing", "Equal",
         {"a": A([NAN, 1, INF], f32), "b": A([NAN, 1, INF], f32)})
R.single("v-less-nan", "NaN is not less", "Less",
         {"a": A([NAN, 1, 1], f32), "b": A([1, NAN, 2], f32)})
R.single("v-sign-nan-zero", "Sign of zeros", "Sign", {"x": A([0.0, -3, 2], f32)})
R.single("v-round-float16", "Round of float16 goes to even", "Round",
         {"x": A([0.5, 1.5, -2.5, 3.3], f16)})
R.single("v-erf-tails", "Erf far out", "Erf", {"x": A([-6, -1e-4, 0, 0.5, 7], f32)})
R.single("v-tan-gelu-tails", "Gelu (tanh) far out", "Gelu", {"x": A([-30, -1, 0, 3, 40], f32)},
         opset=20, attrs={"approximate": "tanh"})
R.single("v-mish-large", "Mish of large numbers", "Mish", {"x": A([-200, -1, 0, 200], f32)},
         opset=18, expected=[A([0, -0.30340147, 0, 200], f32)])
R.single("v-asinh-negative", "Asinh of large negative numbers", "Asinh",
         {"x": A([-2e3, -1, 0, 1e4], f32)}, expected=[np.arcsinh(A([-2e3, -1, 0, 1e4], f32))],
         )
R.single("v-hardsigmoid", "HardSigmoid clamps", "HardSigmoid", {"x": A([-9, 0.1, 9], f32)},
         attrs={"alpha": 0.25, "beta": 0.4})
R.single("v-shrink-bias", "Shrink with lambd and bias", "Shrink",
         {"x": A([-2, -0.5, 0.5, 2], f32)}, attrs={"lambd": 1.5, "bias": 0.5})
R.single("v-thresholdedrelu", "ThresholdedRelu is strict at alpha", "ThresholdedRelu",
         {"x": A([1, 1.5, 2], f32)}, attrs={"alpha": 1.5})
R.single("v-celu-large", "Celu with alpha", "Celu", {"x": A([-90, -1, 2], f32)},
         attrs={"alpha": 2.0})

# --- quantisation -----------------------------------------------------------------------------
R.single("v-quantize-half-even", "QuantizeLinear rounds to even and saturates", "QuantizeLinear",
         {"x": A([0.5, 1.5, 2.5, -0.5, 1e9, -1e9], f32)},
         inits={"s": A(1, f32), "z": A(0, u8)})
R.single("v-quantize-int8-axis", "QuantizeLinear per axis", "QuantizeLinear",
         {"x": randn(2, 3, 4) * 5}, inits={"s": A([0.1, 0.5, 2], f32), "z": A([0, -3, 7], i8)},
         opset=13, attrs={"axis": 1})
R.single("v-dequantize-axis-negative", "DequantizeLinear on a negative axis", "DequantizeLinear",
         {"x": rng(0).integers(-128, 127, (2, 3)).astype(i8)},
         inits={"s": A([0.1, 0.5, 2], f32), "z": A([0, -3, 7], i8)}, opset=13,
         attrs={"axis": -1})
R.single("v-dequantize-int32", "DequantizeLinear of int32 has no zero point", "DequantizeLinear",
         {"x": A([-70000, 3], i32)}, inits={"s": A(0.5, f32)}, opset=13)
R.single("v-dynamic-quantize", "DynamicQuantizeLinear", "DynamicQuantizeLinear",
         {"x": A([0, 2, -3, -2.5, 1.34, 0.5], f32)}, outputs=("y", "s", "z"))
R.single("v-dynamic-quantize-positive", "DynamicQuantizeLinear of positive numbers keeps zero",
         "DynamicQuantizeLinear", {"x": A([1, 2.1, 1.3, 2.5], f32)}, outputs=("y", "s", "z"))
R.graph(
    "v-qdq-matmul",
    "a quantised product between QuantizeLinear and DequantizeLinear",
    lambda: [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=1),
        node("MatMul", ["d", "v"], ["y"]),
    ],
    {"x": randn(3, 4)},
    inits={
        "s": A(0.02, f32), "z": A(128, u8), "w": rng(2).integers(-127, 127, (4, 2)).astype(i8),
        "ws": A([0.01, 0.03], f32), "wz": A([0, 0], i8),
    },
)
R.single(
    "v-qlinearmatmul-uint8", "QLinearMatMul rounds to even", "QLinearMatMul",
    {"a": rng(0).integers(0, 255, (2, 4)).astype(u8)},
    inits={"as": A(0.0066, f32), "az": A(113, u8), "b": rng(1).integers(0, 255, (4, 3)).astype(u8),
           "bs": A(0.00705, f32), "bz": A(114, u8), "ys": A(0.0107, f32), "yz": A(118, u8)},
)
R.single(
    "v-convinteger-pads", "ConvInteger pads with the zero point", "ConvInteger",
    {"x": rng(0).integers(0, 255, (1, 1, 4, 4)).astype(u8)},
    inits={"w": rng(1).integers(0, 255, (2, 1, 3, 3)).astype(u8), "xz": A(7, u8)},
    attrs={"pads": [1, 1, 1, 1]},
)
