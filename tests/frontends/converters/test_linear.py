"""Matrix products, reductions and normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single

RNG = np.random.default_rng(0)
F = np.float32


def data(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((2, 3, 4), (4, 5)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(*single("MatMul", [data(*a), data(*b)]))


@pytest.mark.parametrize("transposed", [(0, 0), (1, 1)])
def test_gemm(transposed: tuple[int, int]) -> None:
    a, b = data(3, 4), data(4, 5)
    inputs = [a.T if transposed[0] else a, b.T if transposed[1] else b, data(5)]
    check(*single("Gemm", inputs, transA=transposed[0], transB=transposed[1], alpha=0.5, beta=2.0))


def test_fused_matmul() -> None:
    a, b = data(2, 4, 3), data(2, 4, 5)
    model, inputs = single("FusedMatMul", [a, b], domain="com.microsoft", transA=1, alpha=0.5)
    check(model, inputs, expected=[0.5 * (a.transpose(0, 2, 1) @ b)])


@pytest.mark.parametrize(
    "op",
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSumExp".split(),
)
def test_reductions(op: str) -> None:
    x = data(2, 3, 4)
    check(*single(op, [x, np.array([-1, 0], np.int64)], opset=18, constants=[1], keepdims=0))
    check(*single(op, [x], opset=18))


def test_reduction_axes_as_attribute_and_as_data() -> None:
    x = data(2, 3, 4)
    check(*single("ReduceMean", [x], opset=13, axes=[2], keepdims=0))
    check(*single("ReduceSum", [x, np.array([1], np.int64)], opset=13))


def test_reduction_of_nothing() -> None:
    x = np.zeros((2, 0, 4), F)
    axes = np.array([1], np.int64)
    for op, value in (("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf)):
        expected = np.full((2, 1, 4), value, F)
        check(*single(op, [x, axes], opset=20, constants=[1]), expected=[expected])


def test_layer_norm() -> None:
    x, scale, bias = data(2, 3, 4), data(4), data(4)
    check(*single("LayerNormalization", [x, scale, bias], constants=[1, 2]))
    check(*single("LayerNormalization", [x, scale], 3))
    check(*single("LayerNormalization", [x, data(3, 4)], axis=1))


def test_layer_norm_of_a_large_mean() -> None:
    x = np.array([[70000, 70001, 70003, 70004]], F)
    z = x.astype(np.float64)
    expected = ((z - z.mean()) / np.sqrt(z.var() + 1e-5)).astype(F)
    model, inputs = single("LayerNormalization", [x, np.ones(4, F), np.zeros(4, F)])
    check(model, inputs, expected=[expected], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
def test_batch_norm(constants: tuple[int, ...]) -> None:
    inputs = [data(2, 3, 4, 4), data(3), data(3), data(3), np.abs(data(3)) + 0.5]
    check(*single("BatchNormalization", inputs, opset=15, constants=constants))


def test_local_response_norm() -> None:
    model, inputs = single("LRN", [data(1, 5, 3, 3)], size=3)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check(model, inputs, session.run(None, inputs))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("InstanceNormalization", [data(2, 3, 5), data(3), data(3)], {}),
        ("GroupNormalization", [data(2, 4, 3, 3), data(4), data(4)], {"num_groups": 2}),
        ("LpNormalization", [data(2, 3)], {"axis": 1, "p": 1}),
        ("MeanVarianceNormalization", [data(2, 3, 4, 4)], {}),
    ],
)
def test_other_norms(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    check(*single(op, inputs, **attributes))
