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
from uif_tvm.relay_passes.affine_ops import per_channel

from tests.models import compiled, constant, context, engine, imported, module, weights
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import calls, constant_array, op_name
from uif_tvm.standard_ops import call as standard_call

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


def product(kind, groups=1):
    """(shape of the data, the product over a variable, output channels, input channels)."""
    if kind == "matmul":
        return (2, 5, 6), lambda x: relax.op.matmul(x, constant(weights(6, 4))), 4, 6
    if kind == "permuted":
        matrix = constant(weights(4, 6))
        return (2, 5, 6), lambda x: relax.op.matmul(x, relax.op.permute_dims(matrix)), 4, 6
    rank = int(kind[0])
    shape = (1, 6, *(5,) * rank)
    taps = (2,) * rank
    if "transpose" in kind:
        weight = constant(weights(6, 4 // groups, *taps))
        name = f"conv{rank}d_transpose"
        return shape, lambda x: standard_call(name, x, weight, groups=groups, strides=2), 4, 6
    outputs = 12 if groups == 6 else 4
    weight = constant(weights(outputs, 6 // groups, *taps))
    convolve = getattr(relax.op.nn, f"conv{rank}d")
    return shape, lambda x: convolve(x, weight, groups=groups), outputs, 6


PRODUCTS = [
    ("matmul", 1),
    ("permuted", 1),
    ("1d", 1),
    ("2d", 2),
    ("2d", 6),
    ("3d", 1),
    ("1d transpose", 1),
    ("2d transpose", 2),
    ("3d transpose", 2),
]


@pytest.mark.parametrize(("kind", "groups"), PRODUCTS)
def test_every_product_takes_a_scale_per_output(tmp_path, kind, groups):
    shape, body, outputs, _ = product(kind, groups)
    rank = len(shape)
    spread = (outputs,) if "m" in kind else (outputs, *(1,) * (rank - 2))
    scale, bias = constant(weights(*spread, seed=1)), constant(weights(*spread, seed=2))
    steps = (
        body,
        lambda y: relax.op.add(y, bias),
        lambda y: relax.op.divide(y, scale),
        lambda y: relax.op.subtract(y, bias),
    )
    mod, report = fold(module([("x", shape, "float32")], emitted(*steps)))
    assert not {"relax.divide", "relax.subtract", "relax.multiply"} & set(ops(mod))
    assert ops(mod).count("relax.add") == 1
    assert [decision.fired for decision in report.decisions] == [True, True]
    model = imported([("x", shape, "float32")], emitted(*steps))
    x = weights(*shape, seed=9)
    plain = engine(tmp_path, model, level=0).run(x)[0]
    np.testing.assert_allclose(engine(tmp_path, model).run(x)[0], plain, rtol=1e-4, atol=1e-4)


def test_gain_is_one_operation_per_result():
    _, report = fold(scaled(np.full((4, 1, 1), 2, np.float32)))
    [decision] = report.decisions
    assert (decision.flops_saved, decision.bytes_saved, decision.launches_saved) == (4 * 36, 0, 0)


def reasons(mod):
    after, report = fold(mod)
    assert ops(after) == ops(mod)
    return [decision.reason for decision in report.decisions if not decision.fired]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.inf, "the constant holds inf"),
        (3e38, "overflows float32"),
        (1e-38, "the weight underflows float32"),
    ],
)
def test_values_that_would_be_lost_stay(value, reason):
    [given] = reasons(scaled(np.full((4, 1, 1), value, np.float32)))
    assert reason in given


def test_division_by_zero_stays():
    zero = constant(np.zeros((4, 1, 1), np.float32))
    [given] = reasons(module(X, emitted(conv, lambda y: relax.op.divide(y, zero))))
    assert given == "the constant holds inf"


def test_shifts_that_round_stay():
    magic = constant(np.float32(12582912))
    steps = (conv, lambda y: relax.op.add(y, magic), lambda y: relax.op.subtract(y, magic))
    [given] = reasons(module(X, emitted(*steps)))
    assert "cancel out" in given


def test_two_readers_of_the_result_are_named_as_the_reason():
    def body(x):
        y = relax.BlockBuilder.current().emit(conv(x))
        return [relax.op.multiply(y, constant(np.float32(2))), relax.op.exp(y)]

    [given] = reasons(module(X, body))
    assert "read elsewhere" in given


def test_weight_of_two_products_is_not_copied_for_a_scale():
    shared = constant(weights(64, 3, 3, 3))

    def body(x):
        builder = relax.BlockBuilder.current()
        first = builder.emit(relax.op.nn.conv2d(x, shared, strides=8))
        again = builder.emit(relax.op.nn.conv2d(relax.op.exp(x), shared))
        return [relax.op.multiply(first, constant(np.float32(2))), again]

    [given] = reasons(module(X, body))
    assert f"a copy takes {64 * 27 * 4} bytes" in given


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_round_once(dtype):
    kind = numpy_dtype(dtype)
    weight, factor = (weights(*s, seed=len(s)).astype(kind) for s in [(4, 3, 1, 1), (4, 1, 1)])
    steps = (
        lambda x: relax.op.nn.conv2d(x, constant(weight)),
        lambda y: relax.op.multiply(y, constant(factor)),
    )
    mod, report = fold(module([("x", (1, 3, 4, 4), dtype)], emitted(*steps)))
    assert [decision.fired for decision in report.decisions] == [True]
    [call] = [call for _, call in calls(mod)]
    want = (weight.astype(np.float64) * factor.astype(np.float64)[..., None]).astype(kind)
    np.testing.assert_array_equal(constant_array(call.args[1]), want)


def test_batch_norm_without_a_product_before_it(tmp_path):
    model = imported(X, lambda x: [relax.op.nn.relu(norm(relax.op.exp(x), 3))])
    x = weights(1, 3, 8, 8, seed=9)
    plain = engine(tmp_path, model, level=0).run(x)[0]
    np.testing.assert_allclose(engine(tmp_path, model).run(x)[0], plain, rtol=1e-5, atol=1e-5)
