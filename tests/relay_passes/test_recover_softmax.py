"""Softmax and its logarithm are found in every spelling, and in nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes.recover_softmax import PASS

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
X = [("x", (3, 5, 7), "float32")]


def values():
    x = weights(3, 5, 7) * 30
    x[0, 0, :3], x[0, 1], x[1, 2, 3], x[2, 1, 0] = -np.inf, -np.inf, np.inf, np.nan
    return x


def reduced(reduce, x, axis, keep):
    if keep:
        return reduce(x, axis, True)
    kept = [1 if at == axis % 3 else n for at, n in enumerate(x.ty.shape)]
    return op.reshape(reduce(x, axis, False), kept)


def softmax(x, axis, keep=True, divided=True):
    powers = op.exp(op.subtract(x, reduced(op.max, x, axis, keep)))
    total = reduced(op.sum, powers, axis, keep)
    if divided:
        return op.divide(powers, total)
    return op.multiply(powers, op.divide(constant(np.float32(1)), total))


def log_softmax(x, axis, keep=True, divided=True):
    peak = reduced(op.max, x, axis, keep)
    shifted = op.subtract(x, peak)
    log = op.log(reduced(op.sum, op.exp(shifted), axis, keep))
    return op.subtract(shifted, log) if divided else op.subtract(x, op.add(log, peak))


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            m = R.max(x, axis=[-1], keepdims=True)
            d = R.subtract(x, m)
            e = R.exp(d)
            s = R.sum(e, axis=[-1], keepdims=True)
            y = R.divide(e, s)
            R.output(y)
        return y


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            y = R.nn.softmax(x, axis=1)
            R.output(y)
        return y


def test_before_and_expected():
    after, (decision,) = recovered(PASS, Before)
    assert tvm_ffi.structural_equal(after, Expected, map_free_vars=True), after.script()
    # Kernels: the maximum; e (read twice, so stored); its sum; the quotient.
    # (32 + 8) + (32 + 8 + 32) + (32 + 8) + (32 + 8 + 32) bytes against 32 + 32.
    assert (decision.launches_saved, decision.bytes_saved) == (3, 224 - 64)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("formula", [softmax, log_softmax])
def test_spellings(formula, axis, keep, divided):
    mod = prepared(X, lambda x: formula(x, axis, keep, divided))
    after, decisions = recovered(PASS, mod)
    assert fired(decisions) == [formula.__name__], mod.script()
    assert operators(after) == [formula.__name__]
    assert_same_values(mod, after, values())


def test_casts_around_a_softmax():
    def body(x):
        return op.astype(softmax(op.astype(x, "float32"), -1), "float16")

    mod = prepared([("x", (3, 5, 7), "float16")], body)
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["softmax"]
    assert_same_values(mod, after, weights(3, 5, 7).astype(np.float16))


def test_open_extents():
    mod = prepared([("x", ("a", "b", "c"), "float32")], lambda x: softmax(x, 2))
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["softmax"]


def test_kernels_agree_with_the_spelled_out_graph(tmp_path):
    two = constant(np.float32(2))
    model = imported(
        X, lambda x: [softmax(x, -1), log_softmax(op.multiply(x, two), -1), softmax(x, 1)]
    )
    plain = engine(tmp_path, model, level=0).run(values())
    made = engine(tmp_path, model, level=2)
    for have, want in zip(made.run(values()), plain, strict=True):
        np.testing.assert_allclose(have, want, 1e-4, 1e-5)
    found = [d for d in made.report["decisions"] if d["pass_name"] == PASS.name and d["fired"]]
    assert len(found) == 3


@pytest.mark.parametrize("log", [False, True])
def test_not_shifted_by_its_maximum(log):
    """At 1000 the formula is infinite or NaN, the operator is not."""

    def body(x):
        powers = op.exp(x)
        total = op.sum(powers, -1, True)
        return op.subtract(x, op.log(total)) if log else op.divide(powers, total)

    mod = prepared(X, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert declines(decisions) == [
        "the exponent is not shifted by its maximum, overflow would differ"
    ]


def test_sum_used_elsewhere():
    def body(x):
        powers = op.exp(op.subtract(x, op.max(x, -1, True)))
        total = op.sum(powers, -1, True)
        return [op.divide(powers, total), op.exp(total)]

    mod = prepared(X, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert "softmax: intermediate value is used elsewhere" in declines(decisions)[0]


@pytest.mark.parametrize(
    "body",
    [
        # The maximum of another axis, or of all; a sum of another axis, or of others' powers.
        lambda x: _odd(x, 0, 2),
        lambda x: _odd(x, None, 2),
        lambda x: _odd(x, 2, 0),
        lambda x: op.divide(
            op.exp(op.subtract(x, op.max(x, -1, True))), op.sum(op.exp(x), -1, True)
        ),
    ],
)
def test_other_formulas_stay(body):
    mod = prepared(X, body)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, mod)
    assert not fired(decisions)


def _odd(x, peak_axis, sum_axis):
    powers = op.exp(op.subtract(x, op.max(x, peak_axis, True)))
    return op.divide(powers, op.sum(powers, sum_axis, True))
