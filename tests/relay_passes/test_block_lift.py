"""Lifting kernels to channel blocks: what can be lifted, and that lanes compute as channels did."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx, topi
from uif_tvm.relay_passes.block_lift import Lifted, lift
from uif_tvm.relay_passes.block_pad import zero_padding

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels.layout import reduce_axis

SHAPE = (1, 20, 4, 5)


def func_of(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors)).without_attr("global_symbol")


def pooled() -> tirx.PrimFunc:
    x, k = harness.placeholder(*SHAPE), reduce_axis(2, "k")
    shape = harness.placeholder(1, 20, 4, 4).shape
    return func_of(x, te.compute(shape, lambda n, c, h, w: te.max(x[n, c, h, w + k], axis=[k])))


def test_reduction_over_the_plane():
    lifted = lift(pooled(), 16)
    assert isinstance(lifted, Lifted)
    assert not lifted.elementwise
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    blocked = reference.blocked(x, 16)
    found = harness.run(lifted.func, [blocked], (1, 2, 4, 4, 16), "float32")
    expected = np.maximum(x[..., :-1], x[..., 1:])
    np.testing.assert_array_equal(reference.plain(found, 20), expected)


def test_per_channel_operand_is_blocked_along_its_own_axis():
    x, slope = harness.placeholder(*SHAPE), harness.placeholder(20, name="slope")
    y = te.compute(x.shape, lambda n, c, h, w: x[n, c, h, w] * slope[c])
    lifted = lift(func_of(x, slope, y), 16)
    assert isinstance(lifted, Lifted)
    assert lifted.axes == (1, 0)
    assert lifted.elementwise


def test_kernels_that_tell_channels_apart_are_refused():
    x = harness.placeholder(*SHAPE)
    arithmetic = te.compute(x.shape, lambda n, c, h, w: x[n, c, h, w] * c.astype("float32"))
    neighbour = te.compute(x.shape, lambda n, c, h, w: x[n, (c + 1) % 20, h, w])
    k = reduce_axis(20, "k")
    total = te.compute(x.shape, lambda n, c, h, w: te.sum(x[n, k, h, w], axis=[k]))
    assert isinstance(lift(func_of(x, arithmetic), 16), str)
    assert isinstance(lift(func_of(x, neighbour), 16), str)
    lifted = lift(func_of(x, total), 16)
    # The sum over channels reads the plain input, which then is no blocked operand at all.
    assert isinstance(lifted, str) or lifted.axes == (None,)


def padding(pads: tuple[int, int, int, int], fill: float) -> tirx.PrimFunc:
    x, (top, left, bottom, right) = harness.placeholder(*SHAPE), pads
    value = tirx.const(fill, "float32")
    y = topi.nn.pad(x, [0, 0, top, left], [0, 0, bottom, right], pad_value=value)
    return func_of(x, y)


@pytest.mark.parametrize("pads", [(1, 2, 3, 4), (0, 0, 1, 0), (2, 0, 0, 0)])
def test_zero_padding_is_recognised(pads):
    assert zero_padding(padding(pads, 0.0)) == pads
    assert zero_padding(padding(pads, 1.0)) is None


def test_padding_of_channels_or_with_a_gap_is_not():
    x = harness.placeholder(*SHAPE)
    channels = topi.nn.pad(x, [0, 1, 0, 0], [0, 0, 0, 0])
    assert zero_padding(func_of(x, channels)) is None
    zero, shape = tirx.const(0.0, "float32"), harness.placeholder(1, 20, 4, 9).shape
    late = te.compute(
        shape,
        lambda n, c, h, w: tirx.if_then_else(tirx.all(w >= 3, w < 7), x[n, c, h, w - 2], zero),
    )
    assert zero_padding(func_of(x, late)) is None
