"""Arithmetic of operators, by hand."""

from __future__ import annotations

import pytest

from uif_tvm.selection.coverage.cost import FREE, flops, nbytes


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "outputs", "expected"),
    [
        ("MatMul", {}, [(4, 5), (5, 6)], [(4, 6)], 2 * 4 * 5 * 6),
        ("MatMul", {}, [(3, 4, 5), (5, 6)], [(3, 4, 6)], 2 * 3 * 4 * 5 * 6),
        ("Gemm", {"transA": 1}, [(5, 4), (5, 6)], [(4, 6)], 2 * 4 * 5 * 6),
        ("Conv", {"group": 1}, [(1, 3, 8, 8), (16, 3, 3, 3)], [(1, 16, 6, 6)], 2 * 16 * 36 * 27),
        ("Conv", {"group": 4}, [(1, 4, 8, 8), (4, 1, 3, 3)], [(1, 4, 6, 6)], 2 * 4 * 36 * 9),
        ("ConvTranspose", {}, [(1, 3, 4, 4), (3, 5, 2, 2)], [(1, 5, 8, 8)], 2 * 48 * 20),
        (
            "QLinearConv", {}, [(1, 3, 8, 8), (), (), (16, 3, 3, 3)], [(1, 16, 6, 6)],
            2 * 16 * 36 * 27,
        ),
        ("LSTM", {"hidden_size": 7}, [(10, 2, 3), None], [(10, 1, 2, 7)], 2 * 20 * 4 * 7 * 10),
        (
            "GRU", {"hidden_size": 7, "direction": "bidirectional"}, [(10, 2, 3)], [(10, 2, 2, 7)],
            2 * 20 * 2 * 3 * 7 * 10,
        ),
        ("ReduceSum", {}, [(8, 9)], [(1,)], 72),
        ("Expand", {}, [(1,), (2,)], [(8, 9)], 72),
        ("Reshape", {}, [(8, 9), (1,)], [(72,)], 0),
        ("Relu", {}, [()], [()], 1),
    ],
)  # fmt: skip
def test_flops(op, attributes, inputs, outputs, expected):
    assert flops(op, attributes, inputs, outputs) == expected


def test_views_move_no_bytes():
    assert nbytes([100, 100], "Reshape") == 0
    assert nbytes([100, 60], "Relu") == 160
    assert "If" in FREE  # the operators of its bodies have costs of their own
