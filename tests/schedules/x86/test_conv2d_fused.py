"""Reading fused kernels: the epilogue as an expression, and what is not an epilogue."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx
from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, read_fused
from uif_tvm.schedules.x86.pool import BlockedPool

from tests.schedules import harness
from uif_tvm.kernels import blocked_pool, layout
from uif_tvm.target.schedule import FAMILY_ATTR
from uif_tvm.target.spec import Refusal

SHAPE = (1, 2, 3, 4, 16)


def anchor(x: te.Tensor) -> te.Tensor:
    """A one-tap pooling anchor: the identity, as a reduction."""
    kh, kw = layout.reduce_axis(1, "kh"), layout.reduce_axis(1, "kw")
    attrs = {FAMILY_ATTR: blocked_pool.SUM_POOL, **layout.Window((1, 1)).attrs()}
    return te.compute(
        x.shape,
        lambda n, c, h, w, lane: te.sum(x[n, c, h + kh, w + kw, lane], axis=[kh, kw]),
        name="sum_pool",
        attrs=attrs,
    )


def func_of(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors)).without_attr("global_symbol")


def test_chain_with_reuse_and_broadcast_becomes_one_expression():
    x, scale = harness.placeholder(*SHAPE), harness.placeholder(1, 2, 1, 1, 16, name="scale")
    y = anchor(x)
    z = te.compute(y.shape, lambda n, c, h, w, i: y[n, c, h, w, i] * scale[0, c, 0, 0, i], name="z")
    out = te.compute(y.shape, lambda *i: z(*i) + z(*i) * y(*i), name="out")
    func = func_of(x, scale, out)
    kernel = read_fused(func, (blocked_pool.SUM_POOL,))
    assert isinstance(kernel, FusedKernel)
    assert len(kernel.inputs) == 1
    rng = np.random.default_rng(0)
    a, s = rng.standard_normal(SHAPE), rng.standard_normal((1, 2, 1, 1, 16))
    a, s = a.astype(np.float32), s.astype(np.float32)
    found = harness.run(harness.scheduled(BlockedPool(), func), [a, s], SHAPE, "float32")
    np.testing.assert_allclose(found, a * s + a * s * a, rtol=1e-4, atol=1e-6)


def test_scalars_and_channels_computed_in_the_kernel_are_part_of_the_epilogue():
    x, bias = harness.placeholder(*SHAPE), harness.placeholder(32, name="bias")
    scale = harness.placeholder(1, name="scale")
    y = anchor(x)
    twice = te.compute((), lambda: scale[0] + scale[0], name="twice")
    scaled = te.compute((layout.extents(32)[0],), lambda c: bias[c] / twice(), name="scaled")
    out = te.compute(y.shape, lambda *i: y(*i) * twice() + scaled[i[1] * 16 + i[4]], name="out")
    func = harness.scheduled(BlockedPool(), func_of(x, bias, scale, out))
    rng = np.random.default_rng(0)
    a = rng.standard_normal(SHAPE).astype(np.float32)
    b, s = rng.standard_normal(32).astype(np.float32), np.asarray([1.5], np.float32)
    found = harness.run(func, [a, b, s], SHAPE, "float32")
    wanted = a * 3 + (b / 3).reshape(1, 2, 1, 1, 16)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def shifted(y: te.Tensor) -> te.Tensor:
    return te.compute(
        y.shape, lambda n, c, h, w, i: y[n, c, h, tirx.max(w - 1, tirx.IntImm("int64", 0)), i]
    )


def reshaped(y: te.Tensor) -> te.Tensor:
    shape = layout.extents(1, 2, 12, 16)
    return te.compute(shape, lambda n, c, p, i: y[n, c, p // 4, p % 4, i])


@pytest.mark.parametrize("change", [shifted, reshaped])
def test_other_followers_are_refused(change):
    x = harness.placeholder(*SHAPE)
    refusal = read_fused(func_of(x, change(anchor(x))), (blocked_pool.SUM_POOL,))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "fused-shape"


def test_other_families_are_refused():
    x = harness.placeholder(*SHAPE)
    refusal = read_fused(func_of(x, anchor(x)), ("something else",))
    assert isinstance(refusal, Refusal)
    assert refusal.code in ("family", "fused-shape")
