"""Convolution, pooling, normalisation, image and recurrent operators: siblings of known faults."""

from __future__ import annotations

import numpy as np
from caselib import Registry, conv_transpose2d, f16, f32, i64, node, randn, ref, seq

R = Registry("networks")
A = np.array
X44 = seq(1, 1, 4, 4)


def positive(*shape):
    return np.abs(randn(*shape, seed=9)) + 0.5


def _lrn(x, size, alpha, beta, bias):
    """ONNX's formula; its reference sums over as many channels as there are batches."""
    below, above = (size - 1) // 2, size // 2
    total = np.stack(
        [(x[:, max(0, c - below) : c + above + 1] ** 2).sum(1) for c in range(x.shape[1])], 1
    )
    return (x / (bias + alpha / size * total) ** beta).astype(f32)


# --- convolution ------------------------------------------------------------------------------
R.single(
    "n-conv-uneven-pads",
    "Conv with four different pads",
    "Conv",
    {"x": randn(1, 2, 5, 6)},
    inits={"w": randn(3, 2, 3, 3, seed=1)},
    attrs={"pads": [0, 1, 2, 3]},
)
R.single(
    "n-conv-same-lower",
    "Conv with auto_pad SAME_LOWER and an even kernel",
    "Conv",
    {"x": randn(1, 1, 5, 5)},
    inits={"w": randn(1, 1, 2, 2, seed=1)},
    attrs={"auto_pad": "SAME_LOWER", "strides": [2, 2]},
)
R.single(
    "n-conv-same-upper-dilated",
    "Conv with SAME_UPPER and dilation",
    "Conv",
    {"x": randn(1, 1, 7, 7)},
    inits={"w": randn(1, 1, 3, 3, seed=1)},
    attrs={"auto_pad": "SAME_UPPER", "dilations": [2, 2]},
    expected=ref,
)
R.single(
    "n-conv-runtime-weight",
    "Conv whose weight is an input",
    "Conv",
    {"x": randn(1, 4, 5, 5), "w": randn(4, 2, 3, 3, seed=1), "b": randn(4, seed=2)},
    attrs={"group": 2},
)
R.single(
    "n-conv3d-strided",
    "Conv over three axes",
    "Conv",
    {"x": randn(1, 2, 4, 5, 6)},
    inits={"w": randn(2, 2, 2, 3, 3, seed=1)},
    attrs={"strides": [1, 2, 2]},
)
R.single(
    "n-conv-depthwise-multiplier",
    "depthwise Conv with two filters per channel",
    "Conv",
    {"x": randn(1, 3, 5, 5)},
    inits={"w": randn(6, 1, 3, 3, seed=1)},
    attrs={"group": 3},
)
R.single(
    "n-conv-batch-zero",
    "Conv of an empty batch",
    "Conv",
    {"x": np.zeros((0, 2, 5, 5), f32)},
    inits={"w": randn(3, 2, 3, 3)},
    expected=[np.zeros((0, 3, 3, 3), f32)],
)
R.single(
    "n-convtranspose-grouped",
    "ConvTranspose: groups, dilation, uneven pads",
    "ConvTranspose",
    {"x": randn(1, 4, 4, 5)},
    inits={"w": randn(4, 2, 3, 3, seed=1)},
    attrs={"group": 2, "strides": [2, 2], "dilations": [2, 2], "pads": [0, 1, 2, 1]},
    expected=[
        conv_transpose2d(
            randn(1, 4, 4, 5).astype(np.float64), randn(4, 2, 3, 3, seed=1), 2, [0, 1, 2, 1], 2, 2
        ).astype(f32)
    ],
)
R.single(
    "n-convtranspose-1d-same",
    "ConvTranspose over one axis with SAME_UPPER",
    "ConvTranspose",
    {"x": randn(1, 2, 5)},
    inits={"w": randn(2, 3, 4, seed=1)},
    attrs={"auto_pad": "SAME_UPPER", "strides": [2]},
)
R.single(
    "n-convtranspose-bias",
    "ConvTranspose with a bias and output_padding",
    "ConvTranspose",
    {"x": randn(1, 2, 3, 3)},
    inits={"w": randn(2, 2, 2, 2, seed=1), "b": A([5, -5], f32)},
    attrs={"strides": [3, 3], "output_padding": [1, 2]},
)

