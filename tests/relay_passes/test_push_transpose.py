"""Transposes cancel across regions where that moves fewer bytes; others say what they are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from uif_tvm.relay_passes import push_transpose

from tests.models import constant, context, engine, imported, module, weights
from tests.schedules import harness
from uif_tvm import standard_ops
from uif_tvm.relax_util import calls, op_name, static_shape

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
Body = Callable[[Any], list[Any]]


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def turn(x: Any, *axes: int) -> Any:
    return emit(relax.op.permute_dims(x, list(axes)))


def conv(x: Any, out: int = 8) -> Any:
    weight = constant(weights(out, static_shape(x)[1], 3, 3))
    return emit(relax.op.nn.conv2d(x, weight, padding=1))


def last(x: Any, out: int = 8) -> Any:
    """A convolution as channels-last frameworks export it."""
    return turn(conv(turn(x, *NCHW), out), *NHWC)


def pushed(shape: tuple[int, ...], body: Body) -> tuple[tvm.IRModule, tvm.IRModule, Any]:
    before, ctx = module([("x", shape, "float32")], body), context()
    return before, push_transpose.PASS.apply(before, ctx), ctx.report.decisions


def steps(mod: tvm.IRModule) -> list[tuple[str, tuple[int, ...] | None]]:
    return [
        ((op_name(call) or "?").removeprefix("relax.").removeprefix("nn."), static_shape(var))
        for var, call in calls(mod)
    ]


def results(mod: tvm.IRModule, shape: tuple[int, ...]) -> list[np.ndarray]:
    x = weights(*shape, seed=3)
    return harness.run_module(relax.transform.LegalizeOps()(mod), [x], lambda f: f)


def channels_last(x: Any) -> list[Any]:
    y = emit(relax.op.nn.relu(emit(relax.op.add(last(x), constant(weights(8))))))
    return [relax.op.mean(emit(relax.op.add(y, last(y))), [1, 2])]


def branches(x: Any) -> list[Any]:
    y = last(x)
    left = emit(relax.op.nn.relu(y))
    right = emit(relax.op.sigmoid(y))
    joined = emit(relax.op.concat([left, right], axis=3))
    return [last(joined, 4)]


def parts(x: Any) -> list[Any]:
    split = emit(relax.op.split(last(x), 2, axis=3))
    first = emit(relax.TupleGetItem(split, 0))
    second = emit(relax.TupleGetItem(split, 1))
    piece = emit(relax.op.strided_slice(first, [1, 2], [0, 1], [4, 5]))
    other = emit(relax.op.strided_slice(second, [-2, -3], [1, 0], [5, 4]))
    return [turn(emit(relax.op.multiply(piece, other)), *NCHW)]


def kept_extent(x: Any) -> list[Any]:
    y = last(x)
    scale = emit(relax.op.max(y, axis=[1, 2], keepdims=True))
    return [turn(emit(relax.op.divide(y, scale)), *NCHW)]


def softmax_over_rows(x: Any) -> list[Any]:
    return [turn(emit(relax.op.nn.softmax(last(x), axis=2)), *NCHW)]


def softmax_over_channels(x: Any) -> list[Any]:
    return [turn(emit(relax.op.nn.softmax(last(x), axis=3)), *NCHW)]


def chain(x: Any) -> list[Any]:
    return [relax.op.exp(turn(turn(turn(x, 0, 2, 3, 1), 0, 3, 1, 2), 1, 0, 3, 2))]


def flattened_plane(x: Any) -> list[Any]:
    rows = emit(relax.op.reshape(turn(conv(x), *NHWC), (2, 30, 8)))
    return [turn(emit(relax.op.nn.relu(rows)), 0, 2, 1)]


def mixed_axes(x: Any) -> list[Any]:
    rows = emit(relax.op.reshape(turn(conv(x), *NHWC), (2, 5, 48)))
    return [relax.op.nn.relu(rows)]


def single_axes(x: Any) -> list[Any]:
    return [relax.op.exp(turn(emit(relax.op.reshape(x, (2, 1, 4, 1, 30))), 1, 0, 3, 2, 4))]


def batches(x: Any) -> list[Any]:
    y = emit(relax.op.matmul(turn(x, 1, 0, 2), constant(weights(6, 3))))
    return [turn(emit(relax.op.nn.relu(y)), 1, 0, 2)]


def absorbed(x: Any) -> list[Any]:
    return [relax.op.matmul(x, turn(emit(relax.op.exp(x)), 0, 2, 1))]


def two_readers(x: Any) -> list[Any]:
    y = emit(relax.op.exp(turn(x, *NHWC)))
    return [conv(turn(y, *NCHW), 4), emit(relax.op.nn.softmax(y, axis=-1))]


def vector_and_plane(x: Any) -> list[Any]:
    y = last(x)
    plane = emit(relax.op.mean(y, axis=[0]))
    return [last(emit(relax.op.subtract(y, plane)), 4)]


def widened(x: Any) -> list[Any]:
    y = emit(relax.op.broadcast_to(last(x, 1), (2, 5, 6, 8)))
    return [turn(emit(relax.op.nn.relu(y)), *NCHW)]


T, V = "permute_dims", "reshape"
X = (2, 5, 6, 4)
IMAGE = (2, 4, 5, 6)
# name -> (input shape, Before, operators of Expected)
GRAPHS: dict[str, tuple[tuple[int, ...], Body, list[str]]] = {
    "channels last": (X, channels_last, [T, "conv2d", "add", "relu", "conv2d", "add", "mean"]),
    "branches": (X, branches, [T, "conv2d", "relu", "sigmoid", "concat", "conv2d", T]),
    "parts": (
        X, parts, [T, "conv2d", "split", "strided_slice", "strided_slice", "multiply"],
    ),
    "kept extents": (X, kept_extent, [T, "conv2d", "max", "divide"]),
    "softmax over rows": (X, softmax_over_rows, [T, "conv2d", "softmax"]),
    "softmax over channels": (X, softmax_over_channels, [T, "conv2d", T, "softmax", T]),
    "chain": (IMAGE, chain, [T, "exp"]),
    "flattened plane": (IMAGE, flattened_plane, ["conv2d", V, "relu"]),
    "reshape over mixed axes": (IMAGE, mixed_axes, ["conv2d", T, V, "relu"]),
    "axes of extent 1": ((2, 4, 30), single_axes, [V, V, "exp"]),
    "batches of a product": ((5, 4, 6), batches, ["matmul", "relu"]),
    "right side of a product": ((2, 5, 6), absorbed, ["exp", T, "matmul"]),
    "two readers": (IMAGE, two_readers, ["exp", T, "conv2d", "softmax"]),
    "operands of lower rank": (
        X, vector_and_plane, [T, "conv2d", "mean", V, "subtract", "conv2d", T],
    ),
    "broadcast": (X, widened, [T, "conv2d", "broadcast_to", "relu"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_expected_graph_and_same_result(name: str) -> None:
    shape, body, expected = GRAPHS[name]
    before, after, _ = pushed(shape, body)
    assert [op for op, _ in steps(after)] == expected
    for old, new in zip(results(before, shape), results(after, shape), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


def test_pinned_gain_of_one_region() -> None:
    def body(x: Any) -> list[Any]:
        return [conv(turn(emit(relax.op.nn.relu(turn(conv(x), *NHWC))), *NCHW))]

    _, after, decisions = pushed(IMAGE, body)
    assert [op for op, _ in steps(after)] == ["conv2d", "relu", "conv2d"]
    (decision,) = decisions
    tensor = 2 * 8 * 5 * 6 * 4
    assert decision.fired
    assert decision.bytes_saved == 2 * 2 * tensor
    assert decision.launches_saved == 2
    assert decision.gain_us == pytest.approx(4 * tensor / 20e3 + 2 * 0.2)
    assert decision.reason.startswith("1 operators, lv2 first, compute in the order")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("softmax over channels", "axis 3 of softmax has to stay the last"),
        ("reshape over mixed axes", "cannot take that order"),
        ("two readers", "axis -1 of softmax has to stay the last"),
        ("branches", "gv needs the order it was written for"),
    ],
)
def test_a_transpose_that_stays_says_for_whom(name: str, reason: str) -> None:
    shape, body, _ = GRAPHS[name]
    _, _, decisions = pushed(shape, body)
    declined = [d for d in decisions if not d.fired]
    assert any(reason in d.reason for d in declined), declined
    assert all("bytes stays" in d.reason for d in declined)


def test_pads_of_the_standard_operator_follow(tmp_path: Path) -> None:
    def body(x: Any) -> list[Any]:
        padded = standard_ops.call("pad", last(x), before=(0, 1, 2, 0), after=(0, 0, 1, 0))
        return [turn(emit(padded), *NCHW)]

    _, after, _ = pushed(X, body)
    assert [op for op, _ in steps(after)] == [T, "conv2d", "uif.pad"]
    model, x = imported([("x", X, "float32")], body), weights(*X)
    rewritten = replace(model, mod=push_transpose.PASS.apply(model.mod, context()))
    found = [engine(tmp_path, item, level=0).run({"x": x})[0] for item in (model, rewritten)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_position_over_all_axes_depends_on_their_order() -> None:
    def body(x: Any) -> list[Any]:
        return [standard_ops.call("argmax", last(x), axis=None)]

    _, after, _ = pushed(X, body)
    assert [op for op, _ in steps(after)] == [T, "conv2d", T, "uif.argmax"]


def test_extents_of_run_time() -> None:
    def body(x: Any) -> list[Any]:
        y = emit(relax.op.nn.relu(turn(x, 0, 2, 1)))
        return [turn(emit(relax.op.add(y, constant(weights(4)))), 0, 2, 1)]

    before = module([("x", ("n", 4, "t"), "float32")], body)
    after = push_transpose.PASS.apply(before, context())
    assert [op for op, _ in steps(after)] == ["relu", "add"]
    x = weights(2, 4, 7)
    run = [
        harness.run_module(relax.transform.LegalizeOps()(mod), [x], lambda f: f)[0]
        for mod in (before, after)
    ]
    np.testing.assert_array_equal(run[1], run[0])


def test_graphs_without_transposes_are_left_alone() -> None:
    before, after, decisions = pushed(IMAGE, lambda x: [relax.op.exp(x)])
    assert before is after
    assert decisions == []


PERMUTATIONS = st.permutations(range(3)).map(tuple)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), PERMUTATIONS, st.integers(0, 9)), max_size=9))
def test_random_graphs_compute_the_same(recipe: list[tuple[int, tuple[int, ...], int]]) -> None:
    def body(x: Any) -> list[Any]:
        values = [x]
        for kind, order, pick in recipe:
            y = values[pick % len(values)]
            shape = static_shape(y) or ()
            if kind < 4:
                y = turn(y, *order)
            elif kind == 4:
                y = emit(relax.op.nn.relu(y))
            elif kind == 5:
                y = emit(relax.op.add(y, constant(weights(shape[-1]))))
            elif kind == 6:
                y = emit(relax.op.concat([y, y], axis=pick % 3))
            elif kind == 7:
                y = emit(relax.op.nn.softmax(y, axis=pick % 3))
            elif kind == 8:
                y = emit(relax.op.subtract(y, emit(relax.op.max(y, [pick % 3], keepdims=True))))
            else:
                y = emit(relax.op.reshape(emit(relax.op.sum(y, [pick % 3])), (
                    *[n for axis, n in enumerate(shape) if axis != pick % 3], 1)))  # fmt: skip
            values.append(y)
        return [values[-1], values[len(values) // 2]]

    before, after, _ = pushed((2, 3, 4), body)
    for old, new in zip(results(before, (2, 3, 4)), results(after, (2, 3, 4)), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)
