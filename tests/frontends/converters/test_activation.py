"""Unary functions against NumPy in float64, at the places where they are delicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.harness import check, single

F = np.float32


@pytest.mark.parametrize(
    ("op", "values", "exact"),
    [
        ("Round", [0.5, 1.5, 2.5, -0.5, -2.5, 3.49], np.round),
        ("Sinh", [88.9, 89.1, -89.0, 1e-6, 0.3], np.sinh),
        ("Cosh", [88.9, -89.0, 0.1], np.cosh),
        ("Atan", [5e21, -3e24, 1e30, 2.0, -0.4], np.arctan),
        ("Asinh", [1e30, -5.0, 1e-5, 0.0], np.arcsinh),
        ("Acosh", [1.0, 1.0001, 50.0, 1e30], np.arccosh),
        ("Atanh", [1e-5, 0.5, -0.9], np.arctanh),
        ("Softplus", [250.0, 600.0, -30.0, 1.0], lambda v: np.logaddexp(0, v)),
        ("Sign", [-2.0, 0.0, 3.0, np.nan], np.sign),
        ("Tan", [0.3, -1.2], np.tan),
        ("Reciprocal", [0.25, -8.0], lambda v: 1 / v),
        ("Elu", [-1e-6, -5.0, 2.0], lambda v: np.where(v < 0, np.expm1(v), v)),
        ("Mish", [-9.0, 0.5, 30.0], lambda v: v * np.tanh(np.logaddexp(0, v))),
    ],
)
def test_values(op: str, values: list[float], exact: Callable[[Any], Any]) -> None:
    x = np.array(values, F)
    with np.errstate(over="ignore"):
        expected = exact(x.astype(np.float64)).astype(F)
    check(*single(op, [x], opset=18), expected=[expected], rtol=1e-5, atol=1e-12)


def test_not_a_number_and_infinities() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0], F)
    check(*single("IsNaN", [x]))
    check(*single("IsInf", [x], detect_negative=0))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Selu", {}),
        ("Celu", {"alpha": 0.5}),
        ("ThresholdedRelu", {"alpha": 0.7}),
        ("Shrink", {"lambd": 0.6, "bias": 0.1}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("HardSwish", {}),
        ("Softsign", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("Hardmax", {"axis": 0}),
        ("LogSoftmax", {"axis": 0}),
    ],
)
def test_parameters(op: str, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(F)
    check(*single(op, [x], **attributes))


def test_softmax_before_13_flattens_from_the_axis() -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(F)
    e = np.exp(x)
    model, inputs = single("Softmax", [x], opset=11, axis=1)
    check(model, inputs, expected=[e / e.sum((1, 2), keepdims=True)])