# --- pooling ----------------------------------------------------------------------------------
R.single(
    "n-maxpool-ceil-dilated",
    "MaxPool: ceil_mode and dilation",
    "MaxPool",
    {"x": randn(1, 1, 8, 9)},
    attrs={"kernel_shape": [2, 3], "dilations": [2, 1], "strides": [3, 2], "ceil_mode": 1},
)
R.single(
    "n-maxpool-indices-storage",
    "MaxPool's indices in column order",
    "MaxPool",
    {"x": X44},
    outputs=("y", "i"),
    attrs={"kernel_shape": [2, 2], "storage_order": 1, "strides": [2, 2]},
    expected=ref,
)
R.single(
    "n-maxpool-indices-pads",
    "MaxPool's indices count the tensor without pads",
    "MaxPool",
    {"x": randn(1, 2, 4, 4)},
    outputs=("y", "i"),
    attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
)
R.single(
    "n-maxpool-negative-pads",
    "MaxPool pads with minus infinity",
    "MaxPool",
    {"x": -positive(1, 1, 3, 3)},
    attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
)
R.single(
    "n-maxpool-int8",
    "MaxPool of int8",
    "MaxPool",
    {"x": seq(1, 1, 4, 4, dtype=np.int8, start=-8)},
    attrs={"kernel_shape": [2, 2]},
)
R.single(
    "n-averagepool-count-include",
    "AveragePool counting its pads",
    "AveragePool",
    {"x": X44},
    attrs={"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1},
)
R.single(
    "n-averagepool-ceil-include",
    "AveragePool: ceil_mode with count_include_pad",
    "AveragePool",
    {"x": randn(1, 1, 5, 5)},
    opset=19,
    attrs={
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": [0, 0, 1, 1],
        "ceil_mode": 1,
        "count_include_pad": 1,
    },
)
R.single(
    "n-averagepool-same-lower",
    "AveragePool with SAME_LOWER",
    "AveragePool",
    {"x": randn(1, 1, 5, 5)},
    attrs={"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
)
R.single(
    "n-averagepool-1d",
    "AveragePool over one axis",
    "AveragePool",
    {"x": randn(1, 2, 7)},
    attrs={"kernel_shape": [3], "strides": [2], "pads": [1, 1]},
)
R.single(
    "n-lppool",
    "LpPool with p=3",
    "LpPool",
    {"x": randn(1, 1, 4, 4)},
    opset=18,
    attrs={"kernel_shape": [2, 2], "p": 3},
)
R.single(
    "n-globalmaxpool-3d",
    "GlobalMaxPool over three axes",
    "GlobalMaxPool",
    {"x": randn(1, 2, 2, 3, 4)},
)
R.single(
    "n-maxunpool",
    "MaxUnpool into a larger shape",
    "MaxUnpool",
    {"x": A([[[[1, 2], [3, 4]]]], f32), "i": A([[[[5, 7], [13, 15]]]], i64)},
    inits={"s": A([1, 1, 5, 5], i64)},
    attrs={"kernel_shape": [2, 2], "strides": [2, 2]},
    expected=ref,
)

# --- normalisation ----------------------------------------------------------------------------
_BN = {"s": A([1, 2], f32), "b": A([0, 1], f32), "m": A([5, -5], f32), "v": A([4, 9], f32)}
R.single(
    "n-batchnorm-opset7",
    "BatchNormalization at opset 7",
    "BatchNormalization",
    {"x": randn(2, 2, 3)},
    inits=_BN,
    opset=7,
    attrs={"epsilon": 1e-2},
)
R.single(
    "n-batchnorm-2d",
    "BatchNormalization of a matrix",
    "BatchNormalization",
    {"x": randn(4, 2)},
    inits=_BN,
)
R.single(
    "n-instancenorm-1d",
    "InstanceNormalization over one axis",
    "InstanceNormalization",
    {"x": randn(2, 2, 5) + 100},
    inits={"s": _BN["s"], "b": _BN["b"]},
    tol=(1e-3, 1e-3),
)
R.single(
    "n-layernorm-axis-one",
    "LayerNormalization over the last two axes",
    "LayerNormalization",
    {"x": randn(2, 3, 4)},
    inits={"s": randn(3, 4, seed=1), "b": randn(3, 4, seed=2)},
    attrs={"axis": -2},
)
R.single(
    "n-layernorm-constant-row",
    "LayerNormalization of equal numbers is the bias",
    "LayerNormalization",
    {"x": np.full((1, 4), 3e4, f32)},
    inits={"s": np.ones(4, f32), "b": A([1, 2, 3, 4], f32)},
    expected=[A([[1, 2, 3, 4]], f32)],
)
R.single(
    "n-layernorm-float16",
    "LayerNormalization of float16 sums in float32",
    "LayerNormalization",
    {"x": randn(2, 300).astype(f16) + f16(200)},
    inits={"s": np.ones(300, f16), "b": np.zeros(300, f16)},
    tol=(2e-2, 2e-2),
)
R.single(
    "n-groupnorm-21",
    "GroupNormalization at opset 21: scale per channel",
    "GroupNormalization",
    {"x": randn(1, 4, 3)},
    opset=21,
    inits={"s": A([1, 2, 3, 4], f32), "b": A([0, 1, 2, 3], f32)},
    attrs={"num_groups": 2},
    expected=ref,
)
R.single(
    "n-lrn-even-size",
    "LRN with an even size",
    "LRN",
    {"x": randn(1, 5, 2, 2)},
    attrs={"size": 4, "alpha": 0.3, "beta": 0.5, "bias": 2.0},
    expected=lambda m, i: [_lrn(i["x"], 4, 0.3, 0.5, 2.0)],
)
R.single(
    "n-lpnormalization-zero",
    "LpNormalization of a zero row",
    "LpNormalization",
    {"x": A([[0, 0], [3, 4]], f32)},
    attrs={"p": 2, "axis": -1},
    expected=[A([[0, 0], [0.6, 0.8]], f32)],
)
R.single(
    "n-softmax-opset11-default",
    "Softmax at opset 11 flattens from axis 1",
    "Softmax",
    {"x": randn(2, 3, 4)},
    opset=11,
)
R.single(
    "n-logsoftmax-opset11-axis-zero",
    "LogSoftmax at opset 11 over everything",
    "LogSoftmax",
    {"x": randn(2, 3)},
    opset=11,
    attrs={"axis": 0},
)
R.single(
    "n-hardmax-opset11",
    "Hardmax at opset 11 flattens",
    "Hardmax",
    {"x": randn(2, 3, 4)},
    opset=11,
    attrs={"axis": 1},
)
R.single(
    "n-meanvariance",
    "MeanVarianceNormalization with default axes",
    "MeanVarianceNormalization",
    {"x": randn(2, 3, 4, 4)},
)
R.single(
    "n-prelu-scalar",
    "PRelu with a single slope",
    "PRelu",
    {"x": randn(2, 3)},
    inits={"s": A([0.25], f32)},
)

# --- recurrent --------------------------------------------------------------------------------
_RNN = {
    "w": randn(2, 12, 4, seed=1) * 0.5,
    "r": randn(2, 12, 3, seed=2) * 0.5,
    "b": randn(2, 24, seed=3) * 0.1,
}
R.single(
    "n-lstm-bidirectional-lengths",
    "LSTM both ways with sequence lengths",
    "LSTM",
    {"x": randn(4, 2, 4)},
    outputs=("y", "h", "c"),
    inits={**_RNN, "n": A([2, 4], np.int32)},
    attrs={"hidden_size": 3, "direction": "bidirectional"},
    opset=14,
)
R.single(
    "n-gru-linear-before-reset",
    "GRU with linear_before_reset",
    "GRU",
    {"x": randn(3, 2, 4)},
    outputs=("y", "h"),
    inits={"w": randn(1, 9, 4, seed=1), "r": randn(1, 9, 3, seed=2), "b": randn(1, 18, seed=3)},
    attrs={"hidden_size": 3, "linear_before_reset": 1},
    opset=14,
)
R.single(
    "n-gru-last-only",
    "GRU whose first output is left out",
    "GRU",
    {"x": randn(3, 2, 4)},
    outputs=("", "h"),
    inits={"w": randn(1, 9, 4, seed=1), "r": randn(1, 9, 3, seed=2)},
    attrs={"hidden_size": 3},
    opset=14,
)
R.single(
    "n-rnn-reverse-relu",
    "RNN backwards with Relu",
    "RNN",
    {"x": randn(3, 2, 4)},
    outputs=("y", "h"),
    inits={"w": randn(1, 3, 4, seed=1), "r": randn(1, 3, 3, seed=2)},
    attrs={"hidden_size": 3, "direction": "reverse", "activations": ["Relu"]},
    opset=14,
)
R.single(
    "n-dft-onesided",
    "one-sided DFT along a named axis",
    "DFT",
    {"x": randn(1, 6, 2, 1)},
    opset=17,
    attrs={"axis": 1, "onesided": 1},
    expected=ref,
    tol=(1e-3, 1e-4),
)
R.graph(
    "n-conv-shared-weight",
    "one weight in two convolutions of different strides",
    lambda: [
        node("Conv", ["x", "w"], ["a"], strides=[1, 1]),
        node("Conv", ["a", "w"], ["y"], strides=[2, 2]),
    ],
    {"x": randn(1, 2, 8, 8)},
    inits={"w": randn(2, 2, 3, 3, seed=1)},
)
