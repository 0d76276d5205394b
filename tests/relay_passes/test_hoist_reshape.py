"""Reshapes that regroup rows move up and cancel; others stay."""

from __future__ import annotations

from typing import Any

from tvm import relax
from uif_tvm.relay_passes import hoist_reshape

from tests.models import constant, context, module, weights
from uif_tvm.relax_util import calls, op_name, static_shape

X = [("x", (2, 5, 8), "float32")]


def hoisted(inputs: Any, *steps: Any) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """(operator, shape) of each call after the pass, every step bound to a variable before."""

    def body(x: Any) -> list[Any]:
        builder = relax.BlockBuilder.current()
        for step in steps:
            x = builder.emit(step(x))
        return [x]

    mod = hoist_reshape.PASS.apply(module(inputs, body), context())
    return [(op_name(call), static_shape(var)) for var, call in calls(mod)]


def linear(x: Any) -> Any:
    return relax.op.matmul(x, constant(weights(8, 6)))


def test_flattening_around_a_linear_layer_cancels() -> None:
    left = hoisted(
        X,
        lambda x: relax.op.reshape(x, (10, 8)),
        linear,
        lambda x: relax.op.add(constant(weights(6)), x),
        relax.op.nn.relu,
        lambda x: relax.op.reshape(x, (2, 5, 6)),
    )
    assert left == [
        ("relax.matmul", (2, 5, 6)),
        ("relax.add", (2, 5, 6)),
        ("relax.nn.relu", (2, 5, 6)),
    ]


def test_chains_of_reshapes_become_one() -> None:
    left = hoisted(
        X,
        lambda x: relax.op.reshape(x, (10, 8)),
        lambda x: relax.op.reshape(x, (80,)),
        lambda x: relax.op.reshape(x, (4, 20)),
    )
    assert left == [("relax.reshape", (4, 20))]


def test_a_reshape_to_the_same_shape_goes() -> None:
    assert hoisted(X, lambda x: relax.op.reshape(x, (2, 5, 8)), relax.op.exp) == [
        ("relax.exp", (2, 5, 8))
    ]


def test_a_reshape_that_splits_the_last_axis_stays_below() -> None:
    left = hoisted(X, linear, lambda x: relax.op.reshape(x, (2, 5, 3, 2)))
    assert left == [("relax.matmul", (2, 5, 6)), ("relax.reshape", (2, 5, 3, 2))]


def test_values_used_twice_are_not_computed_twice() -> None:
    def body(x: Any) -> list[Any]:
        builder = relax.BlockBuilder.current()
        y = builder.emit(linear(x))
        z = builder.emit(relax.op.reshape(y, (10, 6)))
        return [y, z]

    mod = hoist_reshape.PASS.apply(module(X, body), context())
    assert [op_name(call) for _, call in calls(mod)].count("relax.matmul") == 1


def test_a_full_second_operand_stops_the_move() -> None:
    left = hoisted(
        [("x", (10, 8), "float32")],
        lambda x: relax.op.add(x, constant(weights(10, 8))),
        lambda x: relax.op.reshape(x, (2, 5, 8)),
    )
    assert left == [("relax.add", (10, 8)), ("relax.reshape", (2, 5, 8))]
