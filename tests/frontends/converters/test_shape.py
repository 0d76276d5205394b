"""Operators that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.harness import check, run_model, single
from uif_tvm.errors import UifError

F = np.float32
X = np.arange(24, dtype=F).reshape(2, 3, 4)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Reshape", [X, ints(0, -1)], {}),
        ("Reshape", [X, ints(-1)], {}),
        ("Transpose", [X], {}),
        ("Transpose", [X], {"perm": [1, 0, 2]}),
        ("Squeeze", [X[:1], ints(0)], {}),
        ("Unsqueeze", [X, ints(-1, 0)], {}),
        ("Flatten", [X], {"axis": -1}),
        ("Expand", [X[:, :1], ints(2, 1, 1, 4)], {}),
        ("Tile", [X, ints(1, 2, 3)], {}),
        ("Slice", [X, ints(-1), ints(-100), ints(2), ints(-2)], {}),
        ("Slice", [X, ints(1, 0), ints(100, -1), ints(0, 2)], {}),
        ("Slice", [X, ints(0), ints(5), ints(1), ints(-1)], {}),
        ("Trilu", [X, np.array(1, np.int64)], {"upper": 0}),
        ("Cast", [np.array([1.9, -1.9, 0.2], F)], {"to": 7}),
        ("Cast", [np.array([1.5, 0, -0.0], F)], {"to": 9}),
    ],
)
def test_constant_arguments(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    check(*single(op, inputs, constants=range(1, len(inputs)), **attributes))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Reshape", [X, ints(4, 0, -1)]),
        ("Expand", [X[:, :1], ints(2, 5, 4)]),
        ("Tile", [X, ints(1, 2, 1)]),
        ("Slice", [X, ints(-2), ints(9), ints(1)]),
        ("ConstantOfShape", [ints(2, 3)]),
        ("Range", [np.array(2, np.int64), np.array(9, np.int64), np.array(3, np.int64)]),
        ("Range", [np.array(1.0, F), np.array(2.6, F), np.array(0.5, F)]),
        ("Pad", [X, ints(0, 1, 0, 0, 0, 2)]),
    ],
)
def test_arguments_that_are_data(op: str, inputs: list[Any]) -> None:
    check(*single(op, inputs))


def test_split_and_concat() -> None:
    check(*single("Split", [X, ints(1, 3)], 2, constants=[1], axis=2))
    check(*single("Split", [X], 3, opset=18, axis=2, num_outputs=3))
    check(*single("Concat", [X, X + 1], axis=-1))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_modes(mode: str) -> None:
    check(*single("Pad", [X, ints(0, 1, 2, 0, 2, 1)], constants=[1], mode=mode))


def test_pad_cuts_where_pads_are_negative() -> None:
    model, inputs = single("Pad", [X, ints(0, -1, 0, 0, 0, -2)], constants=[1])
    check(model, inputs, expected=[X[:, 1:, :2]])


def test_blocks_of_pixels() -> None:
    x = np.arange(96, dtype=F).reshape(1, 8, 3, 4)
    for mode in ("DCR", "CRD"):
        check(*single("DepthToSpace", [x], blocksize=2, mode=mode))
    check(*single("SpaceToDepth", [x.reshape(1, 4, 4, 6)], blocksize=2))


def test_a_shape_that_does_not_fit_is_refused() -> None:
    for shape in (ints(5, 5), ints(-1, -1), ints(7, -1)):
        with pytest.raises(UifError, match="Reshape"):
            run_model(*single("Reshape", [X, shape], constants=[1]))
