"""Batch norms and channel scales become part of the convolution before them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes import fold_affine
from uif_tvm.relay_passes.fold_affine import per_channel

from tests.models import compiled, constant, context, engine, imported, module, weights
from uif_tvm.relax_util import calls, op_name

X = [("x", (1, 3, 8, 8), "float32")]
W = weights(4, 3, 3, 3)


def fold(mod):
    made = context()
    return fold_affine.PASS.apply(mod, made), made.report


def ops(mod):
    return sorted(op_name(call) for _, call in calls(mod))


def conv(x, weight=W, **attrs):
    return relax.op.nn.conv2d(x, constant(weight), **attrs)


def norm(x, channels=4, **attrs):
    rows = [np.abs(weights(channels, seed=seed)) + 0.5 for seed in range(4)]
    attrs = {"axis": 1, "training": False} | attrs
    return relax.TupleGetItem(relax.op.nn.batch_norm(x, *map(constant, rows), **attrs), 0)


def emitted(*steps):
    """A body that binds every step, as frontends do."""

    def body(x):
        builder = relax.BlockBuilder.current()
        for step in steps:
            x = builder.emit(step(x))
        return [x]

    return body


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(x: R.Tensor((1, 1, 4, 4), "float32")) -> R.Tensor((1, 2, 4, 4), "float32"):
        with R.dataflow():
            y = R.nn.conv2d(x, R.const([[[[2.0]]], [[[3.0]]]], "float32"))
            z = R.add(y, R.const([[[[1.0]], [[2.0]]]], "float32"))
            out = R.multiply(z, R.const([[[[10.0]], [[100.0]]]], "float32"))
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((1, 1, 4, 4), "float32")) -> R.Tensor((1, 2, 4, 4), "float32"):
        with R.dataflow():
            y = R.nn.conv2d(x, R.const([[[[20.0]]], [[[300.0]]]], "float32"))
            out = R.add(y, R.const([[[[10.0]], [[200.0]]]], "float32"))
            R.output(out)
        return out


def test_before_and_expected():
    mod, report = fold(Before)
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()
    assert [(d.subject, d.fired) for d in report.decisions] == [("z", True)]


def test_batch_norm_becomes_a_bias():
    mod, _ = fold(module(X, emitted(conv, norm)))
    assert ops(mod) == ["relax.add", "relax.nn.conv2d"]


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("attrs", [{}, {"center": False}, {"scale": False}, {"epsilon": 0.1}])
def test_numbers(tmp_path, groups, attrs):
    weight = weights(6, 3 // groups, 3, 3)

    def body(x):
        y = relax.op.nn.conv2d(x, constant(weight), groups=groups, padding=1)
        return [norm(y, 6, **attrs)]

    model = imported(X, body)
    x = weights(1, 3, 8, 8, seed=9)
    plain = engine(tmp_path, model, level=0).run(x)[0]
    made = engine(tmp_path, model, level=2)
    np.testing.assert_allclose(made.run(x)[0], plain, rtol=1e-4, atol=1e-4)
    assert any(d["pass_name"] == "fold-affine" for d in made.report["decisions"])


def scaled(factor, data=conv):
    return module(X, emitted(data, lambda y: relax.op.multiply(y, constant(factor))))


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1, 1, 1), (), (1,)])
def test_factors_that_vary_along_channels_only(shape):
    mod, _ = fold(scaled(np.full(shape, 2, np.float32)))
    assert ops(mod) == ["relax.nn.conv2d"]


def test_factor_on_the_left():
    factor = constant(np.ones((4, 1, 1), np.float32))
    mod, _ = fold(module(X, emitted(conv, lambda y: relax.op.multiply(factor, y))))
    assert ops(mod) == ["relax.nn.conv2d"]


@pytest.mark.parametrize(
    "mod",
    [
        # The factor varies along the width.
        scaled(np.ones((6,), np.float32)),
        scaled(np.ones((4, 6, 6), np.float32)),
        # The factor makes the result larger.
        scaled(np.ones((5, 1, 1, 1), np.float32)),
        # It follows something else than a convolution.
        scaled(np.ones((1,), np.float32), relax.op.exp),
        # Channels are last: axis 1 is the height.
        module(
            [("x", (1, 8, 8, 3), "float32")],
            emitted(
                lambda x: conv(x, W, data_layout="NHWC"),
                lambda y: relax.op.multiply(y, constant(np.ones((1, 6, 1, 1), np.float32))),
            ),
        ),
        # The weight is an input.
        module(
            [*X, ("w", (4, 3, 3, 3), "float32")],
            lambda x, w: [
                relax.op.multiply(
                    relax.op.nn.conv2d(x, w), constant(np.ones((4, 1, 1), np.float32))
                )
            ],
        ),
    ],
)
def test_declined(mod):
    after, report = fold(mod)
    assert ops(after) == ops(mod)
    assert report.decisions == []


@pytest.mark.parametrize("biased", [False, True])
def test_convolution_with_another_user_stays_single(biased):
    factor, bias = constant(np.full((4, 1, 1), 2, np.float32)), constant(weights(4, 1, 1))

    def body(x):
        builder = relax.BlockBuilder.current()
        y = builder.emit(conv(x))
        z = builder.emit(relax.op.add(y, bias)) if biased else y
        return [relax.op.multiply(z, factor), relax.op.exp(y)]

    mod = module(X, body)
    after, _ = fold(mod)
    assert ops(after) == ops(mod)


def test_training_statistics_stay():
    mod = module(X, lambda x: [norm(conv(x), training=True)])
    after, _ = fold(mod)
    assert "relax.nn.batch_norm" in ops(after)


def test_wider_result_type_is_not_squeezed_into_the_weight():
    mod = module(
        [("x", (1, 3, 8, 8), "float16")],
        emitted(
            lambda x: conv(x, W.astype(np.float16), out_dtype="float32"),
            lambda y: relax.op.multiply(y, constant(np.full((4, 1, 1), 1e6, np.float32))),
        ),
    )
    after, _ = fold(mod)
    assert ops(after) == ops(mod)


@given(st.lists(st.sampled_from([1, 4, 5]), max_size=5), st.integers(2, 5))
@settings(deadline=None)
def test_per_channel_agrees_with_broadcasting(shape, ndim):
    value = np.random.default_rng(0).standard_normal(shape)
    scale = per_channel(value, 4, ndim)
    data = np.ones((2, 4, 3, 3, 3)[:ndim])
    if scale is None:
        return
    want = data * value
    assert want.shape == data.shape
    view = scale.reshape([-1 if axis == 1 else 1 for axis in range(ndim)])
    np.testing.assert_array_equal(data * view, want)


def test_report_of_a_whole_export_names_the_pass():
    report = compiled(imported(X, lambda x: [norm(conv(x))]), level=2).report
    assert "fold-affine" in report["passes"]
