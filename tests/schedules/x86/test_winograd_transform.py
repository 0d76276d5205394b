"""Transforms as statements: equal to the matrices, and with the arithmetic that pairs share."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86 import winograd_transform as under_test

from tests.schedules import harness
from uif_tvm.kernels import winograd
from uif_tvm.kernels.winograd import Transform

LANES = 4
BOTH = {"input": under_test.input_rows, "output": under_test.output_rows}


def matrix(found: Transform, side: str) -> np.ndarray:
    rows = found.bt if side == "input" else found.at
    return np.array([[float(v) for v in row] for row in rows])


def kernel(found: Transform, side: str) -> tirx.PrimFunc:
    """``y = L x L^T`` for tiles of vectors."""
    count = len(matrix(found, side))
    x = tirx.decl_buffer((found.size, found.size, LANES), "float32", name="x")
    y = tirx.decl_buffer((count, count, LANES), "float32", name="y")
    lane = tir.lanes_from(0, LANES)
    body = under_test.both_sides(
        BOTH[side],
        found,
        lambda p, q: tir.read(x, p, q, lane),
        lambda i, j, value: tir.write(y, value, i, j, lane),
        LANES,
    )
    return tirx.PrimFunc([x, y], body)


def chosen(tile: int) -> Transform:
    """The shipped transforms, and one with a point that has no negative."""
    if tile == 3:
        return winograd.toom_cook(3, tuple(map(Fraction, (0, 1, -1, 2))))
    return winograd.transform(tile)


@pytest.mark.parametrize("side", BOTH)
@pytest.mark.parametrize("tile", [2, 3, 4])
def test_statements_compute_both_products(tile: int, side: str) -> None:
    found = chosen(tile)
    x = np.random.default_rng(0).standard_normal((found.size, found.size, LANES))
    x = x.astype(np.float32)
    left = matrix(found, side)
    expected = np.einsum("ip,pql,jq->ijl", left, x.astype(np.float64), left)
    have = harness.run(kernel(found, side), [x], expected.shape, "float32")
    np.testing.assert_allclose(have, expected, atol=2e-5)


@pytest.mark.parametrize(("side", "most"), [("input", 18), ("output", 13)])
def test_pairs_share_their_arithmetic(side: str, most: int) -> None:
    """Of F(4, 3): 25 and 20 multiplications, one a coefficient, without sharing."""
    found, lanes = winograd.transform(4), 1
    values = [tirx.Var(f"v{i}", "float32") for i in range(found.size)]
    nodes: set[Any] = set()
    for expr in BOTH[side](found, values, lanes):
        tvm_ffi.structural_walk(expr, [(tirx.Mul, lambda node: nodes.add(str(node)))])
    assert 0 < len(nodes) <= most


def test_pairs_of_points() -> None:
    points = tuple(map(Fraction, (0, 2, -1, 1, 3)))
    assert under_test.pairs(points) == [(0, None), (1, None), (2, 3), (4, None)]
