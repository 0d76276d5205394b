"""ONNX Runtime's quantised operators, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single

F = np.float32
RNG = np.random.default_rng(7)


def data(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


def codes(*shape: int, dtype: Any = np.uint8) -> Any:
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape).astype(dtype)


def check_runtime(
    op: str, inputs: list[Any], outputs: int = 1, off: float = 0, **attributes: Any
) -> None:
    """``off``: how many steps of quantisation an element may differ."""
    model, given = single(op, inputs, outputs, domain="com.microsoft", **attributes)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, given, session.run(None, given), rtol=0 if off else 1e-3, atol=off or 1e-3)


def scale(value: float) -> Any:
    return np.array(value, F)


def zero(value: int, dtype: Any = np.uint8) -> Any:
    return np.array(value, dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_concat(dtype: Any) -> None:
    check_runtime(
        "QLinearConcat",
        [scale(0.05), zero(7, dtype), codes(2, 3, dtype=dtype), scale(0.03), zero(3, dtype),
         codes(2, 4, dtype=dtype), scale(0.1), zero(0, dtype)],
        off=1, axis=1,
    )  # fmt: skip


def test_pools() -> None:
    ends = [scale(0.02), zero(100)]
    x = [codes(1, 3, 6, 5), scale(0.04), zero(90)]
    check_runtime("QLinearGlobalAveragePool", [*x, *ends], off=1)
    check_runtime("QLinearGlobalAveragePool", [*x, *ends], off=1, channels_last=1)
    check_runtime(
        "QLinearAveragePool", [*x, *ends], off=1, kernel_shape=[3, 2], strides=[2, 1],
        pads=[1, 0, 1, 1],
    )  # fmt: skip


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax(opset: int) -> None:
    from onnx import helper

    inputs = [codes(2, 3, 4), scale(0.04), zero(90), scale(1 / 256), zero(0)]
    model, given = single("QLinearSoftmax", inputs, domain="com.microsoft", axis=1)
    model.graph.node[0].attribute.append(helper.make_attribute("opset", opset))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, given, session.run(None, given), rtol=0, atol=1)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("per_column", [False, True])
def test_gemm(quantised: bool, per_column: bool) -> None:
    scales = RNG.random(5).astype(F) / 50 if per_column else scale(0.02)
    zeros = codes(5, dtype=np.int8) if per_column else zero(3, np.int8)
    inputs = [codes(4, 300), scale(0.03), zero(120), codes(5, 300, dtype=np.int8), scales, zeros,
              RNG.integers(-999, 999, 5).astype(np.int32)]  # fmt: skip
    inputs += [scale(2.0), zero(128)] if quantised else []
    check_runtime("QGemm", inputs, off=1 if quantised else 0, transB=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points", [False, True])
def test_weights_of_few_bits(bits: int, points: bool) -> None:
    k, n, block = 70, 6, 32
    blocks = 3
    inputs = [data(2, 3, k), codes(n, blocks, block * bits // 8), data(n * blocks)]
    if points:
        inputs.append(codes(n * -(-blocks * bits // 8)))
    model, given = single(
        "MatMulNBits", inputs, domain="com.microsoft", constants=range(1, len(inputs)),
        K=k, N=n, bits=bits, block_size=block,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, given, session.run(None, given), rtol=1e-3, atol=1e-2)


def test_embeddings() -> None:
    ids = RNG.integers(0, 9, (2, 4)).astype(np.int32)
    segments = RNG.integers(0, 2, (2, 4)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    check_runtime(
        "EmbedLayerNormalization",
        [ids, segments, data(9, 8), data(6, 8), data(2, 8), data(8), data(8), mask], 2,
    )  # fmt: skip
