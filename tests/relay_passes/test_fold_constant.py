"""What depends on constants only is computed once, with NumPy's own result."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes import dead_code, fold_constant

from tests.models import constant, context, module
from uif_tvm.relax_util import calls, constant_array


def fold(mod):
    made = context(level=1)
    return fold_constant.PASS.apply(mod, made), made.report


def folded_value(make, inputs=()):
    """The constant that ``main``'s only result became; ``None`` when a call stayed."""
    mod, _ = fold(module(inputs, lambda *args: [make(*args)]))
    if list(calls(mod)):
        return None
    body = mod["main"].body
    result = body.body
    for block in body.blocks:
        for binding in block.bindings:
            if binding.var.same_as(result):
                result = binding.value
    return constant_array(result.fields[0])


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tuple(R.Tensor((3,), "float32")):
        with R.dataflow():
            a = R.add(R.const([1.0, 2.0, 3.0], "float32"), R.const([1.0, 1.0, 1.0], "float32"))
            b = R.multiply(a, R.const([2.0, 2.0, 2.0], "float32"))
            c = R.add(x, b)
            out = (c,)
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tuple(R.Tensor((3,), "float32")):
        with R.dataflow():
            c = R.add(x, R.const([4.0, 6.0, 8.0], "float32"))
            out = (c,)
            R.output(out)
        return out


def test_before_and_expected():
    mod, report = fold(Before)
    # Operands that nobody needs any more are the next pass's business.
    mod = dead_code.PASS.apply(mod, context(level=1))
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()
    assert [(d.subject, d.fired, d.reason) for d in report.decisions] == [
        ("a", True, "relax.add of constants, 36 B not moved"),
        ("b", True, "relax.multiply of constants, 36 B not moved"),
    ]
    assert all((d.bytes_saved, d.launches_saved, d.flops_saved) == (36, 1, 3)
               for d in report.decisions)  # fmt: skip


def test_nothing_to_fold_returns_the_module_itself():
    mod = module([("x", (3,), "float32")], lambda x: [relax.op.exp(x)])
    after, report = fold(mod)
    assert after is mod
    assert report.decisions == []


A = np.array([[1.5, -2.0, 0.25], [4.0, 5.0, -6.0]], np.float32)
ONE = constant(A)


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: relax.op.reshape(ONE, (3, 2)), A.reshape(3, 2)),
        (lambda: relax.op.permute_dims(ONE), A.T),
        (lambda: relax.op.permute_dims(ONE, [1, 0]), A.T),
        (lambda: relax.op.expand_dims(ONE, [0, 2]), A[None, :, None]),
        (lambda: relax.op.squeeze(constant(A[None]), [0]), A),
        (lambda: relax.op.squeeze(constant(A[None])), A),
        (lambda: relax.op.sqrt(relax.op.abs(ONE)), np.sqrt(np.abs(A))),
        (lambda: relax.op.astype(ONE, "int32"), A.astype(np.int32)),
        (lambda: relax.op.where(relax.op.greater(ONE, constant(A[:1])), ONE, ONE), A),
        (lambda: relax.op.add(ONE, constant(A[0])), A + A[0]),
        (lambda: relax.op.equal(ONE, ONE), np.ones_like(A, bool)),
    ],
)
def test_values(make, want):
    value = folded_value(make)
    assert value.dtype == want.dtype
    np.testing.assert_array_equal(value, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "uint8"])
def test_types_stay(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.array([1, 2, 3]).astype(kind)
    value = folded_value(lambda: relax.op.multiply(constant(x), constant(x)))
    assert value.dtype == kind
    np.testing.assert_array_equal(value.astype(int), [1, 4, 9])


def test_integer_division_rounds_toward_zero_as_at_run_time():
    x, y = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    value = folded_value(lambda: relax.op.divide(constant(x), constant(y)))
    np.testing.assert_array_equal(value, [3, -3, -3, 3])


def test_special_values_are_computed_without_a_warning(recwarn):
    x = np.array([0.0, -1.0, np.inf, np.nan], np.float32)
    value = folded_value(lambda: relax.op.log(constant(x)))
    np.testing.assert_array_equal(value, np.array([-np.inf, np.nan, np.inf, np.nan], np.float32))
    assert not recwarn.list


@pytest.mark.parametrize(
    "make",
    [
        # An integer to a negative power: NumPy refuses, the runtime has its own answer.
        lambda: relax.op.power(constant([2, 3]), constant([-1, 2])),
        # No reference is known.
        lambda: relax.op.nn.pixel_shuffle(constant(np.ones((1, 4, 2, 2))), 2),
        # A broadcast that would put megabytes into the file.
        lambda: relax.op.add(constant(np.ones((1000, 1))), constant(np.ones((1, 1000)))),
    ],
)
def test_declined(make):
    assert folded_value(make) is None


def test_small_growth_is_fine():
    made = folded_value(
        lambda: relax.op.add(constant(np.ones((50, 1))), constant(np.ones((1, 50))))
    )
    assert made.shape == (50, 50)


def test_views_of_any_size_fold():
    big = np.zeros((1000, 1000), np.float32)
    assert folded_value(lambda: relax.op.reshape(constant(big), (10, 100_000))) is not None


def test_operands_that_are_inputs_stay():
    inputs = [("x", (2, 3), "float32")]
    assert folded_value(lambda x: relax.op.add(x, ONE), inputs) is None


def test_growth_is_declined_with_its_figures():
    mod = module(
        [],
        lambda: [relax.op.add(constant(np.ones((1000, 1))), constant(np.ones((1, 1000))))],
    )
    _, report = fold(mod)
    (decision,) = report.decisions
    assert not decision.fired
    assert "makes 8000000 B of 16000 B, more than 2 times as many" in decision.reason
