"""Constant scales and shifts move into the product that reads them, or into one another."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes import fold_input_scale

from tests.models import constant, context, engine, imported, module, weights
from tests.relay_passes.test_fold_affine import PRODUCTS, emitted, ops, product

X = [("x", (2, 6), "float32")]


def fold(mod):
    made = context()
    return fold_input_scale.PASS.apply(mod, made), made.report


def reasons(mod):
    after, report = fold(mod)
    assert ops(after) == ops(mod)
    return [decision.reason for decision in report.decisions if not decision.fired]


def steps(*pairs):
    """A body of operators with one constant each."""

    def step(name, value):
        return lambda x: getattr(relax.op, name)(x, constant(value, "float32"))

    return emitted(*(step(*pair) for pair in pairs))


def agree(folder, model, x, close=1e-4):
    plain = engine(folder, model, level=0).run(x)[0]
    np.testing.assert_allclose(engine(folder, model).run(x)[0], plain, rtol=close, atol=close)


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(x: R.Tensor((1, 2), "float32")) -> R.Tensor((1, 2), "float32"):
        with R.dataflow():
            y = R.multiply(x, R.const([10.0, 100.0], "float32"))
            z = R.add(y, R.const([1.0, 2.0], "float32"))
            out = R.matmul(z, R.const([[1.0, 2.0], [3.0, 4.0]], "float32"))
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((1, 2), "float32")) -> R.Tensor((1, 2), "float32"):
        with R.dataflow():
            y = R.matmul(x, R.const([[10.0, 20.0], [300.0, 400.0]], "float32"))
            out = R.add(y, R.const([7.0, 10.0], "float32"))
            R.output(out)
        return out


def test_before_and_expected():
    mod, report = fold(Before)
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()
    assert [(d.subject, d.fired) for d in report.decisions] == [("z", True), ("y", True)]


def test_gain_of_a_step_over_an_input_is_its_kernel():
    body = emitted(
        lambda x: relax.op.multiply(x, constant(np.float32(3))),
        lambda x: relax.op.matmul(x, constant(weights(6, 4))),
    )
    _, report = fold(module(X, body))
    [decision] = report.decisions
    assert (decision.flops_saved, decision.bytes_saved, decision.launches_saved) == (12, 96, 1)


@pytest.mark.parametrize(("kind", "groups"), PRODUCTS)
def test_every_product_takes_a_scale_per_input(tmp_path, kind, groups):
    shape, body, _, inputs = product(kind, groups)
    spread = (inputs,) if "m" in kind else (inputs, *(1,) * (len(shape) - 2))
    scale = constant(weights(*spread, seed=1))
    parts = (lambda x: relax.op.divide(x, scale), body)
    mod, _ = fold(module([("x", shape, "float32")], emitted(*parts)))
    assert "relax.divide" not in ops(mod)
    agree(
        tmp_path,
        imported([("x", shape, "float32")], emitted(*parts)),
        weights(*shape, seed=9),
    )


@pytest.mark.parametrize(("kind", "groups"), PRODUCTS)
def test_shifts_become_biases_but_of_transposed_convolutions(tmp_path, kind, groups):
    shape, body, _, inputs = product(kind, groups)
    spread = (inputs,) if "m" in kind else (inputs, *(1,) * (len(shape) - 2))
    shift = constant(weights(*spread, seed=1))
    parts = (relax.op.exp, lambda x: relax.op.subtract(x, shift), body)
    mod = module([("x", shape, "float32")], emitted(*parts[1:]))
    if "transpose" in kind:
        [given] = reasons(mod)
        assert "transposed convolution" in given
        return
    after, _ = fold(mod)
    assert "relax.subtract" not in ops(after)
    agree(
        tmp_path,
        imported([("x", shape, "float32")], emitted(*parts[1:])),
        weights(*shape, seed=9),
    )


def test_shift_before_padding_stays_and_a_scale_moves():
    x = [("x", (1, 3, 4, 4), "float32")]

    def convolve(y):
        return relax.op.nn.conv2d(y, constant(weights(4, 3, 3, 3)), padding=1)

    two = constant(np.float32(2))
    [given] = reasons(module(x, emitted(lambda y: relax.op.add(y, two), convolve)))
    assert given == "padding [1, 1, 1, 1] is not shifted"
    after, _ = fold(module(x, emitted(lambda y: relax.op.multiply(y, two), convolve)))
    assert ops(after) == ["relax.nn.conv2d"]


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        ([("multiply", 2), ("multiply", 3)], ["relax.multiply"]),
        ([("multiply", 2), ("divide", [4] * 6), ("multiply", 3)], ["relax.multiply"]),
        ([("add", 2), ("add", 3)], ["relax.add"]),
        ([("subtract", 2), ("subtract", 3)], ["relax.add"]),
    ],
)
def test_merged(tmp_path, pairs, left):
    mod, _ = fold(module(X, steps(*pairs)))
    assert ops(mod) == left
    agree(tmp_path, imported(X, steps(*pairs)), weights(2, 6), 1e-6)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([("multiply", 1e-15), ("multiply", 1e-15)], "1e-30 is beyond"),
        ([("multiply", 1e30), ("multiply", 1e-30)], "1e+30 is beyond"),
        ([("multiply", 2), ("divide", 0)], "the constant holds inf"),
        ([("add", 12582912), ("subtract", 12582912)], "would lose digits"),
        ([("add", 1000), ("add", 1e-5)], "would lose digits"),
        ([("add", np.nan), ("add", 1)], "the constant holds nan"),
    ],
)
def test_constants_that_stay_apart(pairs, reason):
    [given] = reasons(module(X, steps(*pairs)))
    assert reason in given


def test_value_in_between_with_another_reader_stays():
    two = constant(np.float32(2))
    matrix = constant(weights(6, 4))

    def scaled(x):
        y = relax.BlockBuilder.current().emit(relax.op.multiply(x, two))
        return [relax.op.matmul(y, matrix), relax.op.multiply(y, two)]

    first, second = reasons(module(X, scaled))
    assert "read elsewhere" in first
    assert "read elsewhere" in second


def test_weight_of_two_products_is_not_copied_for_a_scale():
    shared = constant(weights(6, 512))

    def body(x):
        y = relax.op.multiply(relax.op.exp(x), constant(np.float32(2)))
        return [relax.op.matmul(y, shared), relax.op.matmul(x, shared)]

    [given] = reasons(module(X, body))
    assert f"a copy takes {6 * 512 * 4} bytes" in given


@pytest.mark.parametrize(
    "mod",
    [
        # Integers wrap around: they are exact, and need not be merged.
        module(
            [("x", (2, 6), "int32")],
            emitted(*[lambda x: relax.op.multiply(x, constant(2, "int32"))] * 2),
        ),
        # The factor varies along the rows, not along the features.
        module(
            X,
            emitted(
                lambda x: relax.op.multiply(x, constant(weights(2, 1))),
                lambda x: relax.op.matmul(x, constant(weights(6, 4))),
            ),
        ),
        # The factor makes six features of one, in rows whose number is open.
        module(
            [("x", ("n", 1), "float32")],
            emitted(
                lambda x: relax.op.multiply(x, constant(weights(6))),
                lambda x: relax.op.matmul(x, constant(weights(6, 4))),
            ),
        ),
        # The factor is an input.
        module(
            [*X, ("s", (6,), "float32")],
            lambda x, s: [relax.op.matmul(relax.op.multiply(x, s), constant(weights(6, 4)))],
        ),
    ],
)
def test_no_pattern(mod):
    assert reasons(mod) == []


def test_float16_shift_stays():
    half = constant(np.ones((6,), np.float16))
    mod = module(
        [("x", (2, 6), "float16")],
        emitted(
            lambda x: relax.op.add(x, half),
            lambda x: relax.op.matmul(x, constant(weights(6, 4).astype(np.float16))),
        ),
    )
    [given] = reasons(mod)
    assert "float16 would round" in given
