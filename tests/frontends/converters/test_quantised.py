"""Quantised operators: integers must be equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single

RNG = np.random.default_rng(0)
F = np.float32


def unsigned(*shape: int) -> Any:
    return RNG.integers(0, 255, shape).astype(np.uint8)


def signed(*shape: int) -> Any:
    return RNG.integers(-128, 127, shape).astype(np.int8)


@pytest.mark.parametrize("depth", [4, 700])
@pytest.mark.parametrize("constants", [(), (1, 2, 3)])
def test_matmul_integer_is_exact(depth: int, constants: tuple[int, ...]) -> None:
    a, b = unsigned(3, depth), signed(depth, 2)
    az, bz = np.array(117, np.uint8), np.array([3, -5], np.int8)
    expected = (a.astype(np.int32) - 117) @ (b.astype(np.int32) - np.array([3, -5], np.int32))
    model, inputs = single("MatMulInteger", [a, b, az, bz], constants=constants)
    check(model, inputs, expected=[expected])


def test_conv_integer_over_many_channels() -> None:
    x, w = unsigned(1, 96, 5, 5), unsigned(2, 96, 3, 3)
    model, inputs = single("ConvInteger", [x, w, np.array(7, np.uint8)], pads=[1, 1, 1, 1])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check(model, inputs, session.run(None, inputs))


@pytest.mark.parametrize("axis", [0, 1])
def test_quantize_and_back(axis: int) -> None:
    x = (RNG.standard_normal((3, 4)) * 3).astype(F)
    count = x.shape[axis]
    scale = np.linspace(0.01, 0.1, count).astype(F)
    zero = RNG.integers(-5, 5, count).astype(np.int8)
    check(*single("QuantizeLinear", [x, scale, zero], axis=axis))
    check(*single("DequantizeLinear", [signed(3, 4), scale, zero], axis=axis))


def test_rounding_goes_to_the_even_neighbour() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 300, -300], F)
    model, inputs = single("QuantizeLinear", [x, np.array(1, F), np.array(0, np.int8)])
    check(model, inputs, expected=[np.array([0, 2, 2, 0, 127, -128], np.int8)])


@pytest.mark.parametrize("x", [[-1.0, 2.0, 0.3], [0.0, 0.0], [5.0, 6.0], [-3.0, -4.0]])
def test_dynamic_quantisation(x: list[float]) -> None:
    model, inputs = single("DynamicQuantizeLinear", [np.array(x, F)], 3)
    if any(x):
        check(model, inputs)
    else:
        expected = [np.zeros(2, np.uint8), np.array(0, F), np.array(0, np.uint8)]
        check(model, inputs, expected=expected)


def test_qlinear_conv_and_matmul() -> None:
    one = [np.array(0.02, F), np.array(120, np.uint8)]
    w = [unsigned(2, 1, 3, 3), np.array([0.01, 0.02], F), np.array([130, 120], np.uint8)]
    out = [np.array(0.05, F), np.array(128, np.uint8)]
    bias = RNG.integers(-99, 99, 2).astype(np.int32)
    model, inputs = single("QLinearConv", [unsigned(1, 1, 5, 5), *one, *w, *out, bias])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check(model, inputs, session.run(None, inputs))
    b = [unsigned(4, 3), np.array(0.01, F), np.array(110, np.uint8)]
    model, inputs = single("QLinearMatMul", [unsigned(2, 4), *one, *b, *out])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check(model, inputs, session.run(None, inputs))


def test_quantised_lstm_stays_near_the_real_one() -> None:
    rows, hidden, features = 20, 5, 4
    x = (RNG.standard_normal((6, 1, features)) * 0.5).astype(F)
    w, r = signed(1, features, rows), signed(1, hidden, rows)
    scale, zero = np.array([0.004], F), np.array([0], np.int8)
    bias = (RNG.standard_normal((1, 2 * rows)) * 0.1).astype(F)
    inputs = [x, w, r, bias, None, None, None, None, scale, zero, scale, zero]
    model, feed = single(
        "DynamicQuantizeLSTM",
        inputs,
        3,
        domain="com.microsoft",
        opset=17,
        constants=[1, 2, 3, 8, 9, 10, 11],
        hidden_size=hidden,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check(model, feed, session.run(None, feed), rtol=0.05, atol=0.02)
