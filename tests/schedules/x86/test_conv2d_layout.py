"""Layout changes: exact for whole tiles, pixel tails and channel tails."""

from __future__ import annotations

import numpy as np
import pytest
from uif_tvm.schedules.x86.conv2d_layout import LayoutChange

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import layout

SHAPES = [(1, 32, 8, 8), (2, 20, 5, 7), (1, 3, 40, 41), (1, 1, 1, 1), (1, 33, 50), (1, 16, 3, 2)]


@pytest.mark.parametrize("machine", harness.MACHINES, ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(shape, machine):
    lanes = machine.lanes("float32")
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    four = x if x.ndim == 4 else x[:, :, None]
    expected = reference.blocked(four, lanes)
    there = harness.scheduled(LayoutChange(), layout.block(shape, lanes, "float32"), machine)
    found = harness.run(there, [x], expected.shape, "float32")
    np.testing.assert_array_equal(found, np.nan_to_num(expected))
    back = harness.scheduled(LayoutChange(), layout.unblock(shape, lanes, "float32"), machine)
    np.testing.assert_array_equal(harness.run(back, [expected], shape, "float32"), x)


def test_pixels_move_as_vectors():
    func = harness.scheduled(LayoutChange(), layout.block((1, 16, 8, 8), 16, "float32"))
    text = harness.assembly(func, "x86-64-v4")
    assert text.count("zmm") > 64
