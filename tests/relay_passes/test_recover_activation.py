"""Activations are found in every spelling, and in nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes.recover_activation import PASS

from tests.models import constant, engine, imported, weights
from tests.relay_passes.recovery import (
    Emitting,
    assert_same_values,
    declines,
    fired,
    operators,
    prepared,
    recovered,
)

op = Emitting()
X = [("x", (2, 24), "float32")]
VALUES = np.concatenate(
    [weights(40) * 4, np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 90, -90, 1e-30], np.float32)]
).reshape(2, 24)


def const(value, dtype="float32"):
    return constant(np.asarray(value, dtype))


def half(x, rest, how):
    """``x rest / 2`` in any grouping."""
    dtype = str(x.ty.dtype)
    point5, two = const(0.5, dtype), const([2.0], dtype)
    return {
        "x-first": lambda: op.multiply(op.multiply(x, point5), rest),
        "half-last": lambda: op.multiply(op.multiply(x, rest), point5),
        "divided": lambda: op.divide(op.multiply(rest, x), two),
        "rest-first": lambda: op.multiply(x, op.multiply(point5, rest)),
    }[how]()


HALVES = ("x-first", "half-last", "divided", "rest-first")


def gelu(x, how="x-first", divided=True, swapped=False):
    dtype = str(x.ty.dtype)
    if divided:
        inner = op.divide(x, const(math.sqrt(2), dtype))
    else:
        inner = op.multiply(const(math.sqrt(0.5), dtype), x)
    one = const(1.0, dtype)
    curve = op.erf(inner)
    return half(x, op.add(one, curve) if swapped else op.add(curve, one), how)


def gelu_tanh(x, how="x-first", divided=True, swapped=False):
    cube = op.multiply(op.multiply(x, x), x) if divided else op.power(x, const(3.0))
    line = op.add(x, op.multiply(const(0.044715), cube))
    if swapped:
        square = op.multiply(x, x)
        line = op.multiply(x, op.add(const(1.0), op.multiply(square, const(0.044715))))
    return half(
        x, op.add(op.tanh(op.multiply(line, const(math.sqrt(2 / math.pi)))), const(1.0)), how
    )


def silu(x, how="x-first", divided=True, swapped=False):
    bottom = op.add(const(1.0), op.exp(op.negative(x)))
    if divided:
        return op.divide(x, bottom)
    gate = op.divide(const(1.0), bottom)
    return op.multiply(gate, x) if swapped else op.multiply(x, gate)


def quick_gelu(x, how="x-first", divided=True, swapped=False):
    scaled = op.multiply(x, const(1.702)) if divided else op.multiply(const([1.702]), x)
    gate = op.sigmoid(scaled)
    return op.multiply(gate, x) if swapped else op.multiply(x, gate)


def mish(x, how="x-first", divided=True, swapped=False):
    soft = op.nn.softplus(x) if divided else op.log(op.add(const(1.0), op.exp(x)))
    gate = op.tanh(soft)
    return op.multiply(gate, x) if swapped else op.multiply(x, gate)


def hard_swish(x, how="x-first", divided=True, swapped=False):
    line = op.add(x, const(3.0))
    limited = op.clip(line, 0, 6) if divided else op.minimum(op.nn.relu(line), const(6.0))
    if swapped:
        return op.multiply(op.divide(limited, const(6.0)), x)
    return op.divide(op.multiply(x, limited), const(6.0))


def hard_sigmoid(x, how="x-first", divided=True, swapped=False):
    if divided:
        return op.clip(op.add(op.multiply(x, const(0.2)), const(0.5)), 0, 1)
    line = op.add(const(3.0), x)
    return op.divide(op.minimum(op.maximum(line, const(0.0)), const(6.0)), const(6.0))


def sigmoid(x, how="x-first", divided=True, swapped=False):
    return op.divide(const(1.0), op.add(const(1.0), op.exp(op.negative(x))))


FORMULAS = (gelu, gelu_tanh, silu, quick_gelu, mish, hard_swish, hard_sigmoid, sigmoid)


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(x: R.Tensor((2, 2), "float32")) -> R.Tensor((2, 2), "float32"):
        with R.dataflow():
            a = R.divide(x, R.const(1.4142135623730951, "float32"))
            b = R.erf(a)
            c = R.add(b, R.const(1.0, "float32"))
            d = R.multiply(x, c)
            y = R.multiply(d, R.const(0.5, "float32"))
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((2, 2), "float32")) -> R.Tensor((2, 2), "float32"):
        with R.dataflow():
            y = R.nn.gelu(x)
            R.output(y)
        return y


def test_before_and_expected():
    after, decisions = recovered(PASS, Before)
    assert tvm_ffi.structural_equal(after, Expected, map_free_vars=True), after.script()
    (decision,) = decisions
    # Fusion joins what runs per element anyway: neither launches nor bytes are saved.
    assert (decision.fired, decision.launches_saved, decision.bytes_saved) == (True, 0, 0)
    assert decision.reason == "gelu recovered from 5 operators"


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("how", HALVES)
@pytest.mark.parametrize("formula", FORMULAS)
def test_spellings(formula, how, divided, swapped):
    mod = prepared(X, lambda x: formula(x, how, divided, swapped))
    after, decisions = recovered(PASS, mod)
    assert fired(decisions)[-1:] == [formula.__name__], mod.script()
    assert operators(after) == [formula.__name__]
    assert_same_values(mod, after, VALUES)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("grouped", [False, True])
def test_gated_by_another_tensor(formula, grouped):
    """``f(x) y`` in whatever order the factors are multiplied."""
    rows = [*X, ("y", (2, 24), "float32")]

    def body(x, y):
        if grouped and formula is gelu:
            curve = op.add(op.erf(op.divide(x, const(math.sqrt(2)))), const(1.0))
            return op.multiply(op.multiply(op.multiply(x, y), const(0.5)), curve)
        return op.multiply(y, formula(x))

    mod = prepared(rows, body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == [formula.__name__, "multiply"]
    assert_same_values(mod, after, VALUES, weights(2, 24, seed=3))


@given(st.floats(0.01, 8.0), st.floats(0.01, 8.0))
@settings(deadline=None, max_examples=25)
def test_sigmoid_of_a_multiple(alpha, factor):
    mod = prepared(
        X,
        lambda x: op.multiply(
            op.multiply(x, const(factor)), op.sigmoid(op.multiply(const(alpha), x))
        ),
    )
    after, _ = recovered(PASS, mod)
    assert operators(after)[0] in ("quick_gelu", "silu")
    assert_same_values(mod, after, VALUES)


def test_value_computed_from_others():
    """``x`` may be a sum or a product itself."""
    mod = prepared(
        [*X, ("b", (24,), "float32")], lambda x, b: gelu(op.multiply(op.add(x, b), const(3.0)))
    )
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["add", "multiply", "gelu"]
    assert_same_values(mod, after, VALUES, weights(24))


def test_casts_around_an_activation():
    def body(x):
        return op.astype(silu(op.astype(x, "float32")), "float16")

    mod = prepared([("x", (2, 24), "float16")], body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["silu"]
    assert_same_values(mod, after, VALUES.astype(np.float16))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_constants_rounded_to_16_bits(dtype):
    mod = prepared([("x", (2, 24), dtype)], lambda x: gelu(x))
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["gelu"]


def test_open_extents():
    mod = prepared([("x", ("n", 8), "float32")], lambda x: [gelu(x), hard_swish(x)])
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["gelu", "hard_swish"]


def test_kernels_agree_with_the_spelled_out_graph(tmp_path):
    def body(x):
        # Each has operands of its own: they would share intermediate values otherwise.
        scales = (1, 2, -1, 0.5, -2, 3, -3, -0.5)
        return [f(op.multiply(x, const(s))) for f, s in zip(FORMULAS, scales, strict=True)]

    model = imported(X, body)
    plain = engine(tmp_path, model, level=0).run(VALUES)
    made = engine(tmp_path, model, level=2)
    for have, want in zip(made.run(VALUES), plain, strict=True):
        np.testing.assert_allclose(have, want, 1e-4, 1e-5)
    found = [d["reason"].split()[0] for d in made.report["decisions"]
             if d["pass_name"] == PASS.name and d["fired"]]  # fmt: skip
    assert set(found) == {formula.__name__ for formula in FORMULAS}


# -- declines ------------------------------------------------------------------------------------


def unchanged(body, rows=X):
    mod = prepared(rows, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod), after.script()
    assert not fired(decisions)
    return declines(decisions)


def test_other_scale_of_erf():
    def body(x):
        curve = op.add(op.erf(op.multiply(x, const(0.75))), const(1.0))
        return op.multiply(op.multiply(x, const(0.5)), curve)

    assert unchanged(body) == ["erf of 0.75 x, where gelu has 0.7071068 x"]


def test_a_constant_of_float32_is_not_the_formulas_in_float64():
    rows = [("x", (2, 24), "float64")]
    root = float(np.float32(math.sqrt(2)))  # off by 2e-8, which results of float64 show

    def body(x):
        curve = op.add(op.erf(op.divide(x, const(root, "float64"))), const(1.0, "float64"))
        return op.multiply(op.multiply(x, const(0.5, "float64")), curve)

    (reason,) = unchanged(body, rows)
    assert reason.startswith("erf of 0.7071068 x")


def test_other_cubic():
    def body(x):
        cube = op.multiply(op.power(x, const(3.0)), const(0.05))
        curve = op.add(op.tanh(op.add(x, cube)), const(1.0))
        return op.multiply(op.multiply(x, const(0.5)), curve)

    wanted = "tanh of 1 x + 0.05 x^3, where gelu has 0.7978846 x + 0.03567741 x^3"
    assert unchanged(body) == [wanted]


def test_intermediate_value_used_elsewhere():
    def body(x):
        curve = op.erf(op.divide(x, const(math.sqrt(2))))
        y = op.multiply(op.multiply(x, const(0.5)), op.add(curve, const(1.0)))
        return [y, op.exp(curve)]

    (reason,) = unchanged(body)
    assert reason.startswith("gelu: intermediate value is used elsewhere: lv")


@pytest.mark.parametrize(
    "body",
    [
        # The curve of another tensor, a product that is no gate, bounds that cross, a mere clip.
        lambda x, y: op.multiply(x, op.sigmoid(y)),
        lambda x, y: op.multiply(x, op.tanh(x)),
        lambda x, y: op.log(op.add(const(1.0), op.exp(x))),
        lambda x, y: op.clip(op.multiply(x, const(0.2)), 1, 0),
        lambda x, y: op.clip(x, 0, 1),
        # e^x / (1 + e^x) overflows where the sigmoid does not.
        lambda x, y: op.divide(op.exp(x), op.add(op.exp(x), const(1.0))),
    ],
)
def test_other_formulas_stay(body):
    assert unchanged(body, [*X, ("y", (2, 24), "float32")]) == []
