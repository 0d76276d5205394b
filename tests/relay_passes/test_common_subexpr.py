"""Equal expressions are computed once."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes import common_subexpr, dead_code

from tests.models import constant, context, module
from uif_tvm.relax_util import calls, op_name


@I.ir_module(s_tir=True)
class Before:
    @R.function
    def main(
        x: R.Tensor((3,), "float32"),
    ) -> R.Tuple(R.Tensor((3,), "float32"), R.Tensor((3,), "float32")):
        with R.dataflow():
            a = R.exp(x)
            b = R.exp(x)
            c = R.add(a, b)
            d = R.exp(c)
            out = (c, d)
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(
        x: R.Tensor((3,), "float32"),
    ) -> R.Tuple(R.Tensor((3,), "float32"), R.Tensor((3,), "float32")):
        with R.dataflow():
            a = R.exp(x)
            c = R.add(a, a)
            d = R.exp(c)
            out = (c, d)
            R.output(out)
        return out


def test_before_and_expected():
    made = context()
    mod = dead_code.PASS.apply(common_subexpr.PASS.apply(Before, made), context())
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()
    (decision,) = made.report.decisions
    assert (decision.subject, decision.fired) == ("b", True)
    assert decision.reason == "relax.exp of the same operands as a, which takes its place"
    assert (decision.bytes_saved, decision.launches_saved) == (12, 1)


def test_different_attributes_are_different_expressions():
    @I.ir_module(s_tir=True)
    class Sums:
        @R.function
        def main(
            x: R.Tensor((2, 2), "float32"),
        ) -> R.Tuple(R.Tensor((2,), "float32"), R.Tensor((2,), "float32")):
            with R.dataflow():
                a = R.sum(x, axis=0)
                b = R.sum(x, axis=1)
                out = (a, b)
                R.output(out)
            return out

    mod = common_subexpr.PASS.apply(Sums, context())
    assert tvm_ffi.structural_equal(mod, Sums, map_free_vars=True)


def counted(body, *inputs):
    made = context()
    mod = common_subexpr.PASS.apply(module(inputs, body), made)
    left = [op_name(call) for _, call in calls(dead_code.PASS.apply(mod, context()))]
    return left, [d.subject for d in made.report.decisions]


def test_chains_of_equal_calls_become_one_chain():
    def body(x):
        emit = relax.BlockBuilder.current().emit
        return [emit(relax.op.sqrt(emit(relax.op.exp(x)))) for _ in range(3)]

    left, found = counted(body, ("x", (3,), "float32"))
    assert left == ["relax.exp", "relax.sqrt"]
    assert len(found) == 4


def test_small_constants_are_equal_by_value_and_large_ones_by_identity():
    large = np.arange(1000, dtype=np.float32)

    def body(x, y):
        emit = relax.BlockBuilder.current().emit
        small = [emit(relax.op.add(x, constant(2.0, "float32"))) for _ in range(2)]
        return small + [emit(relax.op.add(y, constant(large))) for _ in range(2)]

    left, _ = counted(body, ("x", (3,), "float32"), ("y", (1000,), "float32"))
    assert left == ["relax.add"] * 3


def test_other_constants_types_and_operand_orders_are_other_values():
    def body(x, y):
        return [
            relax.op.add(x, constant(2.0, "float32")), relax.op.add(x, constant(-0.0, "float32")),
            relax.op.add(x, constant(0.0, "float32")), relax.op.subtract(x, y),
            relax.op.subtract(y, x), relax.op.astype(x, "int8"), relax.op.astype(x, "int16"),
        ]  # fmt: skip

    left, found = counted(body, ("x", (3,), "float32"), ("y", (3,), "float32"))
    assert (len(left), found) == (7, [])


def test_branches_see_what_is_in_front_of_them_and_not_each_other():
    @I.ir_module(s_tir=True)
    class Choice:
        @R.function
        def main(x: R.Tensor((3,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(
            (3,), "float32"
        ):
            a = R.exp(x)
            if c:
                b = R.exp(x)
                d = R.sqrt(b)
                r = R.add(d, a)
            else:
                e = R.sqrt(x)
                f = R.sqrt(a)
                r = R.add(e, f)
            return r

    made = context()
    common_subexpr.PASS.apply(Choice, made)
    assert [d.subject for d in made.report.decisions] == ["b"]


def test_effects_happen_as_often_as_they_are_written():
    @I.ir_module(s_tir=True)
    class Twice:
        @R.function(pure=False)
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            _ = R.print(x, format="{}")
            _1 = R.print(x, format="{}")
            return x

    mod = common_subexpr.PASS.apply(Twice, context())
    assert tvm_ffi.structural_equal(mod, Twice, map_free_vars=True)
