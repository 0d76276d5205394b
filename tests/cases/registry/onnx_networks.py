"""Pooling, convolution, normalisation and image operators of ONNX."""

from __future__ import annotations

import numpy as np
from caselib import Registry, f32, i64, node, randn, seq

R = Registry("networks")
T = "apache/tvm#"
A = np.array

# --- ONNX: pooling and convolution
R.op(
    "o-avgpool-ceil-shape",
    T + "18594",
    "onnx-pool",
    "AveragePool with ceil_mode=1 and pads has one row too many",
    "9x9",
    "AveragePool",
    {"x": randn(1, 1, 17, 17)},
    {"y": (f32, [1, 1, 9, 9])},
    opset=19,
    attrs={"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1},
)
R.onnx(
    "o-pad-then-avgpool",
    "microsoft/onnxruntime#22177",
    "onnx-pool",
    "Pad followed by AveragePool changes value once fused",
    "padded zeros are counted (they are data)",
    lambda: [
        node("Pad", ["x", "p"], ["q"]),
        node("AveragePool", ["q"], ["y"], kernel_shape=[3, 3], strides=[1, 1]),
    ],
    {"x": randn(1, 2, 5, 5)},
    {"y": (f32, [1, 2, 5, 5])},
    {"p": A([0, 0, 1, 1, 0, 0, 1, 1], i64)},
)
R.op(
    "o-convtranspose-output-padding",
    T + "18601",
    "onnx-pool",
    "ConvTranspose ignores output_padding",
    "56-wide style result (here 10x10)",
    "ConvTranspose",
    {"x": randn(1, 2, 5, 5), "w": randn(2, 3, 3, 3, seed=1)},
    {"y": (f32, [1, 3, 10, 10])},
    attrs={"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
)
R.op(
    "o-convtranspose-output-shape",
    T + "19450",
    "onnx-pool",
    "ConvTranspose ignores output_shape",
    "the named output shape",
    "ConvTranspose",
    {"x": randn(1, 1, 3, 3), "w": randn(1, 2, 3, 3, seed=1)},
    {"y": (f32, [1, 2, 10, 8])},
    attrs={"strides": [3, 2], "output_shape": [10, 8]},
)
R.op(
    "o-conv1d-grouped-even-kernel",
    "iree-org/iree#17944",
    "onnx-pool",
    "Grouped Conv1D with an even kernel and symmetric pads does not legalize",
    "one longer than the input",
    "Conv",
    {"x": randn(1, 8, 9), "w": randn(8, 2, 4, seed=1), "b": randn(8, seed=2)},
    {"y": (f32, [1, 8, 10])},
    attrs={"group": 4, "kernel_shape": [4], "pads": [2, 2], "strides": [1], "dilations": [1]},
)
# --- ONNX: normalization
R.op(
    "o-layernorm-no-bias",
    T + "17966",
    "onnx-norm",
    "LayerNormalization without bias fails to import",
    "bias is optional",
    "LayerNormalization",
    {"x": randn(2, 3, 4)},
    {"y": (f32, [2, 3, 4])},
    {"s": randn(4, seed=1)},
)
R.op(
    "o-layernorm-three-outputs",
    T + "13074",
    "onnx-norm",
    "LayerNormalization's Mean and InvStdDev outputs",
    "three outputs with the kept-dims shape",
    "LayerNormalization",
    {"x": randn(2, 3, 4)},
    {"y": (f32, [2, 3, 4]), "mean": (f32, [2, 3, 1]), "isd": (f32, [2, 3, 1])},
    {"s": np.ones(4, f32), "b": np.zeros(4, f32)},
)
R.op(
    "o-batchnorm-inference",
    T + "18703",
    "onnx-norm",
    "BatchNormalization with training_mode=0 uses batch statistics",
    "running mean and variance",
    "BatchNormalization",
    {"x": randn(2, 3, 4, 4)},
    {"y": (f32, [2, 3, 4, 4])},
    {
        "s": A([1, 2, 3], f32),
        "b": A([0, 1, 2], f32),
        "m": A([5, -5, 1], f32),
        "v": A([4, 9, 1], f32),
    },
    opset=15,
)
R.op(
    "o-softmax-opset11",
    T + "20183",
    "onnx-norm",
    "Softmax at opset 11 with a middle axis",
    "input coerced to 2-D at `axis`",
    "Softmax",
    {"x": randn(2, 3, 4)},
    {"y": (f32, [2, 3, 4])},
    opset=11,
    attrs={"axis": 1},
    expected=lambda i: [(lambda e: e / e.sum((1, 2), keepdims=True))(np.exp(i["x"]))],
)
R.onnx(
    "o-simplified-layernorm-scale",
    "onnx/onnx#8203",
    "onnx-norm",
    "RMS-norm pattern before a Mul whose scale broadcasts wider than the last axis is fused",
    "broadcast result (1,3)",
    lambda: [
        node("Pow", ["x", "two"], ["p"]),
        node("ReduceMean", ["p"], ["m"], axes=[-1], keepdims=1),
        node("Add", ["m", "eps"], ["a"]),
        node("Sqrt", ["a"], ["r"]),
        node("Div", ["x", "r"], ["n"]),
        node("Mul", ["n", "s"], ["y"]),
    ],
    {"x": A([[3.0]], f32)},
    {"y": (f32, [1, 3])},
    {"two": A(2, f32), "eps": A(1e-5, f32), "s": A([1, 2, 3], f32)},
    opset=13,
)
# --- ONNX: image
R.op(
    "o-resize-nearest-2p5",
    T + "19570",
    "onnx-image",
    "Resize nearest, half_pixel, scale 2.5: coordinates from the floored size",
    "spec coordinates",
    "Resize",
    {"x": seq(1, 1, 3, 3)},
    {"y": (f32, [1, 1, 7, 7])},
    {"s": A([1, 1, 2.5, 2.5], f32)},
    names=["x", "", "s"],
    opset=13,
    attrs={"mode": "nearest", "coordinate_transformation_mode": "half_pixel"},
)
R.op(
    "o-resize-round-prefer-floor",
    T + "19500",
    "onnx-image",
    "Resize nearest with round_prefer_floor, scale 1.5",
    "spec rounding",
    "Resize",
    {"x": seq(1, 1, 3, 3)},
    {"y": (f32, [1, 1, 4, 4])},
    {"s": A([1, 1, 1.5, 1.5], f32)},
    names=["x", "", "s"],
    opset=13,
    attrs={
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
    },
)
R.op(
    "o-roialign-half-pixel",
    T + "19501",
    "onnx-image",
    "RoiAlign ignores coordinate_transformation_mode=half_pixel",
    "half-pixel shift applied",
    "RoiAlign",
    {"x": randn(1, 1, 10, 10), "r": A([[1.2, 1.7, 6.3, 7.9], [0, 0, 4.4, 5.1]], f32)},
    {"y": (f32, [2, 1, 3, 3])},
    {"b": A([0, 0], i64)},
    opset=16,
    attrs={
        "output_height": 3,
        "output_width": 3,
        "sampling_ratio": 2,
        "spatial_scale": 1.0,
        "coordinate_transformation_mode": "half_pixel",
        "mode": "avg",
    },
)
R.op(
    "o-nms-runtime-max",
    T + "19544",
    "onnx-image",
    "NonMaxSuppression whose max_output_boxes_per_class arrives at run time returns nothing",
    "kept boxes",
    "NonMaxSuppression",
    {
        "b": A([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], f32),
        "s": A([[[0.9, 0.75, 0.6]]], f32),
        "m": A([2], i64),
    },
    {"y": (i64, [2, 3])},
    {"t": A([0.5], f32)},
    expected=[A([[0, 0, 0], [0, 0, 2]], i64)],
)
