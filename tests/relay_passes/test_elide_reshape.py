"""Shape changes that move no element become one, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from uif_tvm.relay_passes import elide_reshape, fold_pad

from tests.models import constant, context, engine, imported, module, weights
from uif_tvm import standard_ops
from uif_tvm.relax_util import calls, op_name, static_shape

X = (2, 1, 6, 4)
op = relax.op


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def view(x: Any, *shape: int) -> Any:
    return emit(op.reshape(x, shape))


def padded_rows(x: Any) -> Any:
    rows = view(x, 2, 1, 24)
    return emit(standard_ops.call("pad", rows, before=(0, 0, 3), after=(0, 0, 1)))


def conv_of_rows(x: Any) -> Any:
    return op.nn.conv2d(view(padded_rows(x), 2, 1, 1, 28), constant(weights(4, 1, 1, 5)))


def reused(x: Any) -> Any:
    rows = padded_rows(x)
    return op.add(view(rows, 2, 1, 1, 28), emit(op.sum(rows)))


# name -> (Before, operators of Expected)
GRAPHS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "reshape of reshape": (lambda x: op.exp(view(view(x, 12, 4), 3, 16)), ["reshape", "exp"]),
    "to the same shape": (lambda x: op.exp(view(x, *X)), ["exp"]),
    "there and back": (lambda x: op.exp(view(view(x, 48), *X)), ["exp"]),
    "squeeze and unsqueeze": (
        lambda x: op.exp(emit(op.expand_dims(emit(op.squeeze(x, [1])), [1]))), ["exp"],
    ),
    "flatten of flat": (
        lambda x: op.exp(emit(op.flatten(emit(op.flatten(x))))), ["reshape", "exp"],
    ),
    "transpose of an axis of 1": (
        lambda x: op.exp(emit(op.permute_dims(x, [1, 0, 2, 3]))), ["reshape", "exp"],
    ),
    "reshape, transpose, reshape of nothing": (
        lambda x: op.exp(view(emit(op.permute_dims(view(x, 2, 1, 24), [1, 0, 2])), *X)), ["exp"],
    ),
    "transpose that moves elements": (
        lambda x: op.exp(view(emit(op.permute_dims(view(x, 2, 24), [1, 0])), *X)),
        ["reshape", "permute_dims", "reshape", "exp"],
    ),
    "expanded padding": (conv_of_rows, ["reshape", "uif.pad", "conv2d"]),
    "expanded padding that others read": (reused, ["reshape", "uif.pad", "reshape", "sum", "add"]),
}  # fmt: skip


def elided(body: Callable[[Any], Any]) -> tuple[tvm.IRModule, Any]:
    ctx = context()
    mod = elide_reshape.PASS.apply(module([("x", X, "float32")], lambda x: [body(x)]), ctx)
    return mod, ctx.report.decisions


def steps(mod: tvm.IRModule) -> list[str]:
    return [
        (op_name(call) or "").removeprefix("relax.").removeprefix("nn.") for _, call in calls(mod)
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_expected_graph_and_same_result(name: str, tmp_path: Path) -> None:
    body, expected = GRAPHS[name]
    assert steps(elided(body)[0]) == expected
    model = imported([("x", X, "float32")], lambda x: [body(x)])
    rewritten = replace(model, mod=elide_reshape.PASS.apply(model.mod, context()))
    x = weights(*X)
    found = [engine(tmp_path, item, level=0).run({"x": x})[0] for item in (model, rewritten)]
    np.testing.assert_array_equal(found[1], found[0])


def test_padding_reaches_the_convolution() -> None:
    mod, _ = elided(conv_of_rows)
    after = fold_pad.PASS.apply(mod, context())
    assert steps(after) == ["reshape", "conv2d"]
    assert static_shape(next(iter(calls(after)))[0]) == (2, 1, 1, 24)


def test_pinned_gain() -> None:
    _, decisions = elided(lambda x: op.exp(view(view(view(x, 48), 12, 4), *X)))
    last = decisions[-1]
    assert last.fired
    assert last.reason == "no change of [2, 1, 6, 4] through 2 operators"
    assert last.launches_saved == 2
    assert last.gain_us == pytest.approx(0.4)


def test_extents_of_run_time() -> None:
    def body(x: Any) -> list[Any]:
        n, _, t = x.ty.shape
        wide = emit(op.expand_dims(x, [2]))
        return [op.exp(emit(op.reshape(wide, relax.ShapeExpr([n, 3, t]))))]

    mod = module([("x", ("n", 3, "t"), "float32")], body)
    assert steps(elide_reshape.PASS.apply(mod, context())) == ["exp"]


def test_variables_of_another_block_are_not_reached_for() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(op.exp(x))
            flat = builder.emit_output(op.reshape(inner, (48,)))
        outside = builder.emit(op.reshape(flat, X))
        builder.emit_func_output(outside)
    mod = elide_reshape.PASS.apply(builder.get(), context())
    relax.analysis.well_formed(mod)
    assert steps(mod) == ["exp", "reshape", "reshape"]
