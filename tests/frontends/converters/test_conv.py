"""Convolutions and pooling against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single

RNG = np.random.default_rng(0)


def data(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def check_runtime(model: Any, inputs: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, inputs, session.run(None, inputs))


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        (data(1, 8, 9), data(8, 2, 4), {"group": 4, "pads": [2, 2]}),
        (data(2, 3, 7, 8), data(4, 3, 3, 2), {"strides": [2, 1], "pads": [0, 1, 2, 0]}),
        (data(1, 4, 9, 9), data(4, 1, 3, 3), {"group": 4, "dilations": [2, 2]}),
        (data(1, 2, 8, 8), data(3, 2, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        (data(1, 2, 4, 5, 6), data(3, 2, 2, 2, 2), {"pads": [1, 0, 0, 0, 1, 0]}),
    ],
)
def test_convolution(x: Any, w: Any, attributes: dict[str, Any]) -> None:
    check_runtime(*single("Conv", [x, w, data(len(w))], constants=[1, 2], **attributes))


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        (data(1, 2, 5), data(2, 3, 4), {"strides": [3], "pads": [1, 2]}),
        (
            data(1, 4, 4, 5),
            data(4, 3, 3, 3),
            {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1], "group": 2},
        ),
        (data(1, 1, 3, 3), data(1, 2, 3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
        (data(1, 1, 3), data(1, 1, 4), {"strides": [2], "output_shape": [5]}),
        (data(1, 1, 3, 3), data(1, 1, 2, 2), {"dilations": [2, 3]}),
        (data(1, 2, 3), data(2, 2, 5), {"strides": [3], "auto_pad": "SAME_UPPER"}),
    ],
)
def test_transposed(x: Any, w: Any, attributes: dict[str, Any], constants: tuple[int, ...]) -> None:
    check_runtime(*single("ConvTranspose", [x, w], constants=constants, **attributes))


@pytest.mark.parametrize(
    ("op", "x", "attributes"),
    [
        ("MaxPool", data(1, 2, 7, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", data(1, 2, 9), {"kernel_shape": [3], "dilations": [2], "pads": [1, 1]}),
        (
            "AveragePool",
            data(1, 1, 17, 17),
            {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1},
        ),
        (
            "AveragePool",
            data(1, 1, 6, 6),
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        ),
        (
            "AveragePool",
            data(1, 1, 6, 6),
            {"kernel_shape": [3, 3], "strides": [2, 2], "count_include_pad": 1, "ceil_mode": 1},
        ),
        ("LpPool", data(1, 2, 6), {"kernel_shape": [2], "p": 3}),
        ("GlobalAveragePool", data(1, 3, 4, 5), {}),
        ("GlobalMaxPool", data(1, 3, 4, 5), {}),
    ],
)
def test_pooling(op: str, x: Any, attributes: dict[str, Any]) -> None:
    check_runtime(*single(op, [x], opset=19, **attributes))


def test_pooling_with_indices() -> None:
    x = np.array([[[[1, 5, 5, 2], [3, 5, 1, 0], [2, 2, 8, 8]]]], np.float32)
    check_runtime(*single("MaxPool", [x], 2, kernel_shape=[2, 2]))


def test_pooling_of_integers() -> None:
    x = RNG.integers(-100, 100, (1, 2, 6, 6)).astype(np.int8)
    check_runtime(*single("MaxPool", [x], kernel_shape=[2, 2], pads=[1, 1, 0, 0]))
