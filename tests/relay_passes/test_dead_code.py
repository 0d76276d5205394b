"""What nobody uses goes; what has an effect stays."""

from __future__ import annotations

import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from uif_tvm.relay_passes import dead_code

from tests.models import context


@I.ir_module(s_tir=True)
class Before:
    @T.prim_func(private=True, s_tir=True)
    def unused(x: T.Buffer((3,), "float32"), y: T.Buffer((3,), "float32")):
        for i in range(3):
            with T.sblock("y"):
                v = T.axis.spatial(3, i)
                y[v] = x[v]

    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        with R.dataflow():
            a = R.exp(x)
            b = R.log(x)
            c = R.add(b, x)
            d = R.sqrt(a)
            R.output(d)
        return d


@I.ir_module(s_tir=True)
class Expected:
    @R.function
    def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        with R.dataflow():
            a = R.exp(x)
            d = R.sqrt(a)
            R.output(d)
        return d


def test_before_and_expected():
    made = context()
    mod = dead_code.PASS.apply(Before, made)
    assert tvm_ffi.structural_equal(mod, Expected, map_free_vars=True), mod.script()
    assert [(d.subject, d.fired, d.reason) for d in made.report.decisions] == [
        ("b", True, "relax.log computes what nobody reads"),
        ("c", True, "relax.add computes what nobody reads"),
    ]
    assert all((d.bytes_saved, d.launches_saved) == (12, 1) for d in made.report.decisions)


def test_effects_stay():
    @I.ir_module(s_tir=True)
    class Effect:
        @R.function(pure=False)
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            _ = R.print(x, format="{}")
            return x

    mod = dead_code.PASS.apply(Effect, context())
    assert tvm_ffi.structural_equal(mod, Effect, map_free_vars=True)
