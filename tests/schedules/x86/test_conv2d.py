"""Blocked convolution: right for every remainder of every tile, and the code it becomes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
import tvm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from uif_tvm.schedules.x86.conv2d import BlockedConv2d
from uif_tvm.schedules.x86.conv_planner import plan_conv2d

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import blocked_conv
from uif_tvm.kernels.layout import Window
from uif_tvm.target.schedule import Conv2dPlan, Conv2dProblem
from uif_tvm.target.spec import Machine, Refusal

RULE = BlockedConv2d()


@dataclass(frozen=True)
class Case:
    """A convolution with its kernel and packed weight for one machine."""

    problem: Conv2dProblem
    machine: Machine

    @property
    def plan(self) -> Conv2dPlan:
        plan = plan_conv2d(self.problem, self.machine)
        assert not isinstance(plan, Refusal), plan
        return plan

    @property
    def window(self) -> Window:
        p = self.problem
        return Window(p.kernel, p.strides, p.padding, p.dilation)

    @property
    def out_shape(self) -> tuple[int, ...]:
        p, block = self.problem, self.plan.channel_block
        return (p.batch, -(-p.out_channels // block), p.out_height, p.out_width, block)

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        p, rng = self.problem, np.random.default_rng(7)
        x = rng.standard_normal((p.batch, p.in_channels, p.in_height, p.in_width))
        w = rng.standard_normal((p.out_channels, p.in_channels // p.groups, *p.kernel))
        return x.astype(np.float32), w.astype(np.float32)

    def packed(self, w: np.ndarray) -> np.ndarray:
        plan, merged = self.plan, blocked_conv.merge_groups(self.problem, self.plan.channel_block)
        groups = (self.problem.groups, merged.groups)
        return blocked_conv.pack_weight(w, groups, plan.in_block, plan.out_block)

    def data(self, x: np.ndarray) -> np.ndarray:
        return x if self.plan.in_block == 1 else reference.blocked(x, self.plan.channel_block)

    def func(self) -> tirx.PrimFunc:
        p, plan = self.problem, self.plan
        merged = blocked_conv.merge_groups(p, plan.channel_block)
        x, w = self.inputs()
        return blocked_conv.conv2d(
            self.data(x).shape,
            self.packed(w).shape,
            (p.in_channels, p.out_channels),
            merged.groups,
            self.window,
            plan.channel_block,
        )

    def check(self) -> None:
        x, w = self.inputs()
        func = harness.scheduled(RULE, self.func(), self.machine)
        found = harness.run(func, [self.data(x), self.packed(w)], self.out_shape, "float32")
        expected = reference.conv2d(x, w, self.window, self.problem.groups)
        found = reference.plain(found, self.problem.out_channels)
        np.testing.assert_allclose(found, expected, atol=1e-5 * w[0].size ** 0.5 + 1e-5, rtol=1e-5)


def make(
    shape: tuple[int, int, int, int],
    out: int,
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Conv2dProblem:
    return Conv2dProblem(*shape, out, kernel, strides, padding, dilation, groups, "float32")


PROBLEMS = {
    "1x1 flat": make((1, 32, 7, 7), 64, (1, 1)),
    "1x1 flat, channel tails": make((2, 24, 5, 9), 40, (1, 1)),
    "1x1 strided": make((1, 16, 9, 8), 32, (1, 1), (2, 2)),
    "3x3 same, narrow plane": make((1, 32, 7, 7), 64, (3, 3), padding=(1, 1, 1, 1)),
    "3x3 odd width": make((1, 16, 6, 29), 48, (3, 3), padding=(1, 1, 1, 1)),
    "3x3 strided, one-sided pads": make((1, 20, 14, 15), 24, (3, 3), (2, 2), (0, 0, 1, 1)),
    "first layer": make((1, 3, 20, 20), 24, (7, 7), (2, 2), (3, 3, 3, 3)),
    "dilated": make((1, 16, 12, 12), 16, (3, 3), padding=(4, 4, 4, 4), dilation=(4, 4)),
    "1-D": make((1, 24, 1, 50), 33, (1, 5), (1, 2), (0, 2, 0, 2)),
    "whole groups": make((1, 64, 5, 5), 64, (3, 3), padding=(1, 1, 1, 1), groups=2),
    "narrow groups": make((1, 32, 6, 6), 32, (3, 3), padding=(1, 1, 1, 1), groups=8),
    "channel multiplier": make((1, 6, 6, 6), 12, (3, 3), groups=6),
    "kernel as large as the plane": make((1, 16, 4, 4), 10, (4, 4)),
    "one pixel": make((1, 17, 1, 1), 5, (1, 1)),
}


@pytest.mark.parametrize("machine", harness.MACHINES, ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_matches_reference(name, machine):
    Case(PROBLEMS[name], machine).check()


@st.composite
def problems(draw):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    rows = draw(st.integers(max(1, reach[0] - padding[0] - padding[2]), 12))
    columns = draw(st.integers(max(1, reach[1] - padding[1] - padding[3]), 40))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inner, outer = draw(st.integers(1, 35)), draw(st.integers(1, 40))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    shape = (draw(st.integers(1, 2)), groups * inner, rows, columns)
    return make(shape, groups * outer, kernel, strides, padding, dilation, groups)


@settings(max_examples=15, deadline=None)
@given(problems(), st.sampled_from(harness.MACHINES))
@example(make((1, 1, 1, 1), 1, (1, 1), (2, 1), (1, 0, 1, 0), (2, 1)), harness.WIDE)
def test_any_geometry_matches_reference(problem, machine):
    if problem.depthwise:
        return
    case = Case(problem, machine)
    refusal = RULE.apply(case.func(), harness.host_spec(machine))
    if not isinstance(refusal, Refusal):
        case.check()
        return
    # The only thing to refuse: windows that all lie in the padding.
    assert "reads nothing" in str(refusal)
    x, w = (np.ones_like(side) for side in case.inputs())
    assert not reference.conv2d(x, w, case.window, problem.groups).any()


def fused_with_epilogue(case: Case) -> tirx.PrimFunc:
    """``clip(conv + bias + residual, 0, 6) * gate`` as one kernel."""
    x, w = case.inputs()
    builder = relax.BlockBuilder()
    block, count = case.plan.channel_block, case.out_shape[1]
    shapes = {
        "x": case.data(x).shape,
        "w": case.packed(w).shape,
        "bias": (1, count, 1, 1, block),
        "residual": case.out_shape,
        "gate": (case.out_shape[0], count, 1, 1, block),
    }
    args = [relax.Var(name, relax.TensorType(s, "float32")) for name, s in shapes.items()]
    with builder.function("main", args):
        with builder.dataflow():
            kernel = builder.add_func(case.func(), "conv2d")
            out = relax.TensorType(case.out_shape, "float32")
            y = builder.emit(relax.call_tir(kernel, args[:2], out))
            y = builder.emit(relax.op.add(y, args[2]))
            y = builder.emit(relax.op.add(y, args[3]))
            y = builder.emit(relax.op.clip(y, 0, 6))
            y = builder.emit_output(relax.op.multiply(y, args[4]))
        builder.emit_func_output(y)
    steps = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    mod = tvm.transform.Sequential(steps)(builder.get())
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 1
    return kernels[0]


@pytest.mark.parametrize("name", ["1x1 flat, channel tails", "3x3 odd width"])
def test_epilogue_is_fused(name):
    case = Case(PROBLEMS[name], harness.WIDE)
    x, w = case.inputs()
    rng, channels = np.random.default_rng(3), case.problem.out_channels
    expected = reference.conv2d(x, w, case.window, 1)
    bias, gate = rng.standard_normal((2, 1, channels, 1, 1)).astype(np.float32)
    gate = np.repeat(gate, expected.shape[0], axis=0)
    residual = rng.standard_normal(expected.shape).astype(np.float32)
    func = harness.scheduled(RULE, fused_with_epilogue(case))
    operands = [reference.blocked(a, case.plan.channel_block) for a in (bias, residual, gate)]
    inputs = [case.data(x), case.packed(w), *operands]
    found = reference.plain(harness.run(func, inputs, case.out_shape, "float32"), channels)
    np.testing.assert_allclose(found, np.clip(expected + bias + residual, 0, 6) * gate, atol=1e-4)


@pytest.mark.parametrize(
    ("machine", "mcpu", "register"),
    [(harness.WIDE, "x86-64-v4", "zmm"), (harness.MIDDLE, "x86-64-v3", "ymm")],
)
@pytest.mark.parametrize(
    "problem",
    [
        make((1, 128, 14, 14), 128, (1, 1)),
        make((1, 64, 56, 56), 64, (3, 3), padding=(1, 1, 1, 1)),
        make((1, 64, 7, 7), 64, (3, 3), (2, 2), padding=(1, 1, 1, 1)),
        make((1, 3, 64, 64), 64, (7, 7), (2, 2), (3, 3, 3, 3)),
    ],
    ids=["1x1", "3x3", "3x3 narrow", "first layer"],
)
def test_inner_loop_is_vector_multiply_adds_without_spills(problem, machine, mcpu, register):
    case = Case(problem, machine)
    text = harness.assembly(harness.scheduled(RULE, case.func(), machine), mcpu)
    loops = [body for body in innermost_loops(text) if "vfmadd" in body]
    assert loops
    for body in loops:
        multiply_adds = re.findall(rf"vfmadd\w+ps\s.*%{register}\d+", body)
        assert len(multiply_adds) >= 8
        assert not re.search(rf"vmov\w+\s+%{register}\d+, ", body), "accumulators leave registers"
        assert not re.search(rf"\(%rsp\), %{register}\d+", body), "accumulators are reloaded"


def innermost_loops(text: str) -> list[str]:
    """Code between a label and a jump back to it, with no label in between."""
    found, label, lines = [], "", []
    for line in text.splitlines():
        if re.match(r"\.LBB\w+:", line):
            label, lines = line.split(":")[0], []
        lines.append(line)
        if re.match(rf"\s+j\w+\s+{re.escape(label)}$", line) and label:
            found.append("\n".join(lines))
    return found


def test_small_convolutions_stay_serial_and_large_ones_spread():
    small = RULE.apply(
        Case(PROBLEMS["one pixel"], harness.WIDE).func(), harness.host_spec(harness.WIDE)
    )
    large = Case(make((1, 64, 28, 28), 64, (3, 3), padding=(1, 1, 1, 1)), harness.WIDE)
    spread = RULE.apply(large.func(), harness.host_spec(harness.WIDE))
    assert "serial" in small.detail
    assert "parallel" in spread.detail


def test_refuses_what_it_does_not_know():
    case = Case(PROBLEMS["1x1 flat"], harness.WIDE)
    other = RULE.apply(case.func(), harness.host_spec(harness.MIDDLE))
    assert isinstance(other, Refusal)
    assert other.code == "layout"
    x = harness.placeholder(4, 4)
    from tvm import te

    add = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1)])
    refusal = RULE.apply(add, harness.host_spec(harness.WIDE))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "family"
