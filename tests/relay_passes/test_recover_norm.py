"""Layer and RMS norms are found in every spelling, and in nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes.recover_norm import PASS

from tests.models import constant, engine, fake_target, imported, weights
from tests.relay_passes.recovery import (
    Emitting,
    assert_same_values,
    declines,
    evaluate,
    fired,
    operators,
    prepared,
    recovered,
)
from uif_tvm.target.spec import Refusal

op = Emitting()
X = [("x", (2, 3, 16), "float32")]
GAMMA, BETA = weights(16, seed=1), weights(16, seed=2)


def const(value, dtype="float32"):
    return constant(np.asarray(value, dtype))


# -- spellings: each part of the formula in the ways that frontends write it ---------------------


def mean(x, axes, how):
    if how == "mean":
        return op.mean(x, axes, keepdims=True)
    kept = [1 if at in axes else int(n) for at, n in enumerate(x.ty.shape)]
    count = float(np.prod([int(x.ty.shape[axis]) for axis in axes]))
    if how == "sum":
        return op.divide(op.sum(x, axes, keepdims=True), const(count))
    if how == "sum-reciprocal":
        return op.multiply(const([1 / count]), op.sum(x, axes, keepdims=True))
    return op.reshape(op.mean(x, axes, keepdims=False), kept)


def square(x, how):
    return {
        "multiply": lambda: op.multiply(x, x),
        "power": lambda: op.power(x, const(2.0)),
        "square": lambda: op.square(x),
    }[how]()


def over_root(top, variance, how):
    half = const(0.5)
    return {
        "divide": lambda: op.divide(top, op.sqrt(variance)),
        "rsqrt": lambda: op.multiply(top, op.rsqrt(variance)),
        "rsqrt-first": lambda: op.multiply(op.rsqrt(variance), top),
        "reciprocal": lambda: op.multiply(top, op.divide(const(1.0), op.sqrt(variance))),
        "power": lambda: op.divide(top, op.power(variance, half)),
        "negative-power": lambda: op.multiply(top, op.power(variance, const(-0.5))),
    }[how]()


def plus(a, b, swapped):
    return op.add(b, a) if swapped else op.add(a, b)


def times(a, b, swapped):
    return op.multiply(b, a) if swapped else op.multiply(a, b)


MEANS = ("mean", "sum", "sum-reciprocal", "reshaped")
SQUARES = ("multiply", "power", "square")
ROOTS = ("divide", "rsqrt", "rsqrt-first", "reciprocal", "power", "negative-power")
#: Where the scale stands: behind the quotient, before it, with the deviation, or nowhere.
SCALES = ("after", "before", "inside", "none")


def layer_norm(x, how, axes=(2,), epsilon=1e-5, gamma=GAMMA, beta=BETA):
    """``how``: spelling of (mean, square, root, scale), operands swapped, whether there is beta."""
    averaged, squared, rooted, scale, swapped, shifted = how
    top = op.subtract(x, mean(x, axes, averaged))
    variance = plus(mean(square(top, squared), axes, averaged), const(epsilon), swapped)
    gamma = constant(gamma)
    if scale == "before":
        y = over_root(times(top, gamma, swapped), variance, rooted)
    elif scale == "inside":
        y = times(top, times(op.rsqrt(variance), gamma, swapped), swapped)
    else:
        y = over_root(top, variance, rooted)
        y = times(y, gamma, swapped) if scale == "after" else y
    return plus(y, constant(beta), swapped) if shifted else y


def rms_norm(x, how, weight=GAMMA, epsilon=1e-6):
    averaged, squared, rooted, scale, swapped, _ = how
    variance = plus(mean(square(x, squared), (2,), averaged), const(epsilon), swapped)
    y = over_root(x, variance, rooted)
    return y if scale == "none" else times(y, constant(weight), swapped)


spellings = st.tuples(
    *map(st.sampled_from, (MEANS, SQUARES, ROOTS, SCALES)), st.booleans(), st.booleans()
)
COVER = [
    (MEANS[i % 4], SQUARES[i % 3], ROOTS[i % 6], SCALES[i % 4], bool(i % 2), bool(i % 3))
    for i in range(12)
]


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(x: R.Tensor((2, 2), "float32")) -> R.Tensor((2, 2), "float32"):
        with R.dataflow():
            m = R.mean(x, axis=[-1], keepdims=True)
            d = R.subtract(x, m)
            s = R.power(d, R.const(2.0, "float32"))
            v = R.mean(s, axis=[-1], keepdims=True)
            e = R.add(v, R.const(0.5, "float32"))
            q = R.sqrt(e)
            n = R.divide(d, q)
            g = R.multiply(n, R.const([2.0, 3.0], "float32"))
            y = R.add(g, R.const([4.0, 5.0], "float32"))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((2, 2), "float32")) -> R.Tensor((2, 2), "float32"):
        with R.dataflow():
            y = R.nn.layer_norm(
                x,
                R.const([2.0, 3.0], "float32"),
                R.const([4.0, 5.0], "float32"),
                axes=[-1],
                epsilon=0.5,
            )
            R.output(y)
        return y


def test_before_and_expected():
    after, decisions = recovered(PASS, Before)
    assert tvm_ffi.structural_equal(after, Expected, map_free_vars=True), after.script()
    assert [(d.subject, d.fired) for d in decisions] == [("y", True)]


def test_gain_is_what_fusion_would_leave():
    _, (decision,) = recovered(PASS, Before)
    # Kernels: mean; x - mean (read twice, so stored); mean of squares; the rest. Bytes of them:
    # (16 + 8) + (16 + 8 + 16) + (16 + 8) + (16 + 8 + 16), after it 16 + 16.
    assert (decision.launches_saved, decision.bytes_saved) == (3, 128 - 32)
    assert decision.gain_us > 0
    assert decision.basis == "roofline"


@pytest.mark.parametrize("how", COVER, ids=map(str, range(len(COVER))))
@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_spellings(norm, how):
    mod = prepared(X, lambda x: norm(x, how))
    after, decisions = recovered(PASS, mod)
    assert fired(decisions) == [norm.__name__], mod.script()
    assert operators(after) == [norm.__name__]
    x = weights(2, 3, 16, seed=9) * 3 + 1
    assert_same_values(mod, after, x)


@given(spellings, st.sampled_from([layer_norm, rms_norm]), st.floats(1e-8, 1.0))
@settings(deadline=None, max_examples=40)
def test_any_spelling(how, norm, epsilon):
    mod = prepared(X, lambda x: norm(x, how, epsilon=epsilon))
    after, _ = recovered(PASS, mod)
    assert operators(after) == [norm.__name__], mod.script()
    x = weights(2, 3, 16, seed=9)
    x[0, 0] = 0.25  # no variance at all
    x[0, 1, 3], x[0, 2, 5], x[1, 0, 2] = np.inf, -np.inf, np.nan
    assert_same_values(mod, after, x)


HOW = ("mean", "multiply", "divide", "after", False, True)


def test_variance_operator():
    def body(x):
        top = op.subtract(x, op.mean(x, -1, True))
        return op.divide(top, op.sqrt(op.add(op.variance(x, -1, True), const(1e-5))))

    mod = prepared(X, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["layer_norm"]
    assert_same_values(mod, after, weights(2, 3, 16))


def test_two_centred_copies_are_one_norm():
    """Before common subexpressions are shared, numerator and variance have their own copies."""

    @I.ir_module(s_tir=True)
    class Copies:
        @R.function
        def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
            with R.dataflow():
                m = R.mean(x, axis=[-1], keepdims=True)
                d = R.subtract(x, m)
                m2 = R.mean(x, axis=[-1], keepdims=True)
                d2 = R.subtract(x, m2)
                v = R.mean(R.multiply(d2, d2), axis=[-1], keepdims=True)
                y = R.multiply(d, R.rsqrt(R.add(v, R.const(1e-5, "float32"))))
                R.output(y)
            return y

    after, _ = recovered(PASS, Copies)
    assert operators(after) == ["layer_norm"]


@pytest.mark.parametrize("scaled", [False, True])
def test_mean_folded_into_the_shift(scaled):
    """``x k + (b - mean k)``: how TensorFlow spells batch and layer norms."""

    def body(x):
        average = op.mean(x, -1, True)
        top = op.subtract(x, average)
        variance = op.mean(op.multiply(top, top), -1, True)
        k = op.rsqrt(op.add(variance, const(1e-3)))
        k = op.multiply(k, constant(GAMMA)) if scaled else k
        return op.add(op.multiply(x, k), op.subtract(constant(BETA), op.multiply(average, k)))

    mod = prepared(X, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["layer_norm"]
    assert_same_values(mod, after, weights(2, 3, 16))


def test_several_axes_are_normalised_as_one():
    mod = prepared([("x", (2, 3, 4, 5), "float32")], lambda x: layer_norm(
        x, HOW, (2, 3), gamma=weights(4, 5), beta=weights(5)
    ))  # fmt: skip
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["reshape", "layer_norm", "reshape"]
    assert_same_values(mod, after, weights(2, 3, 4, 5))


def test_group_norm_keeps_its_own_scale():
    def body(x):
        y = layer_norm(
            op.reshape(x, (2, 2, 24)), ("mean", "square", "divide", "none", False, False)
        )
        y = op.multiply(op.reshape(y, (2, 4, 12)), const(weights(4, 1)))
        return op.add(y, const(weights(4, 1, seed=1)))

    mod = prepared([("x", (2, 4, 12), "float32")], body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["reshape", "layer_norm", "reshape", "multiply", "add"]
    assert_same_values(mod, after, weights(2, 4, 12))


def test_adaptive_scale_follows_the_norm():
    """A scale that varies from sample to sample is no parameter of the operator."""
    rows = [*X, ("s", (2, 1, 16), "float32"), ("b", (2, 1, 16), "float32")]

    def body(x, s, b):
        top = op.subtract(x, op.mean(x, -1, True))
        r = op.rsqrt(op.add(op.mean(op.multiply(top, top), -1, True), const(1e-5)))
        return op.add(op.multiply(top, op.multiply(r, s)), b)

    mod = prepared(rows, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["layer_norm", "multiply", "add"]
    assert_same_values(mod, after, weights(2, 3, 16), weights(2, 1, 16), weights(2, 1, 16, seed=3))


def test_computed_parameters():
    rows = [*X, ("g", (16,), "float32"), ("b", (1, 1, 16), "float32")]

    def body(x, g, b):
        y = layer_norm(x, ("mean", "square", "rsqrt", "none", False, False))
        return op.add(op.multiply(op.exp(g), y), b)

    mod = prepared(rows, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["exp", "reshape", "layer_norm"]
    assert_same_values(mod, after, weights(2, 3, 16), weights(16), weights(1, 1, 16))


def test_euclidean_norm_with_an_epsilon():
    def body(x):
        return op.multiply(x, op.rsqrt(op.add(op.sum(op.multiply(x, x), -1, True), const(1e-6))))

    mod = prepared(X, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["rms_norm"]
    assert_same_values(mod, after, weights(2, 3, 16))


def test_norm_shared_by_two_scales_stays_one():
    def body(x):
        y = layer_norm(x, ("mean", "square", "divide", "none", False, False))
        return [op.multiply(y, const(GAMMA)), op.multiply(y, const(BETA))]

    mod = prepared(X, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["layer_norm", "multiply", "multiply"]


def llama_norm(x, weight, weight_first, cast_weight):
    """In float32 between casts, as Llama has it; the weight multiplied in either type."""
    dtype = str(x.ty.dtype)
    wide = op.astype(x, "float32")
    scale = op.rsqrt(op.add(op.mean(op.multiply(wide, wide), -1, True), const(1e-6)))
    y = op.multiply(wide, scale)
    if cast_weight:
        return op.astype(op.multiply(y, constant(weight.astype("float32"))), dtype)
    y = op.astype(y, dtype)
    return times(y, constant(weight), weight_first)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("weight_first", "cast_weight"), [(True, False), (False, False), (False, True)]
)
def test_casts_around_the_norm(dtype, weight_first, cast_weight):
    weight = evaluate(prepared([("w", (16,), "float32")], lambda w: op.astype(w, dtype)), GAMMA)[0]
    mod = prepared(
        [("x", (2, 3, 16), dtype)], lambda x: llama_norm(x, weight, weight_first, cast_weight)
    )
    after, decisions = recovered(PASS, mod)
    assert operators(after) == ["rms_norm"], mod.script()
    assert "recovered from" in decisions[0].reason
    x = np.asarray(weights(2, 3, 16) * 30, dtype=weight.dtype)
    assert_same_values(mod, after, x)


def test_weight_that_a_narrow_type_would_round_keeps_the_norm_wide():
    def body(x):
        wide = op.astype(x, "float32")
        y = rms_norm(wide, ("mean", "multiply", "rsqrt", "after", False, False), GAMMA)
        return op.astype(y, "float16")

    after, _ = recovered(PASS, prepared([("x", (2, 3, 16), "float16")], body))
    assert operators(after) == ["astype", "rms_norm", "astype"]


def test_cast_shared_with_others_stays():
    def body(x):
        wide = op.astype(x, "float32")
        y = rms_norm(wide, ("mean", "multiply", "rsqrt", "none", False, False))
        return [op.astype(y, "float16"), op.exp(wide)]

    after, decisions = recovered(PASS, prepared([("x", (2, 3, 16), "float16")], body))
    assert sorted(operators(after)) == ["astype", "exp", "rms_norm"]
    assert decisions[0].fired


def test_open_extents(tmp_path):
    rows = [("x", ("batch", "tokens", 16), "float32")]

    def body(x):
        return [layer_norm(x, HOW), rms_norm(x, ("mean", "power", "rsqrt", "after", True, False))]

    model = imported(rows, body)
    mod = prepared(rows, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["layer_norm", "rms_norm"]
    made = engine(tmp_path, model, level=2)
    for batch, tokens in ((1, 5), (3, 1)):
        x = weights(batch, tokens, 16)
        for have, want in zip(made.run(x), evaluate(mod, x), strict=True):
            np.testing.assert_allclose(have, want, 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_agree_with_the_spelled_out_graph(tmp_path, dtype):
    """Compiled at level 0 and at level 2, on rows without variance, with infinities and NaN."""
    parameters = {"gamma": GAMMA.astype(dtype), "beta": BETA.astype(dtype)}

    def body(x):
        top = op.subtract(x, op.mean(x, -1, True))
        variance = op.add(op.mean(op.multiply(top, top), -1, True), const(1e-3, dtype))
        y = op.multiply(op.divide(top, op.sqrt(variance)), constant(parameters["gamma"]))
        squares = op.add(op.mean(op.multiply(x, x), -1, True), const(1e-3, dtype))
        return [op.add(y, constant(parameters["beta"])), op.multiply(x, op.rsqrt(squares))]

    model = imported([("x", (7, 16), dtype)], body)
    x = weights(7, 16, seed=9).astype(dtype)
    x[0], x[1] = 0.5, 0
    x[2, 3], x[3, 5], x[4, 2] = np.inf, -np.inf, np.nan
    plain = engine(tmp_path, model, level=0).run(x)
    made = engine(tmp_path, model, level=2)
    rounding = {"float32": 1e-4, "float16": 1e-2}[dtype]
    for have, want in zip(made.run(x), plain, strict=True):
        np.testing.assert_allclose(have, want, rounding, rounding)
    found = [d for d in made.report["decisions"] if d["pass_name"] == "recover-norm"]
    assert sorted(d["reason"].split()[0] for d in found) == ["layer_norm", "rms_norm"]


# -- declines ------------------------------------------------------------------------------------


def centred_over(x, axes):
    top = op.subtract(x, op.mean(x, axes, True))
    return op.divide(top, op.sqrt(op.add(op.mean(op.multiply(top, top), axes, True), const(1e-5))))


def test_axis_must_be_the_last():
    mod = prepared(X, lambda x: centred_over(x, [1]))
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert declines(decisions) == ["axis (1,) is not the last of 3"]


def test_epsilon_must_be_one_number():
    def body(x):
        e = const(np.full((1, 3, 1), 1e-5))
        return op.multiply(x, op.rsqrt(op.add(op.mean(op.multiply(x, x), -1, True), e)))

    mod = prepared(X, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert declines(decisions) == ["epsilon differs per channel"]


def test_epsilon_must_be_inside_the_root():
    def body(x):
        top = op.subtract(x, op.mean(x, -1, True))
        deviation = op.sqrt(op.mean(op.multiply(top, top), -1, True))
        return op.divide(top, op.add(deviation, const(0.25)))

    after, decisions = recovered(PASS, prepared(X, body))
    assert "layer_norm" not in operators(after)
    assert declines(decisions) == ["epsilon 0.25 is added to the deviation, not the variance"]


def test_clamped_norm():
    def body(x):
        norm = op.sqrt(op.sum(op.multiply(x, x), -1, True))
        return op.divide(x, op.maximum(norm, const(1e-12)))

    after, decisions = recovered(PASS, prepared(X, body))
    assert "rms_norm" not in operators(after)
    assert declines(decisions) == ["the norm is limited from below, not regularised by an epsilon"]


def test_intermediate_value_used_elsewhere():
    def body(x):
        top = op.subtract(x, op.mean(x, -1, True))
        variance = op.add(op.mean(op.multiply(top, top), -1, True), const(1e-5))
        return [op.divide(top, op.sqrt(variance)), op.exp(top)]

    mod = prepared(X, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert len(decisions) == 1
    assert "layer_norm: intermediate value is used elsewhere: lv" in declines(decisions)[0]


def test_target_without_the_operator():
    def refuses(name, attrs, dtypes):
        return Refusal("no-unit", f"{name} of {dtypes[0]}") if name == "layer_norm" else None

    mod = prepared(X, lambda x: layer_norm(x, HOW))
    after, decisions = recovered(PASS, mod, target=fake_target(capability=refuses))
    assert tvm_ffi.structural_equal(after, mod)
    assert declines(decisions) == [
        "layer_norm: the target refuses it: no-unit: layer_norm of float32"
    ]


@pytest.mark.parametrize(
    "body",
    [
        # Another tensor's deviation.
        lambda x: op.divide(x, op.sqrt(op.mean(op.square(op.exp(x)), -1, True))),
        # The mean of another axis.
        lambda x: op.divide(
            op.subtract(x, op.mean(x, 1, True)),
            op.sqrt(op.mean(op.square(op.subtract(x, op.mean(x, -1, True))), -1, True)),
        ),
        # A fourth power, a cube root, twice the mean.
        lambda x: op.divide(x, op.sqrt(op.mean(op.power(x, const(4.0)), -1, True))),
        lambda x: op.divide(x, op.power(op.mean(op.square(x), -1, True), const(1 / 3))),
        lambda x: op.divide(
            op.subtract(x, op.multiply(const(2.0), op.mean(x, -1, True))),
            op.sqrt(op.mean(op.square(op.subtract(x, op.mean(x, -1, True))), -1, True)),
        ),
        # The statistic of a row stands against columns.
        lambda x: op.divide(
            op.reshape(x, (6, 4, 4)),
            op.sqrt(op.reshape(op.mean(op.square(op.reshape(x, (6, 4, 4))), -1), (6, 1, 4))),
        ),
    ],
)  # fmt: skip
def test_other_formulas_stay(body):
    mod = prepared(X, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod), after.script()
    assert not fired(decisions)


def test_integers_stay():
    rows = [("x", (2, 16), "int32")]
    mod = prepared(rows, lambda x: op.multiply(x, x))
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert decisions == []


def test_one_pass_over_a_deep_model_is_linear_work():
    """Every binding is looked at once, whatever was recovered before it."""

    def body(x):
        for how in itertools.islice(itertools.cycle(COVER), 48):
            x = layer_norm(x, how)
        return x

    after, decisions = recovered(PASS, prepared(X, body))
    assert operators(after) == ["layer_norm"] * 48
    assert len(decisions) == 48
