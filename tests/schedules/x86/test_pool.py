"""Pooling on channel blocks: maxima, means and what counts as a divisor at the border."""

from __future__ import annotations

import numpy as np
import pytest
from uif_tvm.schedules.x86.pool import BlockedPool

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import blocked_pool
from uif_tvm.kernels.layout import Window

RULE = BlockedPool()
NO_PADS = (0, 0, 0, 0)

CASES = {
    "same": ((1, 20, 9, 11), Window((3, 3), (2, 2), (1, 1, 1, 1))),
    "no pads": ((2, 16, 8, 8), Window((2, 2), (2, 2))),
    "one-sided": ((1, 5, 7, 19), Window((3, 2), (1, 3), (0, 1, 2, 0))),
    "whole plane": ((1, 33, 7, 7), Window((7, 7))),
    "whole wide plane": ((1, 8, 3, 41), Window((3, 41))),
}


def data(shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def run(func, x, window, machine):
    lanes = machine.lanes("float32")
    out = (x.shape[0], -(-x.shape[1] // lanes), *window.out(*x.shape[2:]), lanes)
    scheduled = harness.scheduled(RULE, func, machine)
    found = harness.run(scheduled, [reference.blocked(x, lanes)], out, "float32")
    return reference.plain(found, x.shape[1])


def blocked_shape(shape, machine):
    lanes = machine.lanes("float32")
    return (shape[0], -(-shape[1] // lanes), *shape[2:], lanes)


@pytest.mark.parametrize("machine", harness.MACHINES, ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("name", CASES)
def test_max(name, machine):
    shape, window = CASES[name]
    x = data(shape)
    found = run(blocked_pool.max_pool(blocked_shape(shape, machine), window), x, window, machine)
    np.testing.assert_array_equal(found, reference.pool(x, window, np.max, -np.inf))


def test_max_of_minus_infinity_is_minus_infinity():
    window = Window((2, 2), (2, 2), (1, 1, 1, 1))
    x = np.full((1, 16, 4, 4), -np.inf, np.float32)
    found = run(blocked_pool.max_pool((1, 1, 4, 4, 16), window), x, window, harness.WIDE)
    assert np.isneginf(found).all()


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_mean(name, include):
    shape, window = CASES[name]
    x = data(shape)
    counted = window.padding if include else NO_PADS
    func = blocked_pool.avg_pool(blocked_shape(shape, harness.WIDE), window, counted)
    total = reference.pool(x, window, np.sum, 0.0)
    border = 1.0 if include else 0.0
    count = reference.pool(np.ones_like(x), window, np.sum, border)
    found = run(func, x, window, harness.WIDE)
    np.testing.assert_allclose(found, total / count, atol=1e-5)


def test_extra_pads_of_ceil_mode_do_not_count():
    # 6 columns, window 3, stride 2, ceil mode: the third window holds two real columns.
    window = Window((1, 3), (1, 2), (0, 0, 0, 1))
    x = np.ones((1, 16, 1, 6), np.float32)
    func = blocked_pool.avg_pool((1, 1, 1, 6, 16), window, NO_PADS)
    found = run(func, x, window, harness.WIDE)
    np.testing.assert_array_equal(found, np.ones((1, 16, 1, 3), np.float32))
