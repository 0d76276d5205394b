"""TensorScatter and BitCast."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.frontends.onnx.harness import check, single
from uif_tvm.errors import ImportModelError

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -2])
def test_tensor_scatter(mode: str, axis: int) -> None:
    past = RNG.standard_normal((2, 5, 6, 3)).astype(np.float32)
    shape = [2, 5, 6, 3]
    shape[axis] = 2
    new = RNG.standard_normal(shape).astype(np.float32)
    starts = np.array([0, 4 if mode == "circular" else 3], np.int64)
    model, inputs = single("TensorScatter", [past, new, starts], opset=24, mode=mode, axis=axis)
    check(model, inputs)


def test_tensor_scatter_starts_at_zero_by_default() -> None:
    past, new = np.zeros((2, 4, 3), np.float16), np.ones((2, 3, 3), np.float16)
    check(*single("TensorScatter", [past, new], opset=24))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (np.float32, "INT32"),
        (np.int64, "DOUBLE"),
        (np.uint16, "BFLOAT16"),
        (ml_dtypes.bfloat16, "FLOAT16"),
        (np.int8, "UINT8"),
        (np.float32, "FLOAT"),
    ],
)
def test_bits_stay_as_they_are(source: type, target: str) -> None:
    x = np.array([0, 1, 77, 100, 127, 3], source)
    model, inputs = single("BitCast", [x], opset=26, to=int(getattr(TensorProto, target)))
    check(model, inputs)


def test_bit_cast_needs_one_width() -> None:
    model, inputs = single(
        "BitCast", [np.zeros(3, np.float32)], opset=26, to=int(TensorProto.INT64)
    )
    with pytest.raises(ImportModelError, match="differ in width"):
        check(model, inputs, expected=[])
