"""Depthwise convolution on channel blocks: edges, strides, dilation, channel tails."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uif_tvm.schedules.x86.depthwise import BlockedDepthwise

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import blocked_conv
from uif_tvm.kernels.layout import Window
from uif_tvm.target.spec import Refusal

RULE = BlockedDepthwise()


def build(shape, window, machine):
    """(scheduled function, inputs, expected result) for random data of ``shape``."""
    rng, lanes = np.random.default_rng(5), machine.lanes("float32")
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((shape[1], 1, *window.kernel)).astype(np.float32)
    data, packed = reference.blocked(x, lanes), blocked_conv.pack_depthwise(w, lanes)
    func = harness.scheduled(RULE, blocked_conv.depthwise(data.shape, shape[1], window), machine)
    return func, [data, packed], reference.conv2d(x, w, window, shape[1])


def check(shape, window, machine):
    func, inputs, expected = build(shape, window, machine)
    lanes = machine.lanes("float32")
    out = (shape[0], -(-shape[1] // lanes), *expected.shape[2:], lanes)
    found = harness.run(func, inputs, out, "float32")
    np.testing.assert_allclose(reference.plain(found, shape[1]), expected, atol=1e-4)


CASES = {
    "same": ((1, 32, 14, 14), Window((3, 3), padding=(1, 1, 1, 1))),
    "strided": ((2, 20, 15, 17), Window((3, 3), (2, 2), (1, 1, 1, 1))),
    "5x5, one-sided": ((1, 17, 12, 31), Window((5, 5), (1, 2), (0, 3, 2, 1))),
    "dilated past the plane": ((1, 16, 9, 9), Window((3, 3), (1, 1), (8, 8, 8, 8), (8, 8))),
    "wide row": ((1, 8, 3, 120), Window((3, 3), padding=(1, 1, 1, 1))),
    "wide window": ((1, 4, 2, 30), Window((1, 19), padding=(0, 9, 0, 9))),
}


@pytest.mark.parametrize("machine", harness.MACHINES, ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("name", CASES)
def test_matches_reference(name, machine):
    check(*CASES[name], machine)


@settings(max_examples=12, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(4, 9), st.integers(4, 40)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 4)] * 4),
)
def test_any_geometry_matches_reference(shape, kernel, strides, padding):
    check(shape, Window(kernel, strides, padding), harness.WIDE)


def test_multiply_adds_are_vectors():
    func, _, _ = build(*CASES["same"], harness.WIDE)
    text = harness.assembly(func, "x86-64-v4")
    assert len(re.findall(r"vfmadd\w+ps\s.*%zmm\d+", text)) >= 9
    assert not re.search(r"vfmadd\w+ss", text)


def test_refuses_other_blocks():
    window = Window((3, 3))
    refusal = RULE.apply(
        blocked_conv.depthwise((1, 2, 5, 5, 4), 8, window), harness.host_spec(harness.WIDE)
    )
    assert isinstance(refusal, Refusal)
    assert refusal.code == "layout"
