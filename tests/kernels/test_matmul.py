"""Packing of constant right-hand sides, and what the matmul kernels compute unscheduled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

from tests.schedules.harness import placeholder, run
from uif_tvm.kernels.matmul import batch_matmul, pack_weight, packed_matmul, unpack_weight


@given(depth=st.integers(1, 20), width=st.integers(1, 40), block=st.sampled_from([1, 4, 16]))
def test_packing_round_trips_and_pads_with_zeros(depth: int, width: int, block: int) -> None:
    weight = np.random.default_rng(0).standard_normal((depth, width)).astype("float32")
    packed = pack_weight(weight, block)
    assert packed.shape == (-(-width // block), depth, block)
    np.testing.assert_array_equal(unpack_weight(packed, width), weight)
    assert packed.sum(dtype="float64") == pytest.approx(weight.sum(dtype="float64"), abs=1e-4)


@settings(max_examples=4, deadline=None)
@given(
    lead=st.sampled_from([(7,), (1, 5), (2, 3)]),
    width=st.integers(1, 20),
    depth=st.integers(1, 9),
    tile=st.sampled_from([(1, 4), (3, 8), (8, 16)]),
)
def test_packed_matmul(
    lead: tuple[int, ...], width: int, depth: int, tile: tuple[int, int]
) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((*lead, depth)).astype("float32")
    packed = pack_weight(rng.standard_normal((depth, width)).astype("float32"), tile[1])
    a, w = placeholder(*x.shape), placeholder(*packed.shape, name="w")
    func = te.create_prim_func([a, w, packed_matmul(a, w, width, tile[0])])
    result = run(func, [x, packed], (*lead, width), "float32")
    np.testing.assert_allclose(result, x @ unpack_weight(packed, width), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "right", "transpose"),
    [
        ((5, 7), (7, 9), False),
        ((2, 5, 7), (2, 9, 7), True),
        ((2, 1, 5, 7), (3, 7, 4), False),
        ((5, 7), (3, 7, 9), False),
    ],
)
def test_batch_matmul(left: tuple[int, ...], right: tuple[int, ...], transpose: bool) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal(dims).astype("float32") for dims in (left, right))
    a, b = placeholder(*left), placeholder(*right, name="y")
    func = te.create_prim_func([a, b, batch_matmul(a, b, (2, 4), transpose)])
    expected = x @ (np.swapaxes(y, -1, -2) if transpose else y)
    result = run(func, [x, y], expected.shape, "float32")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
