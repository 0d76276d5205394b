"""Winograd pass: Before and Expected side by side, declines, the pinned gain, equal results."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from uif_tvm.relay_passes import winograd as under_test

from tests.kernels import conv_reference as reference
from tests.models import constant, context, weights
from tests.schedules import harness
from uif_tvm.compiler.context import CompileContext
from uif_tvm.compiler.report import Decision
from uif_tvm.kernels import blocked_conv, layout, winograd
from uif_tvm.kernels.layout import Window
from uif_tvm.target.schedule import Conv2dProblem, WinogradPlan
from uif_tvm.target.spec import Machine, Refusal

BLOCK = 16
PADS = (1, 1, 1, 1)


class Graph:
    """``main`` over one blocked input, built call by call."""

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        batch, self.channels, rows, columns = shape
        self.builder = relax.BlockBuilder()
        blocked = (batch, -(-self.channels // BLOCK), rows, columns, BLOCK)
        self.x = relax.Var("x", relax.TensorType(blocked, "float32"))

    def call(self, func: Any, args: list[Any], name: str, hint: str = "y") -> Any:
        out = [int(extent) for extent in func.params[-1].shape]
        kernel = self.builder.add_func(func, name)
        call = relax.call_tir(kernel, args, relax.TensorType(out, "float32"))
        return self.builder.emit(call, hint)

    def direct(self, x: Any, w: np.ndarray, window: Window, groups: int = 1) -> Any:
        packed = blocked_conv.pack_weight(w, (groups, groups), BLOCK, BLOCK)
        return self.call(direct_kernel(x, w, window, groups), [x, constant(packed)], "conv2d")

    def winograd(self, x: Any, w: np.ndarray, tile: int, out_block: int) -> Any:
        packed = winograd.pack_weight(w, tile, BLOCK, out_block)
        channels = (w.shape[1], w.shape[0])
        func = winograd.conv2d(extents(x), packed.shape, channels, PADS, BLOCK, tile)
        return self.call(func, [x, constant(packed)], "winograd_conv2d")

    def module(self, body: Any) -> tvm.IRModule:
        with self.builder.function("main", [self.x]):
            with self.builder.dataflow():
                out = self.builder.emit_output(body(self))
            self.builder.emit_func_output(out)
        return self.builder.get()


def extents(x: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in x.ty.shape.values)


def direct_kernel(x: Any, w: np.ndarray, window: Window, groups: int = 1) -> Any:
    packed = blocked_conv.pack_weight(w, (groups, groups), BLOCK, BLOCK)
    channels = (w.shape[1] * groups, w.shape[0])
    return blocked_conv.conv2d(extents(x), packed.shape, channels, groups, window, BLOCK)


def at(level: int = 3, machine: Machine = harness.WIDE, **options: Any) -> CompileContext:
    return context(harness.host_spec(machine), level, **options)


def rewritten(mod: tvm.IRModule, ctx: CompileContext) -> tuple[tvm.IRModule, Decision]:
    """The module after the pass, and the last decision."""
    after = under_test.PASS.apply(mod, ctx)
    return after, ctx.report.decisions[-1]


WINDOW = Window((3, 3), (1, 1), PADS)
W = weights(32, 32, 3, 3)


def test_convolution_is_rewritten() -> None:
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, W, WINDOW))
    after, decision = rewritten(before, at())
    expected = Graph((1, 32, 56, 56)).module(lambda g: g.winograd(g.x, W, 4, 32))
    tvm.ir.assert_structural_equal(after, expected)
    assert decision.fired
    assert decision.subject == "y"
    assert decision.reason.startswith("F(4x4, 3x3), estimated 0.")
    assert "expected error" in decision.reason


def test_gain_is_pinned() -> None:
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, W, WINDOW))
    ctx = at()
    _, decision = rewritten(before, ctx)
    tiles, pairs = 14 * 14, 32 * 32
    products = 2 * 36 * tiles * pairs
    transforms = tiles * 36 * (4 * 32 + 4 * 32)
    assert decision.flops_saved == 2 * 9 * 56 * 56 * pairs - products - transforms == 41_545_728
    assert decision.bytes_saved == -(36 - 9) * pairs * 4 == -110_592
    roofline = ctx.target.roofline
    saved = 41_545_728 / (roofline.gflops["float32"] * 1e3) - 110_592 / (roofline.gbps * 1e3)
    assert decision.gain_us == pytest.approx(saved)
    assert decision.basis == "roofline"


def test_equal_convolutions_share_a_kernel() -> None:
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.direct(g.x, W, WINDOW), W, WINDOW))
    after, _ = rewritten(before, at())
    kernels = [var.name_hint for var in after.functions if var.name_hint != "main"]
    assert kernels == ["winograd_conv2d"]


@pytest.mark.parametrize("shape", [(1, 24, 20, 22), (2, 64, 9, 30)])
def test_results_match_the_unrewritten_module(shape: tuple[int, int, int, int]) -> None:
    w = weights(40, shape[1], 3, 3)
    before = Graph(shape).module(lambda g: g.direct(g.x, w, WINDOW))
    ctx = at()
    after, decision = rewritten(before, ctx)
    assert decision.fired
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    rules = [rule for rule in ctx.target.schedules if rule.name in ("conv2d", "winograd")]

    def run(mod: tvm.IRModule, rule: Any) -> np.ndarray:
        (found,) = harness.run_module(
            mod, [reference.blocked(x, BLOCK)], lambda f: harness.scheduled(rule, f)
        )
        return reference.plain(found, 40)

    direct, found = run(before, rules[0]), run(after, rules[1])
    scale = np.sqrt(np.mean(direct.astype(np.float64) ** 2))
    assert np.abs(found - direct).max() / scale < 1e-5


def declined(mod: tvm.IRModule, ctx: CompileContext) -> str:
    """Why the pass declined; it must leave the module as it was."""
    after, decision = rewritten(mod, ctx)
    tvm.ir.assert_structural_equal(after, mod)
    assert not decision.fired
    return decision.reason


@pytest.mark.parametrize(
    ("window", "groups", "reason"),
    [
        (Window((3, 3), (2, 2), PADS), 1, "window: window (3, 3), strides (2, 2), dilation (1, 1)"),
        (Window((3, 3), (1, 1), PADS, (2, 2)), 1, "strides (1, 1), dilation (2, 2)"),
        (WINDOW, 2, "groups: 2 groups"),
    ],
)
def test_other_windows_and_groups_are_declined(window: Window, groups: int, reason: str) -> None:
    w = weights(32, 32 // groups, 3, 3)
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, w, window, groups))
    assert reason in declined(before, at())


@pytest.mark.parametrize("kernel", [(1, 1), (1, 3), (5, 5)])
def test_other_kernel_sizes_are_not_considered(kernel: tuple[int, int]) -> None:
    w = weights(32, 32, *kernel)
    before = Graph((1, 32, 28, 28)).module(lambda g: g.direct(g.x, w, Window(kernel)))
    ctx = at()
    tvm.ir.assert_structural_equal(under_test.PASS.apply(before, ctx), before)
    assert not ctx.report.decisions


def test_small_planes_are_declined_as_slower() -> None:
    before = Graph((1, 32, 2, 2)).module(lambda g: g.direct(g.x, W, WINDOW))
    reason = declined(before, at())
    assert reason.startswith("slower: estimated share of the direct kernel's time: F(2x2) ")
    assert "F(4x4)" in reason


def test_weights_that_outweigh_the_arithmetic_are_declined() -> None:
    """The roofline has the last word: 16 times the bytes for a handful of results."""

    class Keen:
        version = 1

        def winograd(self, problem: Conv2dProblem, machine: Machine, tiles: Any) -> WinogradPlan:
            return WinogradPlan(4, 16, 1.0, 2.0)

    spec = dataclasses.replace(harness.host_spec(harness.WIDE), planner=Keen())
    before = Graph((1, 32, 4, 4)).module(lambda g: g.direct(g.x, W, WINDOW))
    reason = declined(before, context(spec, 3))
    assert reason.startswith("does not pay: F(4x4, 3x3), ")
    assert reason.endswith("us lost")


def test_tiles_whose_weights_outweigh_the_arithmetic_are_not_offered() -> None:
    """At 7x7x512, F(4x4) reads 28 MB more, F(2x2) 7 MB."""
    offered = []

    class Asked:
        version = 1

        def winograd(self, problem: Conv2dProblem, machine: Machine, tiles: Any) -> Refusal:
            offered.append(tiles)
            return Refusal("asked", "and answered")

    spec = dataclasses.replace(harness.host_spec(harness.WIDE), planner=Asked())
    w = weights(512, 512, 3, 3)
    before = Graph((1, 512, 7, 7)).module(lambda g: g.direct(g.x, w, WINDOW))
    assert declined(before, context(spec, 3)) == "asked: and answered"
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, W, WINDOW))
    declined(before, context(spec, 3))
    assert offered == [(2,), (2, 4)]


def test_measured_times_outweigh_the_roofline() -> None:
    """Times on record say that the direct kernel, which takes 10 us, is faster."""

    def times(func: Any) -> float:
        return 10.0 if len(func.params[1].shape) == 6 else 12.5

    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, W, WINDOW))
    ctx = at(kernel_times=times)
    assert declined(before, ctx) == "does not pay: F(4x4, 3x3), 2.5 us lost"
    assert ctx.report.decisions[-1].basis == "measured"


def test_targets_without_planner_are_declined() -> None:
    spec = dataclasses.replace(harness.host_spec(harness.WIDE), planner=None)
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, W, WINDOW))
    assert declined(before, context(spec, 3)).startswith("no-planner: target cpu")


def test_weights_of_run_time_are_declined() -> None:
    graph = Graph((1, 32, 56, 56))
    shape = relax.TensorType((2, 2, 3, 3, BLOCK, BLOCK), "float32")
    w = relax.Var("w", shape)
    with graph.builder.function("main", [graph.x, w]):
        with graph.builder.dataflow():
            kernel = direct_kernel(graph.x, W, WINDOW)
            out = graph.builder.emit_output(graph.call(kernel, [graph.x, w], "conv2d"))
        graph.builder.emit_func_output(out)
    assert declined(graph.builder.get(), at()) == "constant: the weight is not a constant"


def test_integers_carried_in_float32_are_declined() -> None:
    w = np.random.default_rng(0).integers(-128, 128, (32, 32, 3, 3)).astype(np.float32)
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(g.x, w, WINDOW))
    reason = declined(before, at())
    assert reason == "integers: the weights are whole numbers: the direct kernel is exact"


def test_plain_inputs_are_declined() -> None:
    w = weights(32, 3, 3, 3)
    packed = blocked_conv.pack_weight(w, (1, 1), 1, BLOCK)
    x = relax.Var("x", relax.TensorType((1, 3, 56, 56), "float32"))
    kernel = blocked_conv.conv2d((1, 3, 56, 56), packed.shape, (3, 32), 1, WINDOW, BLOCK)
    graph = Graph((1, 3, 56, 56))
    graph.x = x
    before = graph.module(lambda g: g.call(kernel, [x, constant(packed)], "conv2d"))
    assert "[1, 3, 56, 56] is not blocked" in declined(before, at())


def infinite_pad(graph: Graph) -> Any:
    from tvm import te, tirx

    shape = layout.extents(*extents(graph.x))
    x = te.placeholder(shape, "float32", name="x")

    def body(*i: Any) -> Any:
        return tirx.if_then_else(i[3] < 50, x(*i), tirx.const(float("-inf"), "float32"))

    func = layout.prim_func([x, te.compute(shape, body, name="mask")], layout.INJECTIVE)
    return graph.call(func, [graph.x], "mask")


def test_inputs_with_infinities_are_declined() -> None:
    before = Graph((1, 32, 56, 56)).module(lambda g: g.direct(infinite_pad(g), W, WINDOW))
    assert declined(before, at()).startswith("infinities: mask writes infinities")


def test_infinities_are_found_behind_layout_changes() -> None:
    def body(graph: Graph) -> Any:
        plain = relax.op.nn.pad(
            relax.op.zeros((1, 32, 54, 56), "float32"), (0, 0, 0, 0, 1, 1, 0, 0), pad_value=-np.inf
        )
        plain = graph.builder.emit(plain)
        func = layout.block((1, 32, 56, 56), BLOCK, "float32")
        return graph.direct(graph.call(func, [plain], "block_layout"), W, WINDOW)

    before = Graph((1, 32, 56, 56)).module(body)
    assert declined(before, at()).startswith("infinities: relax.nn.pad writes infinities")


def test_the_start_of_a_maximum_is_no_infinity() -> None:
    from uif_tvm.kernels import blocked_pool

    def body(graph: Graph) -> Any:
        window = Window((2, 2), (2, 2))
        func = blocked_pool.max_pool(extents(graph.x), window, "float32")
        return graph.direct(graph.call(func, [graph.x], "max_pool"), W, WINDOW)

    _, decision = rewritten(Graph((1, 32, 112, 112)).module(body), at())
    assert decision.fired


def test_deep_accumulations_take_smaller_tiles_and_then_none() -> None:
    def problem(channels: int) -> Conv2dProblem:
        return Conv2dProblem(1, channels, 14, 14, 32, (3, 3), (1, 1), PADS, (1, 1), 1, "float32")

    assert under_test.accurate_tiles(problem(512)) == (2, 4)
    assert under_test.accurate_tiles(problem(20_000)) == (2,)
    refusal = under_test.accurate_tiles(problem(1_000_000))
    assert str(refusal).startswith(
        "accuracy: largest expected error over 1000000 channels, of the results' root mean square: "
    )
    assert "the tolerance is 1e-04" in str(refusal)
