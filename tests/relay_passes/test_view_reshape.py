"""Reshapes become views; the result of the function itself stays a copy."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from uif_tvm.relay_passes.view_reshape import PASS

from uif_tvm.compiler.context import CompileContext
from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.target.registry import get_target


@I.ir_module(s_tir=True)
class Before:
    @T.prim_func(private=True, s_tir=True)
    def flatten(x: T.Buffer((2, 3), "float32"), y: T.Buffer((6,), "float32")):
        for i in range(6):
            with T.sblock("y"):
                v = T.axis.spatial(6, i)
                T.reads(x[v // 3, v % 3])
                T.writes(y[v])
                y[v] = x[v // 3, v % 3]

    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((6,), "float32"):
        cls = Before
        with R.dataflow():
            y = R.call_tir(cls.flatten, (x,), out_ty=R.Tensor((6,), "float32"))
            z = R.call_tir(cls.flatten, (x,), out_ty=R.Tensor((6,), "float32"))
            R.output(z)
        return z


@I.ir_module(s_tir=True)
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def flatten(x: T.Buffer((2, 3), "float32"), y: T.Buffer((6,), "float32")):
        for i in range(6):
            with T.sblock("y"):
                v = T.axis.spatial(6, i)
                T.reads(x[v // 3, v % 3])
                T.writes(y[v])
                y[v] = x[v // 3, v % 3]

    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((6,), "float32"):
        cls = Expected
        with R.dataflow():
            y: R.Tensor((6,), "float32") = R.reshape(x, R.shape([6]))
            z = R.call_tir(cls.flatten, (x,), out_ty=R.Tensor((6,), "float32"))
            R.output(z)
        return z


def test_only_intermediate_reshapes_become_views():
    report = ReportBuilder()
    context = CompileContext(target=get_target("cpu"), level=2, report=report)
    after = PASS.apply(Before, context)
    assert tvm_ffi.structural_equal(after, Expected)
    view, copy = report.decisions
    assert (view.subject, view.fired) == ("y", True)
    # 6 floats are neither read nor written, at the bandwidth of the target, and one launch.
    roofline = get_target("cpu").roofline
    assert view.gain_us == pytest.approx(48 / (roofline.gbps * 1e3) + roofline.launch_us)
    assert (copy.subject, copy.fired) == ("z", False)
    assert "a result of the model" in copy.reason
