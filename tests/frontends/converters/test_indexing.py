"""Gather, scatter, search and sort; indices outside never reach outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.harness import check, run_model, single
from uif_tvm.errors import UifError

F = np.float32
X = np.arange(12, dtype=F).reshape(3, 4)


def ints(values: Any) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("constants", [(), (1,)])
def test_gather_counts_negative_indices_from_the_end(constants: tuple[int, ...]) -> None:
    check(*single("Gather", [X, ints([[0, -1], [2, -3]])], constants=constants, axis=1))


def test_gather_refuses_constant_indices_outside() -> None:
    with pytest.raises(UifError, match="outside"):
        run_model(*single("Gather", [X, ints([0, 3])], constants=[1]))


@pytest.mark.parametrize("index", [2**40, -(2**40), 3, -4])
def test_reads_at_data_indices_outside_are_clamped(index: int) -> None:
    (got,) = run_model(*single("GatherElements", [X, ints([[index] * 4])], axis=0))
    assert got.tolist() == [X[2 if index > 0 else 0].tolist()]


@pytest.mark.parametrize("index", [2**40, -(2**40), 3, -4])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_writes_at_data_indices_outside_are_dropped(index: int, reduction: str) -> None:
    ones = np.ones((1, 4), F)
    (out,) = run_model(*single("ScatterND", [X, ints([[index]]), ones], reduction=reduction))
    assert np.array_equal(out, X)
    at = ints([[index, 1, -1, index]])
    (out,) = run_model(*single("ScatterElements", [X, at, 100 * ones], reduction=reduction))
    expected = X.copy()
    for row, column in ((1, 1), (2, 2)):
        expected[row, column] = 100 + (X[row, column] if reduction == "add" else 0)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize(("op", "at"), [("ScatterND", [[3]]), ("ScatterElements", [[0, -4, 1, 2]])])
def test_scatters_refuse_constant_indices_outside(op: str, at: Any) -> None:
    with pytest.raises(UifError, match="outside"):
        run_model(*single(op, [X, ints(at), np.ones((1, 4), F)], constants=[1]))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("GatherElements", [X, ints([[-1, -2], [0, -4], [2, -3]])], {"axis": 1}),
        ("GatherND", [X, ints([[-1, -1], [0, -2]])], {}),
        ("GatherND", [X[None], ints([[[1], [-1]]])], {"batch_dims": 1}),
        ("ScatterElements", [X, ints([[0, 1, -1, 2]]), np.ones((1, 4), F)], {"axis": 0}),
        (
            "ScatterElements",
            [X, ints([[1, 1], [0, 0], [3, 3]]), np.ones((3, 2), F)],
            {"axis": 1, "reduction": "add"},
        ),
        ("ScatterND", [X, ints([[2], [0], [2]]), np.ones((3, 4), F)], {"reduction": "mul"}),
        ("ArgMax", [np.array([[1, 3, 3], [2, 2, 0]], F)], {"axis": 1, "keepdims": 0}),
        ("ArgMin", [np.array([[1, 1, 3], [2, 0, 0]], F)], {"axis": 1, "select_last_index": 1}),
        ("NonZero", [np.array([[1, 0, 2], [0, 0, 3]], F)], {}),
        ("CumSum", [X, np.array(1, np.int32)], {"reverse": 1, "exclusive": 1}),
        ("OneHot", [ints([0, -1, 5]), ints(3), np.array([0, 1], F)], {"axis": 0}),
        ("Compress", [X, np.array([True, False, True])], {"axis": 0}),
    ],
)
def test_against_reference(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    check(*single(op, inputs, opset=18, **attributes))


def test_topk_orders_equals_by_index() -> None:
    x = np.array([[1, 5, 5, 2], [4, 4, 4, 0]], F)
    for largest in (0, 1):
        check(*single("TopK", [x, ints([3])], 2, constants=[1], axis=1, largest=largest))


def test_reverse_sequence_of_length_zero() -> None:
    x = np.arange(16, dtype=F).reshape(4, 4)
    model, inputs = single("ReverseSequence", [x, ints([0, 2, 3, 4])], time_axis=1, batch_axis=0)
    expected = x.copy()
    for row, length in enumerate((0, 2, 3, 4)):
        expected[row, :length] = x[row, :length][::-1]
    check(model, inputs, expected=[expected])


def test_shapes_that_would_read_outside_are_refused() -> None:
    with pytest.raises(UifError):
        run_model(*single("GatherElements", [X, ints(np.zeros((3, 9)))], axis=0))
