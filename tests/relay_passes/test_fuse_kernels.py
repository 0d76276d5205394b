"""Kernels that follow one another become one, unless somebody asked otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from uif_tvm.relay_passes import fuse_kernels, legalize
from uif_tvm.relay_passes.fuse_kernels import MEMBERS_ATTR, SOURCES_ATTR

from tests.models import compiled, constant, context, engine, imported, module, weights
from uif_tvm.relax_util import calls, op_name
from uif_tvm.target.registry import get_target


@I.ir_module(s_tir=True)
class Before:
    @T.prim_func(private=True, s_tir=True)
    def exp(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = T.exp(x[v])

    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Before
        with R.dataflow():
            a = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((4,), "float32"))
            b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((4,), "float32"))
            R.output(b)
        return b


@I.ir_module(s_tir=True)
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def fused_exp_double(
        x: T.Buffer((T.int64(4),), "float32"),
        result: T.Buffer((T.int64(4),), "float32", elem_offset=0),
    ):
        T.func_attr({"tirx.noalias": True})
        middle = T.sblock_alloc_buffer((T.int64(4),), elem_offset=0)
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                middle[v] = T.exp(x[v])
        for i in range(4):
            with T.sblock("y1"):
                v = T.axis.spatial(4, i)
                result[v] = middle[v] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Expected
        with R.dataflow():
            b = R.call_tir(cls.fused_exp_double, (x,), out_ty=R.Tensor((4,), "float32"))
            R.output(b)
        return b


def fuse(mod, **options):
    made = context(**options)
    return fuse_kernels.PASS.apply(mod, made), made.report


def test_before_and_expected():
    mod, report = fuse(Before)
    members = mod.attrs[MEMBERS_ATTR]
    assert {str(k): [list(map(str, row)) for row in v] for k, v in members.items()} == {
        "fused_exp_double": [["exp", "a"], ["double", "b"]]
    }
    bare = mod.without_attr(MEMBERS_ATTR).without_attr(SOURCES_ATTR)
    assert tvm_ffi.structural_equal(bare, Expected, map_free_vars=True), mod.script()
    (decision,) = report.decisions
    assert (decision.subject, decision.fired) == ("a, b", True)
    assert decision.reason == (
        "exp, double: 1 intermediate result inside, 32 B not moved, 1 launches saved"
    )
    # 4 floats neither written nor read again, at the bandwidth of the target, and one launch.
    roofline = get_target("cpu").roofline
    assert decision.gain_us == pytest.approx(32 / (roofline.gbps * 1e3) + roofline.launch_us)
    assert (decision.bytes_saved, decision.launches_saved) == (32, 1)


W = W8 = constant(weights(8, 8))


def chain(x):
    y = relax.op.nn.relu(relax.op.matmul(x, W))
    return [relax.op.nn.softmax(relax.op.exp(y))]


def kernels(mod):
    return [c.args[0].name_hint for _, c in calls(mod) if op_name(c) == "relax.call_tir"]


def legal(body=chain):
    return legalize.PASS.apply(module([("x", (4, 8), "float32")], body), context())


def test_epilogue_joins_the_matmul():
    mod, _ = fuse(legal())
    first = kernels(mod)[0]
    assert first.startswith("fused_matmul")
    assert "relu" in first
    assert len(kernels(mod)) < len(kernels(legal()))


@pytest.mark.parametrize("pattern", ["*relu", "*rel?", "*[r]elu"])
def test_disabled_kernels_stay_alone(pattern):
    (name,) = [kernel for kernel in kernels(legal()) if kernel.endswith("relu")]
    mod, report = fuse(legal(), disabled_fusion=(pattern,))
    assert name in kernels(mod)
    assert "matmul" in kernels(mod)
    declined = [d for d in report.decisions if not d.fired]
    assert declined
    assert all(f"({name}) disabled on request: {pattern!r}" in d.reason for d in declined[:1])


def test_everything_disabled_changes_no_call():
    before = legal()
    mod, report = fuse(before, disabled_fusion=("*",))
    assert kernels(mod) == kernels(before)
    assert not any(d.fired for d in report.decisions)


def test_pattern_that_matches_nothing_is_told():
    _, report = fuse(legal(), disabled_fusion=("conv2d*",))
    (note,) = report.notes
    assert note.startswith("disable_fusion: 'conv2d*' matches no kernel of ")
    assert "matmul" in note


def test_values_do_not_depend_on_fusion(tmp_path):
    model = imported([("x", (4, 8), "float32")], chain)
    x = weights(4, 8, seed=3)
    apart = engine(tmp_path, model, disabled_fusion=("*",))
    alone = apart.run(x)[0]
    together = engine(tmp_path, model)
    np.testing.assert_allclose(together.run(x)[0], alone, rtol=1e-5, atol=1e-6)
    assert together.get_stats()["op_count"] < apart.get_stats()["op_count"]


def test_a_result_read_as_two_operands_at_different_points_is_written(tmp_path):
    def body(x):
        twice = relax.op.add(x, x)
        return [relax.op.nn.softmax(relax.op.concat([twice, twice], 1))]

    model = imported([("x", (1, 3, 8), "float32")], body)
    x = weights(1, 3, 8, seed=5)
    alone = engine(tmp_path, model, level=0).run(x)[0]
    np.testing.assert_allclose(engine(tmp_path, model).run(x)[0], alone, rtol=1e-5, atol=1e-6)
    _, report = fuse(legalize.PASS.apply(model.mod, context()))
    reasons = [found.reason for found in report.decisions if not found.fired]
    assert "concatenate reads it as 2 operands, at different points" in reasons


def test_report_names_the_sources_of_each_kernel_at_every_call():
    def body(x):
        emit = relax.BlockBuilder.current().emit
        for step in ("one", "two", "three"):
            y = emit(relax.op.exp(x), f"{step}_exp")
            z = emit(relax.op.multiply(y, constant(2.0, "float32")), f"{step}_double")
            # One kernel at two places: each call computes other values.
            x = emit(relax.op.matmul(z, W8), f"{step}_matmul")
        return [x]

    report = compiled(imported([("x", (4, 8), "float32")], body)).report
    rows = {row["ops"]: row["sources"] for row in report["kernels"]}
    assert rows == {
        ("tir_exp", "multiply"): ("one_exp", "one_double"),
        ("matmul", "tir_exp", "multiply"): (
            "one_matmul", "two_exp", "two_double", "two_matmul", "three_exp", "three_double",
        ),
        ("matmul",): ("three_matmul",),
    }  # fmt: skip
