"""Copies of a tensor as it is go; what changes an element, a type or a shape stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from uif_tvm.relay_passes import simplify_movement

from tests.models import constant, context, engine, imported, module, weights
from uif_tvm import standard_ops
from uif_tvm.relax_util import calls, op_name

X = (3, 4, 5)
op = relax.op


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def cut(x: Any, axis: int, first: int, end: int) -> Any:
    return emit(op.strided_slice(x, [axis], [first], [end]))


def cast(x: Any, *dtypes: str) -> Any:
    for dtype in dtypes:
        x = emit(op.astype(x, dtype))
    return x


def rejoined(x: Any, order: tuple[int, int] = (0, 1)) -> Any:
    parts = emit(op.split(x, [1], axis=1))
    fields = [emit(relax.TupleGetItem(parts, index)) for index in order]
    return emit(op.concat(fields, axis=1))


def wide(x: Any, *shape: int) -> Any:
    return emit(op.broadcast_to(x, shape))


def taken(x: Any, *indices: int) -> Any:
    return emit(op.take(x, constant(np.array(indices)), axis=1))


def rows(x: Any) -> Any:
    return emit(op.sum(x, axis=[1], keepdims=True))


# name -> (Before, operators of Expected)
GRAPHS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "concat of one": (lambda x: op.exp(emit(op.concat([x], axis=0))), ["exp"]),
    "slice of everything": (lambda x: op.exp(cut(x, 1, 0, 99)), ["exp"]),
    "slices rejoined": (
        lambda x: op.exp(emit(op.concat([cut(x, 2, 0, 2), cut(x, 2, 2, 5)], axis=2))), ["exp"],
    ),
    "split rejoined": (lambda x: op.exp(rejoined(x)), ["exp"]),
    "there and back in a wider type": (lambda x: op.exp(cast(x, "float64", "float32")), ["exp"]),
    "cast to its own type": (lambda x: op.exp(cast(x, "float32")), ["exp"]),
    "broadcast before an operator": (lambda x: op.add(wide(rows(x), *X), x), ["sum", "add"]),
    "broadcast to its own shape": (lambda x: op.exp(wide(x, *X)), ["exp"]),
    "tile by 1": (
        lambda x: op.exp(emit(standard_ops.call("tile", x, repeats=(1, 1, 1)))), ["exp"],
    ),
    "repeat by 1": (
        lambda x: op.exp(emit(standard_ops.call("repeat", x, repeats=1, axis=1))), ["exp"],
    ),
    "take of all": (lambda x: op.exp(taken(x, 0, 1, 2, 3)), ["exp"]),
    "flip of flip": (lambda x: op.exp(emit(op.flip(emit(op.flip(x, 1)), -2))), ["exp"]),
    # What stays.
    "slices with a gap": (
        lambda x: op.exp(emit(op.concat([cut(x, 2, 0, 2), cut(x, 2, 3, 5)], axis=2))),
        ["strided_slice", "strided_slice", "concat", "exp"],
    ),
    "split rejoined the other way": (lambda x: op.exp(rejoined(x, (1, 0))),
                                     ["split", "concat", "exp"]),
    "there and back in a narrower type": (
        lambda x: op.exp(cast(x, "float16", "float32")), ["astype", "astype", "exp"],
    ),
    "whole numbers that float32 rounds": (
        lambda x: op.negative(cast(x, "int32", "float32", "int32")),
        ["astype", "astype", "astype", "negative"],
    ),
    "broadcast that makes the shape": (
        lambda x: op.exp(wide(rows(x), *X)), ["sum", "broadcast_to", "exp"],
    ),
    "slice by 2": (
        lambda x: op.exp(emit(op.strided_slice(x, [1], [0], [4], [2]))), ["strided_slice", "exp"],
    ),
    "slice from the end": (
        lambda x: op.exp(emit(standard_ops.call("strided_slice", x, axes=(1,), begin=(-1,),
                                                end=(-9,), strides=(-1,)))),
        ["flip", "exp"],
    ),
    "take in another order": (lambda x: op.exp(taken(x, 0, 2, 1, 3)), ["take", "exp"]),
    "flips of two axes": (
        lambda x: op.exp(emit(op.flip(emit(op.flip(x, 1)), 2))), ["flip", "flip", "exp"],
    ),
}  # fmt: skip


def simplified(body: Callable[[Any], Any]) -> tuple[tvm.IRModule, Any]:
    ctx = context()
    mod = simplify_movement.PASS.apply(module([("x", X, "float32")], lambda x: [body(x)]), ctx)
    return mod, ctx.report.decisions


@pytest.mark.parametrize("name", GRAPHS)
def test_expected_graph_and_same_result(name: str, tmp_path: Path) -> None:
    body, expected = GRAPHS[name]
    found = [(op_name(call) or "").rsplit(".", 1)[-1] for _, call in calls(simplified(body)[0])]
    assert found == expected
    model = imported([("x", X, "float32")], lambda x: [body(x)])
    rewritten = replace(model, mod=simplify_movement.PASS.apply(model.mod, context()))
    x = weights(*X) * 1000
    results = [engine(tmp_path, item, level=0).run({"x": x})[0] for item in (model, rewritten)]
    np.testing.assert_array_equal(results[1], results[0])


def test_pinned_gain() -> None:
    _, decisions = simplified(lambda x: op.exp(rejoined(x)))
    (decision,) = decisions
    assert decision.reason == "2 pieces of one tensor side by side are that tensor"
    assert decision.bytes_saved == 2 * 60 * 4
    assert decision.gain_us == pytest.approx(480 / 20e3 + 0.2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("there and back in a narrower type", "float16 does not hold every float32"),
        ("broadcast that makes the shape", "the broadcast gives the result its shape"),
    ],
)
def test_what_is_declined_says_why(name: str, reason: str) -> None:
    _, decisions = simplified(GRAPHS[name][0])
    assert [(d.fired, d.reason) for d in decisions] == [(False, reason)]
