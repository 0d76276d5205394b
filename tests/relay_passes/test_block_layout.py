"""Block-layout: Before and Expected graphs, and that rewritten models still compute the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from uif_tvm.relay_passes.block_layout import PASS

from tests.schedules import harness
from uif_tvm.compiler.context import CompileContext
from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.relax_util import calls, op_name

Emit = Callable[[Any], Any]
F32 = "float32"


class Model:
    """Builds ``main`` over one input; ``conv`` makes weights as it goes."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.builder = relax.BlockBuilder()
        self.rng = np.random.default_rng(11)
        self.x = relax.Var("x", relax.TensorType(shape, F32))

    def emit(self, expr: Any) -> Any:
        return self.builder.emit(expr)

    def const(self, *shape: int) -> Any:
        return relax.const(self.rng.standard_normal(shape).astype(F32))

    def conv(self, x: Any, out: int, kernel: int = 3, **attrs: Any) -> Any:
        channels = int(x.ty.shape.values[1]) // attrs.get("groups", 1)
        attrs.setdefault("padding", kernel // 2)
        weight = self.const(out, channels, kernel, kernel)
        return self.emit(relax.op.nn.conv2d(x, weight, **attrs))

    def finish(self, body: Callable[[Model], Any]) -> tvm.IRModule:
        with self.builder.function("main", [self.x]):
            with self.builder.dataflow():
                out = self.builder.emit_output(body(self))
            self.builder.emit_func_output(out)
        return self.builder.get()


def rewrite(mod: tvm.IRModule, level: int) -> tuple[tvm.IRModule, ReportBuilder]:
    report = ReportBuilder()
    context = CompileContext(target=harness.host_spec(harness.WIDE), level=level, report=report)
    return PASS.apply(mod, context), report


def steps(mod: tvm.IRModule) -> list[str]:
    """Operators and kernels of ``main`` in order, numbers that tell kernels apart left off."""
    found = []
    for _, call in calls(mod):
        name = op_name(call) or "?"
        if name == "relax.call_tir":
            name = re.sub(r"\d+$", "", call.args[0].name_hint)
        found.append(name)
    return found


def outputs(mod: tvm.IRModule, shape: Sequence[int]) -> list[np.ndarray]:
    x = np.random.default_rng(4).standard_normal(shape).astype(F32)
    return harness.run_module(relax.transform.LegalizeOps()(mod), [x], lambda f: f)


# name -> (input shape, model, Expected)
def conv_relu_conv(m: Model) -> Any:
    y = m.emit(relax.op.add(m.conv(m.x, 20), m.const(1, 20, 1, 1)))
    return m.conv(m.emit(relax.op.nn.relu(y)), 16, 1)


def residual(m: Model) -> Any:
    y = m.conv(m.x, 32)
    z = m.conv(m.emit(relax.op.nn.relu(y)), 32)
    return m.emit(relax.op.nn.relu(m.emit(relax.op.add(z, y))))


def pooled(m: Model) -> Any:
    y = m.emit(relax.op.nn.max_pool2d(m.conv(m.x, 32), (3, 3), (2, 2), (1, 1, 1, 1)))
    y = m.emit(relax.op.nn.avg_pool2d(y, (2, 2), (2, 2), ceil_mode=True))
    return m.emit(relax.op.mean(m.conv(y, 32), axis=[2, 3]))


def concatenated(m: Model) -> Any:
    y = m.emit(relax.op.concat([m.conv(m.x, 32), m.conv(m.x, 16, 1)], axis=1))
    return m.conv(y, 8, 1)


def misaligned_concat(m: Model) -> Any:
    y = m.emit(relax.op.concat([m.conv(m.x, 20), m.conv(m.x, 16, 1)], axis=1))
    return m.conv(y, 64, 3)


def first_layer(m: Model) -> Any:
    return m.conv(m.x, 32, 3, strides=2)


def depthwise(m: Model) -> Any:
    return m.conv(m.conv(m.x, 24, 1), 24, 3, groups=24)


def gated(m: Model) -> Any:
    y = m.conv(m.x, 24)
    gate = m.conv(m.emit(relax.op.mean(y, axis=[2, 3], keepdims=True)), 24, 1)
    return m.conv(m.emit(relax.op.multiply(y, m.emit(relax.op.sigmoid(gate)))), 16)


def split_and_sliced(m: Model) -> Any:
    parts = m.emit(relax.op.split(m.conv(m.x, 48), [16], axis=1))
    first = m.emit(relax.TupleGetItem(parts, 0))
    second = m.emit(relax.TupleGetItem(parts, 1))
    tail = m.emit(relax.op.strided_slice(second, [1], [16], [32]))
    return m.emit(relax.op.add(first, tail))


def padded_and_resized(m: Model) -> Any:
    y = m.emit(relax.op.nn.pad(m.conv(m.x, 16), (0, 0, 0, 0, 1, 2, 0, 1)))
    y = m.emit(relax.op.image.resize2d(y, (9, 12), layout="NCHW", method="linear"))
    return m.conv(y, 8, 1)


def absorbed_padding(m: Model) -> Any:
    y = m.emit(relax.op.nn.pad(m.x, (0, 0, 0, 0, 0, 1, 0, 1)))
    return m.conv(y, 16, 3, strides=2, padding=0)


def computed_bias(m: Model) -> Any:
    bias = m.emit(relax.op.exp(m.const(32)))
    return m.emit(relax.op.add(m.conv(m.x, 32), m.emit(relax.op.reshape(bias, (1, 32, 1, 1)))))


def short_slice(m: Model) -> Any:
    part = m.emit(relax.op.strided_slice(m.conv(m.x, 40), [1], [16], [35]))
    return m.conv(part, 8, 1)


def late_slice(m: Model) -> Any:
    part = m.emit(relax.op.strided_slice(m.conv(m.x, 40), [1], [3], [35]))
    return m.conv(part, 64, 3)


def largest(m: Model, channels: int) -> Any:
    y = m.conv(m.x, channels)
    span = m.emit(
        relax.op.subtract(m.emit(relax.op.max(y)), m.emit(relax.op.min(y, keepdims=True)))
    )
    return m.emit(relax.op.add(y, span))


def cast(m: Model) -> Any:
    y = m.emit(relax.op.astype(m.conv(m.x, 16), "int32"))
    return m.conv(m.emit(relax.op.astype(y, F32)), 16, 1)


def tiny(m: Model) -> Any:
    y = m.emit(relax.op.nn.softmax(m.x, axis=1))
    return m.emit(relax.op.nn.softmax(m.conv(y, 2, 1), axis=1))


def channel_mean(m: Model) -> Any:
    return m.emit(relax.op.mean(m.conv(m.x, 20), axis=[1]))


IN, OUT = "block_layout", "unblock_layout"
MODELS: dict[str, tuple[tuple[int, ...], Callable[[Model], Any], list[str]]] = {
    "conv relu conv": (
        (1, 16, 7, 6),
        conv_relu_conv,
        [IN, "conv2d", "relax.add", "relax.nn.relu", "conv2d", OUT],
    ),
    "residual": (
        (2, 32, 5, 5),
        residual,
        [IN, "conv2d", "relax.nn.relu", "conv2d", "relax.add", "relax.nn.relu", OUT],
    ),
    "pooling": (
        (1, 16, 9, 9),
        pooled,
        [IN, "conv2d", "max_pool2d", "avg_pool2d", "conv2d", "avg_pool2d", OUT, "relax.reshape"],
    ),
    "concat": (
        (1, 16, 24, 24),
        concatenated,
        [IN, "conv2d", "conv2d", "relax.concat", "conv2d", OUT],
    ),
    "concat off block borders": (
        (1, 16, 24, 24),
        misaligned_concat,
        [IN, "conv2d", OUT, "conv2d", OUT, "relax.concat", IN, "conv2d", OUT],
    ),
    "first layer reads plain": ((1, 3, 12, 12), first_layer, ["conv2d", OUT]),
    "depthwise": ((1, 16, 6, 6), depthwise, [IN, "conv2d", "depthwise_conv2d", OUT]),
    "gate": (
        (1, 16, 24, 24),
        gated,
        [IN, "conv2d", "avg_pool2d", "conv2d", "relax.sigmoid", "gate_multiply", "conv2d", OUT],
    ),
    "computed bias": (
        (1, 16, 24, 24),
        computed_bias,
        ["relax.exp", IN, "conv2d", "relax.reshape", "relax.reshape", "relax.add", OUT],
    ),
    "split and slice": (
        (1, 16, 4, 4),
        split_and_sliced,
        [IN, "conv2d", "relax.split", "relax.strided_slice", "relax.add", OUT],
    ),
    "slice that ends inside a block": (
        (1, 16, 24, 24),
        short_slice,
        [IN, "conv2d", "relax.strided_slice", "conv2d", OUT],
    ),
    "slice that starts inside a block": (
        (1, 16, 24, 24),
        late_slice,
        [IN, "conv2d", OUT, "relax.strided_slice", IN, "conv2d", OUT],
    ),
    "pad and resize": (
        (1, 16, 4, 5),
        padded_and_resized,
        [IN, "conv2d", "relax.nn.pad", "resize2d", "conv2d", OUT],
    ),
    "padding absorbed": ((1, 3, 32, 32), absorbed_padding, ["conv2d", OUT]),
    "mean over channels": ((1, 16, 4, 4), channel_mean, [IN, "conv2d", OUT, "relax.mean"]),
    "largest of all, whole blocks": (
        (1, 16, 4, 4),
        lambda m: largest(m, 32),
        [IN, "conv2d", "relax.max", "relax.min", "relax.reshape", "relax.subtract",
         "relax.reshape", "relax.add", OUT],
    ),
    "largest of all, spare lanes": (
        (1, 16, 24, 24),
        lambda m: largest(m, 20),
        [IN, "conv2d", "relax.where", "relax.max", "relax.where", "relax.min", "relax.reshape",
         "relax.subtract", "relax.reshape", "relax.add", OUT],
    ),
    "casts": (
        (1, 16, 4, 4),
        cast,
        [IN, "conv2d", "relax.astype", "relax.astype", "conv2d", OUT],
    ),
    "tiny convolution between plain operators": (
        (1, 16, 2, 2),
        tiny,
        ["relax.nn.softmax", "relax.nn.conv2d", "relax.nn.softmax"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_expected_graph_and_same_result(name):
    shape, body, expected = MODELS[name]
    before = Model(shape).finish(body)
    after, _ = rewrite(before, 2)
    assert steps(after) == expected
    for old, new in zip(outputs(before, shape), outputs(after, shape), strict=True):
        np.testing.assert_allclose(new, old, atol=2e-3, rtol=1e-4)


def test_conv1d_is_a_convolution_with_one_row():
    model = Model((1, 16, 400))
    weight = model.const(24, 16, 9)
    before = model.finish(
        lambda m: m.emit(relax.op.nn.conv1d(m.x, weight, strides=2, padding=(2, 1), dilation=2))
    )
    after, _ = rewrite(before, 2)
    assert steps(after) == [IN, "conv2d", OUT]
    np.testing.assert_allclose(
        outputs(after, (1, 16, 400))[0], outputs(before, (1, 16, 400))[0], atol=1e-3
    )


def hardswish_kernel(shape: Sequence[int]) -> tirx.PrimFunc:
    from tvm import te

    x = harness.placeholder(*shape)
    zero, three, six = (tirx.const(value, F32) for value in (0.0, 3.0, 6.0))
    y = te.compute(x.shape, lambda *i: x(*i) * tirx.max(tirx.min(x(*i) + three, six), zero) / six)
    return te.create_prim_func([x, y]).without_attr("global_symbol")


def test_channelwise_kernel_of_an_importer_runs_blocked():
    def body(m: Model) -> Any:
        kernel = m.builder.add_func(hardswish_kernel((1, 20, 5, 5)), "hardswish")
        out = relax.TensorType((1, 20, 5, 5), F32)
        return m.conv(m.emit(relax.call_tir(kernel, [m.conv(m.x, 20)], out)), 16, 1)

    shape = (1, 16, 5, 5)
    before = Model(shape).finish(body)
    after, _ = rewrite(before, 2)
    assert steps(after) == [IN, "conv2d", "hardswish_blocked", "conv2d", OUT]
    np.testing.assert_allclose(outputs(after, shape)[0], outputs(before, shape)[0], atol=1e-3)


def test_gate_behind_a_lifted_kernel():
    def body(m: Model) -> Any:
        kernel = m.builder.add_func(hardswish_kernel((1, 32, 1, 1)), "hardswish")
        out = relax.TensorType((1, 32, 1, 1), F32)
        y = m.conv(m.x, 32)
        gate = m.conv(m.emit(relax.op.mean(y, axis=[2, 3], keepdims=True)), 32, 1)
        scale = m.emit(relax.call_tir(kernel, [gate], out))
        return m.conv(m.emit(relax.op.multiply(y, scale)), 16)

    shape = (1, 16, 12, 12)
    before = Model(shape).finish(body)
    after, _ = rewrite(before, 2)
    gated_by = ["avg_pool2d", "conv2d", "hardswish_blocked", "gate_multiply"]
    assert steps(after) == [IN, "conv2d", *gated_by, "conv2d", OUT]
    np.testing.assert_allclose(outputs(after, shape)[0], outputs(before, shape)[0], atol=1e-3)


def pad_kernel(shape: Sequence[int], pads: Sequence[int], fill: float) -> tirx.PrimFunc:
    from tvm import te, topi

    x = harness.placeholder(*shape)
    before, after = [0, 0, *pads[:2]], [0, 0, *pads[2:]]
    y = topi.nn.pad(x, before, after, pad_value=tirx.const(fill, F32))
    return te.create_prim_func([x, y]).without_attr("global_symbol")


@pytest.mark.parametrize(("fill", "absorbed"), [(0.0, True), (1.0, False)])
def test_padding_kernel_of_an_importer(fill, absorbed):
    def body(m: Model) -> Any:
        kernel = m.builder.add_func(pad_kernel((1, 16, 5, 6), (0, 1, 2, 0), fill), "pad")
        out = relax.TensorType((1, 16, 7, 7), F32)
        return m.conv(m.emit(relax.call_tir(kernel, [m.conv(m.x, 16)], out)), 16, 3, padding=0)

    shape = (1, 16, 5, 6)
    before = Model(shape).finish(body)
    after, _ = rewrite(before, 2)
    if absorbed:
        assert steps(after) == [IN, "conv2d", "conv2d", OUT]
    else:
        assert {"pad", "pad_blocked"} & set(steps(after))
    np.testing.assert_allclose(outputs(after, shape)[0], outputs(before, shape)[0], atol=1e-3)


def test_gates_and_shape_changes_do_not_swallow_convolutions():
    fuse = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    mod, _ = rewrite(Model((1, 16, 24, 24)).finish(gated), 2)
    names = steps(tvm.transform.Sequential(fuse)(mod))
    assert [n for n in names if "conv2d" in n] == ["conv2d", "fused_conv2d1_tir_sigmoid", "conv2d"]


def test_declined_convolutions_say_why():
    model = Model((1, 16, 5, 5))

    def body(m: Model) -> Any:
        weight = m.emit(relax.op.multiply(m.const(8, 16, 1, 1), m.const(8, 16, 1, 1)))
        return m.emit(relax.op.nn.conv2d(m.x, weight))

    after, report = rewrite(model.finish(body), 2)
    assert "relax.nn.conv2d" in steps(after)
    declined = [d for d in report.decisions if not d.fired]
    assert [d.reason for d in declined] == ["the weight is not a constant"]


def test_target_without_planner_is_left_alone():
    import dataclasses

    before = Model((1, 3, 5, 5)).finish(lambda m: m.conv(m.x, 8))
    report = ReportBuilder()
    spec = dataclasses.replace(harness.host_spec(harness.WIDE), planner=None)
    after = PASS.apply(before, CompileContext(target=spec, level=3, report=report))
    assert steps(after) == ["relax.nn.conv2d"]
    assert not report.decisions[0].fired


def test_region_and_its_layout_changes_are_reported_with_figures():
    _, report = rewrite(Model((2, 32, 5, 5)).finish(residual), 2)
    region, first, last, total = [d for d in report.decisions if "bytes" in d.reason]
    assert "region of 5 operators from lv to lv4" in region.reason
    # x and the sum, once each; alone, both convolutions convert what they read and make.
    tensor = 2 * 32 * 5 * 5 * 4
    assert f"{2 * tensor} bytes change layout, {4 * tensor} with every" in region.reason
    assert region.fired
    assert region.bytes_saved == 2 * 2 * tensor
    # 2 convolutions, 2 x 50 x 32 x 9 x 32 operations each, at 25% of 256 GFLOP/s against 85%.
    kernels = 2 * 2 * 50 * 32 * 9 * 32 / 256e3 * (1 / 0.25 - 1 / 0.85)
    spared = 2 * (2 * tensor / 20e3 + 0.2)
    assert region.gain_us == pytest.approx(kernels + spared)
    price = f"{2 * tensor / 20e3 + 0.2:.3g} us"
    assert first.reason.startswith(f"block_layout of {tensor} bytes remains ({price}), for lv")
    assert last.reason.endswith("for the result")
    assert not last.fired
    assert total.reason == f"2 layout changes remain, {2 * tensor} bytes"


def test_small_convolution_between_plain_operators_says_what_it_would_gain():
    _, report = rewrite(Model((1, 16, 2, 2)).finish(tiny), 2)
    (decision,) = report.decisions
    assert not decision.fired
    assert "kept in plain layout: a blocked kernel would save 0.00487 us" in decision.reason


def test_blocks_that_are_nearly_empty_gain_nothing():
    after, report = rewrite(Model((1, 32, 40, 40)).finish(lambda m: m.conv(m.x, 1)), 2)
    assert steps(after) == ["relax.nn.conv2d"]
    assert "would save -" in report.decisions[0].reason
