"""ONNX operators that importers lack."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, f64, i8, i32, i64, node, randn, rng, seq, u8

R = Registry("missing")
T = "apache/tvm#"
A = np.array

_W = {
    "x": randn(3, 2, 4),
    "w": randn(1, 20, 4, seed=1) * 0.5,
    "r": randn(1, 20, 5, seed=2) * 0.5,
    "b": randn(1, 40, seed=3) * 0.1,
}
R.op(
    "o-lstm",
    T + "20124",
    "onnx-missing",
    "LSTM is not supported",
    "Y, Y_h, Y_c",
    "LSTM",
    {"x": _W["x"]},
    {"y": (f32, [3, 1, 2, 5]), "h": (f32, [1, 2, 5]), "c": (f32, [1, 2, 5])},
    {"w": _W["w"], "r": _W["r"], "b": _W["b"]},
    opset=14,
    attrs={"hidden_size": 5},
    expected=lambda i: _lstm(i["x"], _W["w"][0], _W["r"][0], _W["b"][0]),
)


def _lstm(x, w, r, b):
    def sg(z):
        return 1 / (1 + np.exp(-z))

    h = np.zeros((x.shape[1], 5))
    c = np.zeros_like(h)
    ys = []
    for t in range(x.shape[0]):
        z = x[t].astype(f64) @ w.T + h @ r.T + b[:20] + b[20:]
        i, o, f, g = sg(z[:, :5]), sg(z[:, 5:10]), sg(z[:, 10:15]), np.tanh(z[:, 15:])
        c = f * c + i * g
        h = o * np.tanh(c)
        ys.append(h)
    return [np.stack(ys)[:, None].astype(f32), h[None].astype(f32), c[None].astype(f32)]


R.op(
    "o-qlinearconv",
    T + "20124",
    "onnx-missing",
    "QLinearConv is not supported",
    "quantized convolution",
    "QLinearConv",
    {"x": rng(0).integers(0, 255, (1, 1, 5, 5)).astype(u8)},
    {"y": (u8, [1, 1, 3, 3])},
    {
        "xs": A(0.02, f32),
        "xz": A(120, u8),
        "w": rng(1).integers(0, 255, (1, 1, 3, 3)).astype(u8),
        "ws": A([0.01], f32),
        "wz": A([130], u8),
        "ys": A(0.05, f32),
        "yz": A(128, u8),
    },
    opset=13,
)


def _loop_nodes():
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [node("Mul", ["s_in", "two"], ["s_out"]), node("Identity", ["c_in"], ["c_out"])],
        "body",
        [
            helper.make_tensor_value_info("it", TensorProto.INT64, []),
            helper.make_tensor_value_info("c_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s_in", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("c_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s_out", TensorProto.FLOAT, [3]),
        ],
    )
    return [node("Loop", ["n", "c", "x"], ["y"], body=body)]


R.onnx(
    "o-loop-constant-trip",
    T + "17767",
    "onnx-missing",
    "Loop is not supported",
    "body applied n times",
    _loop_nodes,
    {"x": A([1, 2, 3], f32)},
    {"y": (f32, [3])},
    {"n": A(4, i64), "c": A(True), "two": A(2, f32)},
    opset=13,
    expected=[A([16, 32, 48], f32)],
)
R.op(
    "o-reversesequence",
    T + "20124",
    "onnx-missing",
    "ReverseSequence is not supported",
    "each batch reversed up to its length",
    "ReverseSequence",
    {"x": seq(4, 2)},
    {"y": (f32, [4, 2])},
    {"l": A([3, 4], i64)},
    opset=10,
    attrs={"batch_axis": 1, "time_axis": 0},
)
R.op(
    "o-softmax-cross-entropy",
    "openvinotoolkit/openvino#20977",
    "onnx-missing",
    "SoftmaxCrossEntropyLoss with class weights",
    "weighted mean loss",
    "SoftmaxCrossEntropyLoss",
    {"x": randn(3, 5), "t": A([1, 0, 4], i64)},
    {"y": (f32, [])},
    {"w": A([0.2, 0.3, 0.6, 0.1, 0.5], f32)},
    opset=13,
    attrs={"reduction": "mean"},
)
R.op(
    "o-attention-23",
    "microsoft/onnxruntime#24554",
    "onnx-missing",
    "ai.onnx Attention (opset 23) taken for the com.microsoft operator of the same name",
    "scaled dot-product attention",
    "Attention",
    {"q": randn(1, 2, 3, 4), "k": randn(1, 2, 5, 4, seed=1), "v": randn(1, 2, 5, 4, seed=2)},
    {"y": (f32, [1, 2, 3, 4])},
    opset=23,
)
R.op(
    "o-matmulinteger-vector-zp",
    "nod-ai/AMD-SHARK-ModelDev#906",
    "onnx-quant",
    "MatMulInteger, uint8 x int8, per-column zero point",
    "int32 product of the shifted operands",
    "MatMulInteger",
    {"a": rng(0).integers(0, 255, (3, 4)).astype(u8)},
    {"y": (i32, [3, 2])},
    {"b": rng(1).integers(-128, 127, (4, 2)).astype(i8), "az": A(117, u8), "bz": A([3, -5], i8)},
    opset=10,
    expected=lambda i: [
        (i["a"].astype(i32) - 117)
        @ (rng(1).integers(-128, 127, (4, 2)).astype(i32) - A([3, -5], i32))
    ],
)


def _if_nodes():
    from onnx import TensorProto, helper

    def g(name, op):
        return helper.make_graph(
            [node(op, ["x", "k"], [name + "o"])],
            name,
            [],
            [helper.make_tensor_value_info(name + "o", TensorProto.FLOAT, [3])],
        )

    return [node("If", ["c"], ["y"], then_branch=g("t", "Add"), else_branch=g("e", "Mul"))]


R.onnx(
    "o-if-outer-scope",
    T + "18946",
    "onnx-control",
    "If whose branches read outer values",
    "the taken branch's value",
    _if_nodes,
    {"c": A(False), "x": A([1, 2, 3], f32)},
    {"y": (f32, [3])},
    {"k": A(10, f32)},
    opset=13,
)
