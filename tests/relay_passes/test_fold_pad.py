"""Padding folds where the elements read as padding are those that were stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from uif_tvm.relay_passes import fold_pad

from tests.models import constant, context, engine, imported, module, weights
from uif_tvm import standard_ops
from uif_tvm.relax_util import calls, op_name

X = (2, 3, 7, 6)
LEAST = float("-inf")


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def pad(x: Any, widths: Any = ((0, 0), (0, 0), (1, 2), (0, 1)), value: float = 0.0) -> Any:
    flat = [width for pair in widths for width in pair]
    return emit(relax.op.nn.pad(x, flat, "constant", value))


def own_pad(x: Any, before: Any, after: Any, value: float | None = None) -> Any:
    fill = [] if value is None else [constant(np.float32(value))]
    return emit(standard_ops.call("pad", x, *fill, before=before, after=after))


def conv(x: Any, **attrs: Any) -> Any:
    weight = constant(weights(4, 3 // attrs.get("groups", 1), 3, 3) if "groups" not in attrs
                      else weights(3, 1, 3, 3))  # fmt: skip
    return relax.op.nn.conv2d(x, weight, **attrs)


def max_pool(x: Any, **attrs: Any) -> Any:
    return relax.op.nn.max_pool2d(x, (3, 3), (2, 2), **attrs)


def average(x: Any, **attrs: Any) -> Any:
    return relax.op.nn.avg_pool2d(x, (3, 3), (2, 2), **attrs)


def conv1d(x: Any) -> Any:
    rows = emit(relax.op.reshape(x, (2, 3, 42)))
    weight = constant(weights(4, 3, 5))
    return relax.op.nn.conv1d(own_pad(rows, (0, 0, 3), (0, 0, 1)), weight, padding=1)


def conv3d(x: Any) -> Any:
    deep = emit(relax.op.reshape(x, (2, 3, 7, 3, 2)))
    padded = own_pad(deep, (0, 0, 1, 0, 2), (0, 0, 0, 1, 1))
    return relax.op.nn.conv3d(padded, constant(weights(4, 3, 3, 3, 3)))


def relu(x: Any) -> Any:
    return emit(relax.op.nn.relu(x))


def ceiling(x: Any, rows: int = 2) -> Any:
    padded = pad(x, ((0, 0), (0, 0), (1, rows), (0, 1)))
    return standard_ops.call("avg_pool", padded, pool_size=(3, 3), strides=(2, 2), ceil_mode=True)


CHANNELS = ((0, 0), (1, 0), (0, 0), (0, 0))
CUT = ((0, 0), (0, 0), (-1, 2), (0, 0))
FOLDED: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "conv2d": (lambda x: conv(pad(x)), ["relax.nn.conv2d"]),
    "conv2d with padding": (lambda x: conv(pad(x), padding=(0, 1, 2, 0)), ["relax.nn.conv2d"]),
    "depthwise": (lambda x: conv(pad(x), groups=3, strides=2), ["relax.nn.conv2d"]),
    "standard padding": (
        lambda x: conv(own_pad(x, (0, 0, 2, 0), (0, 0, 1, 1))), ["relax.nn.conv2d"],
    ),
    "conv1d": (conv1d, ["relax.reshape", "relax.nn.conv1d"]),
    "conv3d": (conv3d, ["relax.reshape", "relax.nn.conv3d"]),
    "largest": (lambda x: max_pool(pad(x, value=LEAST)), ["relax.nn.max_pool2d"]),
    "largest of what is not negative": (
        lambda x: max_pool(pad(relu(x))), ["relax.nn.relu", "relax.nn.max_pool2d"],
    ),
    "mean that counts pads": (
        lambda x: average(pad(x), padding=(0, 1, 0, 0), count_include_pad=True),
        ["relax.nn.avg_pool2d"],
    ),
    "mean without padding": (lambda x: average(pad(x)), ["relax.nn.avg_pool2d"]),
    "mean in ceil mode, whole windows": (lambda x: ceiling(x, 1), ["uif.avg_pool"]),
    "pad of pad": (lambda x: relax.op.exp(pad(pad(x))), ["relax.nn.pad", "relax.exp"]),
    "standard pad of pad": (
        lambda x: own_pad(own_pad(x, (0, 1, 0, 0), (0,) * 4, 2.0), (0,) * 4, (1, 0, 0, 2), 2.0),
        ["uif.pad"],
    ),
    "pad by nothing": (lambda x: relax.op.exp(pad(x, ((0, 0),) * 4)), ["relax.exp"]),
    "pad that cuts": (
        lambda x: own_pad(x, (0, -1, 0, 0), (0, 0, -2, 0)), ["relax.strided_slice"],
    ),
    "pad of pad before a conv": (lambda x: conv(pad(pad(x))), ["relax.nn.conv2d"]),
}  # fmt: skip

DECLINED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "other value": (lambda x: conv(pad(x, value=1.0)), "padded with 1.0, not with zeros"),
    "cut and padded": (lambda x: conv(pad(x, CUT)), "go beyond padding of the plane"),
    "channels": (
        lambda x: relax.op.nn.conv2d(pad(x, CHANNELS), constant(weights(4, 4, 3, 3))),
        "go beyond padding of the plane",
    ),
    "value that may win": (lambda x: max_pool(pad(x)), "padding with 0.0 may win"),
    "smallest number is more than -inf": (
        lambda x: max_pool(pad(x, value=float(np.finfo(np.float32).min))), "may win",
    ),
    "windows of padding alone": (
        lambda x: max_pool(pad(x, ((0, 0), (0, 0), (3, 0), (0, 0)), LEAST)),
        "could lie in padding of (3, 0, 0, 0) alone",
    ),
    "two ways to count": (
        lambda x: average(pad(x), padding=(0, 1, 0, 0)), "that of the pool, (0, 1, 0, 0), does not",
    ),
    "mean of other padding": (lambda x: average(pad(x, value=1.0)), "padded with 1.0"),
    "ceil mode": (lambda x: ceiling(x), "windows of ceil mode end past the padding"),
}  # fmt: skip


def folded(body: Callable[[Any], Any]) -> tuple[list[str | None], Any]:
    ctx = context()
    mod = fold_pad.PASS.apply(module([("x", X, "float32")], lambda x: [body(x)]), ctx)
    return [op_name(call) for _, call in calls(mod)], ctx.report.decisions


def results(folder: Path, body: Callable[[Any], Any], x: np.ndarray) -> list[np.ndarray]:
    """Of the graph as it was, and as the pass leaves it."""
    model = imported([("x", X, "float32")], lambda v: [body(v)])
    rewritten = replace(model, mod=fold_pad.PASS.apply(model.mod, context()))
    return [engine(folder, item, level=0).run({"x": x})[0] for item in (model, rewritten)]


@pytest.mark.parametrize("name", FOLDED)
def test_expected_graph_and_same_result(name: str, tmp_path: Path) -> None:
    body, expected = FOLDED[name]
    found, decisions = folded(body)
    assert found == expected
    assert all(decision.fired for decision in decisions)
    plain, optimised = results(tmp_path, body, weights(*X))
    np.testing.assert_allclose(optimised, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_declined_says_why_and_computes_the_same(name: str, tmp_path: Path) -> None:
    body, reason = DECLINED[name]
    found, decisions = folded(body)
    assert "relax.nn.pad" in found
    assert [d.fired for d in decisions] == [False]
    assert reason in decisions[0].reason
    plain, optimised = results(tmp_path, body, weights(*X))
    np.testing.assert_allclose(optimised, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_special_values_stay_what_they_are(value: float, tmp_path: Path) -> None:
    x = weights(*X)
    x[:, :, ::2, 1:4] = value
    body = FOLDED["largest"][0]
    plain, optimised = results(tmp_path, body, x)
    np.testing.assert_array_equal(optimised, plain)


def test_smallest_integer_never_wins() -> None:
    def body(x: Any) -> Any:
        whole = emit(relax.op.astype(x, "int32"))
        return max_pool(pad(whole, value=float(np.iinfo(np.int32).min)))

    assert folded(body)[0] == ["relax.astype", "relax.nn.max_pool2d"]


def test_pinned_gain_and_a_copy_that_others_read() -> None:
    _, decisions = folded(lambda x: conv(pad(x)))
    moved = (2 * 3 * 7 * 6 + 2 * 3 * 10 * 7) * 4
    assert decisions[0].bytes_saved == moved
    assert decisions[0].gain_us == pytest.approx(moved / 20e3 + 0.2)

    def shared(x: Any) -> Any:
        padded = pad(x)
        return relax.op.multiply(emit(conv(padded)), emit(relax.op.mean(padded)))

    found, decisions = folded(shared)
    assert found[:2] == ["relax.nn.pad", "relax.nn.conv2d"]
    assert decisions[0].gain_us == 0
    assert "stays for other readers" in decisions[0].reason


def test_extents_of_run_time_fold_too() -> None:
    ctx = context()
    mod = module([("x", ("n", 3, "h", "w"), "float32")], lambda x: [conv(pad(x))])
    after = fold_pad.PASS.apply(mod, ctx)
    assert [op_name(call) for _, call in calls(after)] == ["relax.nn.conv2d"]
