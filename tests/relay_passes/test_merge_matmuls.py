"""Matmuls with one left-hand side become one where slices of the result are free."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from uif_tvm.relay_passes import merge_matmuls

from tests.models import constant, context, engine, fake_target, imported, module, weights
from uif_tvm.relax_util import calls, op_name
from uif_tvm.standard_ops import call
from uif_tvm.target.registry import get_target

X = [("x", (1, 16, 32), "float32")]
SWAP = [0, 2, 1, 3]


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def linear(x: Any, columns: int, seed: int, bias: bool = False, transposed: bool = False) -> Any:
    # Of unit variance after the product, as trained layers leave it: softmax is not one peak.
    weight = weights(32, columns, seed=seed) / np.float32(32**0.5)
    right = constant(weight)
    if transposed:
        right = emit(relax.op.permute_dims(constant(weight.T.copy())))
    y = emit(relax.op.matmul(x, right))
    return emit(relax.op.add(y, constant(weights(columns, seed=seed + 9)))) if bias else y


def heads(x: Any, count: int) -> Any:
    """``[1, 16, h 8] -> [1, h, 16, 8]``."""
    return emit(relax.op.permute_dims(emit(relax.op.reshape(x, (1, 16, count, 8))), SWAP))


def qkv(x: Any, **options: Any) -> list[Any]:
    """Attention with 4 query heads and 2 of keys."""
    parts = [heads(linear(x, 8 * n, i, **options), n) for i, n in enumerate((4, 2, 2))]
    return [call("attention", *parts)]


def merged(body: Any, inputs: Any = X, **options: Any) -> tuple[list[Any], Any]:
    """(operators and shapes, the report) after the pass."""
    made = context(**options)
    mod = merge_matmuls.PASS.apply(module(inputs, body), made)
    rows = [(op_name(node), tuple(int(n) for n in var.ty.shape.values)) for var, node in calls(mod)]
    return rows, made.report


def count(rows: list[Any], name: str) -> int:
    return [row[0] for row in rows].count(name)


@pytest.mark.parametrize("transposed", [False, True])
def test_queries_keys_and_values(transposed: bool) -> None:
    rows, report = merged(lambda x: qkv(x, transposed=transposed))
    # Before: 3 x matmul of 32, 16 and 16 columns.
    assert rows[:2] == [
        ("relax.matmul", (1, 16, 64)),
        ("relax.strided_slice", (1, 16, 32)),
    ]
    assert count(rows, "relax.matmul") == 1
    assert count(rows, "relax.strided_slice") == 3
    (decision,) = report.decisions
    assert decision.fired
    assert decision.launches_saved == 2
    # x, 16 x 32 elements of 4 bytes, is read once instead of three times.
    assert decision.bytes_saved == 2 * 16 * 32 * 4


def test_other_names_of_a_value_do_not_hide_it() -> None:
    def body(x: Any) -> list[Any]:
        return [call("attention", *[heads(emit(linear(x, 32, i)), 4) for i in range(3)])]

    rows, _ = merged(body)
    assert count(rows, "relax.matmul") == 1


def test_biases_are_joined_and_missing_ones_are_zeros() -> None:
    def body(x: Any) -> list[Any]:
        parts = [heads(linear(x, 32, i, bias=i != 1), 4) for i in range(3)]
        return [call("attention", *parts)]

    rows, _ = merged(body)
    assert rows[:3] == [
        ("relax.matmul", (1, 16, 96)),
        ("relax.add", (1, 16, 96)),
        ("relax.strided_slice", (1, 16, 32)),
    ]


def test_rotated_heads_take_slices_in_place() -> None:
    def body(x: Any) -> list[Any]:
        rotated = []
        for seed in range(2):
            y = emit(relax.op.reshape(linear(x, 32, seed), (1, 16, 4, 8)))
            turned = emit(relax.op.multiply(y, constant(weights(16, 1, 8))))
            rotated.append(emit(relax.op.permute_dims(turned, SWAP)))
        return [call("attention", *rotated, heads(linear(x, 32, 2), 4))]

    rows, report = merged(body)
    assert count(rows, "relax.matmul") == 1
    assert report.decisions[0].launches_saved == 2


@pytest.mark.parametrize(("positions", "products"), [(1, 1), (16, 3)])
def test_attention_reads_columns_of_single_positions(positions: int, products: int) -> None:
    def body(x: Any) -> list[Any]:
        shape = (1, 4, positions, 8)
        parts = [emit(relax.op.reshape(linear(x, 32, seed), shape)) for seed in range(3)]
        return [call("attention", *parts)]

    rows, _ = merged(body, [("x", (1, positions, 32), "float32")])
    assert count(rows, "relax.matmul") == products


def gated(x: Any) -> list[Any]:
    return [relax.op.multiply(emit(relax.op.nn.silu(linear(x, 64, 0))), linear(x, 64, 1))]


def test_slices_that_would_be_copies_are_priced() -> None:
    rows, report = merged(gated)
    assert count(rows, "relax.matmul") == 2
    (decision,) = report.decisions
    assert not decision.fired
    assert decision.reason.startswith("does not pay: 2 of 2 slices would be copies")
    assert decision.launches_saved == 1 - 2
    assert decision.bytes_saved == 16 * 32 * 4 - 2 * 4 * 16 * 128


def test_a_copy_may_still_pay() -> None:
    def body(x: Any) -> list[Any]:
        parts = [heads(linear(x, 8, i), 1) for i in range(3)]
        return [call("attention", *parts), relax.op.nn.relu(linear(x, 1, 5))]

    rows, report = merged(body)
    assert count(rows, "relax.matmul") == 1
    assert report.decisions[0].bytes_saved == 3 * 16 * 32 * 4 - 2 * 16 * 4


def test_launches_may_be_all_that_counts() -> None:
    spec = get_target("cpu")
    target = fake_target(roofline=dataclasses.replace(spec.roofline, gbps=1e6))
    rows, _ = merged(qkv, target=target)
    assert count(rows, "relax.matmul") == 1


def test_weights_computed_at_run_time_stay_apart() -> None:
    inputs = [*X, ("w", (32, 32), "float32")]

    def body(x: Any, w: Any) -> list[Any]:
        parts = [heads(emit(relax.op.matmul(x, w)), 4), heads(linear(x, 32, 1), 4)]
        return [call("attention", parts[0], parts[1], parts[1])]

    rows, report = merged(body, inputs)
    assert count(rows, "relax.matmul") == 2
    assert not report.decisions


def test_different_operands_stay_apart() -> None:
    inputs = [*X, ("z", (1, 16, 32), "float32")]

    def body(x: Any, z: Any) -> list[Any]:
        return [call("attention", *[heads(linear(o, 32, i), 4) for i, o in enumerate((x, z, z))])]

    rows, _ = merged(body, inputs)
    assert count(rows, "relax.matmul") == 2


def test_results_of_the_model_are_copies() -> None:
    rows, report = merged(lambda x: [linear(x, 32, 0), linear(x, 32, 1)])
    assert count(rows, "relax.matmul") == 2
    # Variables that leave their block are no candidates at all.
    assert all(not decision.fired for decision in report.decisions)


@pytest.mark.parametrize("bias", [False, True])
def test_results(bias: bool, tmp_path: Path) -> None:
    x = weights(1, 16, 32, seed=7)
    found = []
    for level in (0, 2):
        run = engine(tmp_path, imported(X, lambda x: qkv(x, bias=bias)), level=level)
        found.append(np.asarray(run.run(x)[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)
    rules = sorted(kernel["rule"] for kernel in run.report["kernels"])
    assert rules == ["fused-attention", "packed-matmul"]


def test_open_positions(tmp_path: Path) -> None:
    def body(x: Any) -> list[Any]:
        n = x.ty.shape.values[1]
        parts = []
        for seed in range(3):
            y = emit(relax.op.reshape(linear(x, 32, seed), (1, n, 4, 8)))
            parts.append(emit(relax.op.permute_dims(y, SWAP)))
        return [call("attention", *parts)]

    model = imported([("x", (1, "n", 32), "float32")], body)
    found = [engine(tmp_path, model, level=level) for level in (0, 2)]
    assert len(found[1].report["kernels"]) == 2
    for n in (1, 5, 40):
        x = weights(1, n, 32, seed=n)
        slow, fast = (np.asarray(run.run(x)[0]) for run in found)
        np.testing.assert_allclose(fast, slow, rtol=1e-5, atol=1e-5)
