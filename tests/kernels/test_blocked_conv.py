"""What blocked convolutions compute, unscheduled, and how weights are packed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import blocked_conv
from uif_tvm.kernels.layout import Window
from uif_tvm.target.schedule import Conv2dProblem


def problem(groups: int, inner: int, outer: int) -> Conv2dProblem:
    return Conv2dProblem(
        1, groups * inner, 5, 5, groups * outer, (3, 3), (1, 1), (0,) * 4, (1, 1), groups, "float32"
    )


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 4, 8]))
def test_merged_groups_fill_blocks_or_are_one(groups, inner, outer, block):
    before = problem(groups, inner, outer)
    after = blocked_conv.merge_groups(before, block)
    assert dataclasses.replace(after, groups=groups) == before
    assert groups % after.groups == 0
    if after.groups > 1 and not before.depthwise:
        assert after.in_channels // after.groups % block == 0
        assert after.out_channels // after.groups % block == 0


@given(st.sampled_from([1, 2, 3, 6]), st.integers(1, 3), st.integers(1, 3), st.sampled_from([2, 4]))
def test_packed_weight_holds_every_weight_once_and_zeros(groups, inner, outer, block):
    weight = np.arange(1, groups * outer * inner * 2 + 1, dtype=np.float32)
    weight = weight.reshape(groups * outer, inner, 1, 2)
    merged = blocked_conv.merge_groups(problem(groups, inner, outer), block).groups
    if merged == groups:
        packed = blocked_conv.pack_weight(weight, (groups, groups), block, block)
    else:
        packed = blocked_conv.pack_weight(weight, (groups, merged), block, block)
    assert sorted(packed[packed != 0]) == sorted(weight.reshape(-1))
    span = inner * groups // merged
    for o in range(groups * outer):
        for i in range(inner):
            column = (o // outer) % (groups // merged) * inner + i
            assert column < span
            found = packed[o // block, column // block, 0, :, column % block, o % block]
            np.testing.assert_array_equal(found, weight[o, i, 0])


def test_packed_depthwise_weight():
    weight = random(5, 1, 2, 3)
    packed = blocked_conv.pack_depthwise(weight, 4)
    assert packed.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(packed[1, :, :, 0], weight[4, 0])
    assert not packed[1, :, :, 1:].any()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_without_schedule(plain, groups):
    if plain and groups > 1:
        pytest.skip("plain inputs are for ungrouped convolutions")
    window = Window((3, 2), (2, 1), (1, 0, 2, 1), (1, 2))
    x, w = random(2, 8, 7, 6), random(8, 8 // groups, 3, 2)
    packed = blocked_conv.pack_weight(w, (groups, groups), 1 if plain else 4, 4)
    data = x if plain else reference.blocked(x, 4)
    func = blocked_conv.conv2d(data.shape, packed.shape, (8, 8), groups, window, 4)
    expected = reference.conv2d(x, w, window, groups)
    found = harness.run(func, [data, packed], (2, 2, *expected.shape[2:], 4), "float32")
    np.testing.assert_allclose(reference.plain(found, 8), expected, atol=1e-4)


def test_unspecified_lanes_are_not_read_into_real_ones():
    window = Window((1, 1))
    x, w = random(1, 5, 3, 3), random(6, 5, 1, 1)
    packed = blocked_conv.pack_weight(w, (1, 1), 4, 8)
    func = blocked_conv.conv2d((1, 2, 3, 3, 4), packed.shape, (5, 6), 1, window, 4)
    found = harness.run(func, [reference.blocked(x, 4), packed], (1, 2, 3, 3, 4), "float32")
    expected = reference.conv2d(x, w, window, 1)
    np.testing.assert_allclose(reference.plain(found, 6), expected, atol=1e-5)


def test_depthwise_without_schedule():
    window = Window((3, 3), (2, 1), (0, 1, 1, 1), (1, 1))
    x, w = random(1, 6, 6, 5), random(6, 1, 3, 3)
    func = blocked_conv.depthwise((1, 2, 6, 5, 4), 6, window)
    expected = reference.conv2d(x, w, window, 6)
    inputs = [reference.blocked(x, 4), blocked_conv.pack_depthwise(w, 4)]
    found = harness.run(func, inputs, (1, 2, *expected.shape[2:], 4), "float32")
    np.testing.assert_allclose(reference.plain(found, 6), expected, atol=1e-5)
