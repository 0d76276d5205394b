"""Equal expressions are computed once."""

from __future__ import annotations

import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R
from uif_tvm.relay_passes import common_subexpr, dead_code

from tests.models import context


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
    mod = dead_code.PASS.apply(common_subexpr.PASS.apply(Before, context()), context())
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()


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
