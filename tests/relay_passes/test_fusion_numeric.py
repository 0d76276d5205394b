"""Fused kernels compute what the kernels apart compute, over random small graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.models import compiled, constant, engine, imported, weights

UNARY = ("exp", "negative", "abs", "sqrt", "tanh", "sigmoid")
BINARY = ("add", "subtract", "multiply", "maximum")
FOLDS = ("sum", "max", "mean", "min")
KINDS = (
    "unary", "binary", "binary", "fold", "softmax", "norm", "reshape", "transpose", "matmul",
)  # fmt: skip
SHAPE = (2, 6, 20)


@st.composite
def recipes(draw: Any) -> list[tuple[Any, ...]]:
    """Steps over the values so far: (kind, operator, index of operands, further choices)."""
    steps = []
    for count in range(1, draw(st.integers(3, 9)) + 1):
        kind = draw(st.sampled_from(KINDS))
        one, two = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        steps.append((kind, draw(st.integers(0, 5)), one, two, draw(st.integers(0, 2))))
    return steps


def built(steps: list[tuple[Any, ...]]) -> Any:
    """The graph of a recipe; operands that do not fit are folded to one element first."""

    def shape(x: Any) -> list[int]:
        return [int(extent) for extent in x.ty.shape]

    def body(x: Any) -> Any:
        emit = relax.BlockBuilder.current().emit
        values = [x]

        def step(kind: str, which: int, a: Any, b: Any, axis: int) -> Any:
            axis %= max(1, len(shape(a)))
            if kind == "unary":
                make = getattr(relax.op, UNARY[which % len(UNARY)])
                return make(emit(relax.op.abs(a)) if UNARY[which % len(UNARY)] == "sqrt" else a)
            if kind == "binary":
                if shape(a) != shape(b):
                    b = emit(relax.op.mean(b))
                return getattr(relax.op, BINARY[which % len(BINARY)])(a, b)
            if kind == "fold":
                fold = getattr(relax.op, FOLDS[which % len(FOLDS)])
                total = emit(fold(a, axis=axis, keepdims=True))
                return relax.op.subtract(a, total) if which > 2 else total
            if kind == "softmax":
                return relax.op.nn.softmax(a, axis=-1)
            if kind == "norm":
                width = shape(a)[-1]
                return relax.op.nn.layer_norm(
                    a, constant(weights(width)), constant(weights(width)), axes=-1
                )
            if kind == "reshape":
                whole = shape(a)
                return relax.op.reshape(a, (whole[0], int(np.prod(whole[1:]))))
            if kind == "transpose":
                order = np.roll(np.arange(len(shape(a))), axis)
                return relax.op.permute_dims(a, [int(at) for at in order])
            return relax.op.tanh(emit(relax.op.matmul(a, constant(weights(shape(a)[-1], 8) / 4))))

        for at, (kind, which, one, two, axis) in enumerate(steps):
            values.append(emit(step(kind, which, values[one], values[two], axis), f"step_{at}"))
        return [values[-1], values[len(values) // 2]]

    return imported([("x", SHAPE, "float32")], body)


@settings(max_examples=12, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(recipes())
def test_random_graphs(tmp_path: Path, steps: list[tuple[Any, ...]]) -> None:
    model = built(steps)
    x = weights(*SHAPE, seed=5)
    apart = engine(tmp_path, model, level=1).run(x)
    together = engine(tmp_path, model, level=2).run(x)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_every_kernel_of_the_model_is_in_one_group_or_alone() -> None:
    """Each value of the graph is computed by one kernel, and the report says which."""
    steps = [("fold", 4, 0, 0, 2), ("unary", 0, 1, 0, 0), ("softmax", 0, 2, 0, 0),
             ("binary", 0, 3, 1, 0), ("matmul", 0, 4, 0, 0), ("norm", 0, 5, 0, 0)]  # fmt: skip
    alone = compiled(built(steps), level=1).report["kernels"]
    merged = compiled(built(steps), level=2).report["kernels"]
    for rows in (alone, merged):
        names = [name for row in rows for name in row["sources"] if name.startswith("step_")]
        assert sorted(names) == [f"step_{at}" for at in range(len(steps))]
    assert sum(row["calls"] for row in merged) < sum(row["calls"] for row in alone)


@pytest.mark.parametrize("extent", [1, 3, 17])
def test_open_extents(tmp_path: Path, extent: int) -> None:
    def body(x: Any) -> Any:
        emit = relax.BlockBuilder.current().emit
        high = emit(relax.op.max(x, axis=-1, keepdims=True))
        power = emit(relax.op.exp(emit(relax.op.subtract(x, high))))
        flat = emit(relax.op.reshape(power, relax.ShapeExpr([x.ty.shape[0] * 24])))
        return [emit(relax.op.negative(flat)), emit(relax.op.sum(power, axis=-1))]

    model = imported([("x", ("n", 24), "float32")], body)
    x = weights(extent, 24)
    power = np.exp(x - x.max(-1, keepdims=True))
    flat, total = engine(tmp_path, model).run(x)
    np.testing.assert_allclose(flat, -power.reshape(-1), rtol=1e-5)
    np.testing.assert_allclose(total, power.sum(-1), rtol=1e-5)
