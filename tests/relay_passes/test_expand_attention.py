"""Attention becomes one kernel that reads its operands in place, or is composed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from uif_tvm.relay_passes import expand_attention

from tests.models import context, engine, fake_target, imported, module, weights
from uif_tvm.kernels.fused_attention import View, form_of
from uif_tvm.relax_util import calls, op_name
from uif_tvm.standard_ops import call
from uif_tvm.target.registry import get_target
from uif_tvm.target.spec import Refusal

HEADS, FEATURES, POSITIONS = 4, 8, 16
SHAPE = (1, HEADS, POSITIONS, FEATURES)
QKV = [(name, SHAPE, "float32") for name in "qkv"]
SWAP = [0, 2, 1, 3]


def expanded(inputs: Any, body: Any, **options: Any) -> tuple[list[Any], list[Any], Any]:
    """(operators and shapes, the attention kernels' forms, the report) after the pass."""
    made = context(**options)
    mod = expand_attention.PASS.apply(module(inputs, body), made)
    rows, forms = [], []
    for var, node in calls(mod):
        name = op_name(node)
        if name == "relax.call_tir":
            forms.append(form_of(mod[node.args[0]]))
            name = node.args[0].name_hint
        rows.append((name, tuple(int(n) for n in var.ty.shape.values)))
    return rows, forms, made.report


def attention(q: Any, k: Any, v: Any, **attrs: Any) -> Any:
    return call("attention", q, k, v, **attrs)


def split(x: Any) -> Any:
    """``[b, s, h d] -> [b, h, s, d]``."""
    emit = relax.BlockBuilder.current().emit
    heads = emit(relax.op.reshape(x, (1, POSITIONS, HEADS, FEATURES)))
    return emit(relax.op.permute_dims(heads, SWAP))


def joined(y: Any) -> Any:
    """``[b, h, s, d] -> [b, s, h d]``."""
    emit = relax.BlockBuilder.current().emit
    swapped = emit(relax.op.permute_dims(emit(y), SWAP))
    return relax.op.reshape(swapped, (1, POSITIONS, HEADS * FEATURES))


def test_operands_as_they_are() -> None:
    rows, forms, report = expanded(QKV, lambda q, k, v: [attention(q, k, v)])
    # Before: uif.attention(q, k, v).
    assert rows == [("attention", SHAPE)]
    assert forms[0].query == View()
    assert forms[0].scale == pytest.approx(FEATURES**-0.5)
    (decision,) = report.decisions
    assert decision.fired
    assert decision.launches_saved == 2
    # Scores are written and read twice: 4 heads x 16 x 16 elements of 4 bytes.
    assert decision.bytes_saved == 4 * 4 * HEADS * POSITIONS**2


def test_transpositions_around_it_go() -> None:
    inputs = [(name, (1, POSITIONS, 32), "float32") for name in "qkv"]
    rows, forms, report = expanded(
        inputs, lambda *qkv: [joined(attention(*[split(x) for x in qkv]))]
    )
    # Before: 3 x (reshape, permute_dims), uif.attention, permute_dims, reshape.
    assert rows == [("attention", (1, POSITIONS, 32))]
    assert all(v == View(True) for v in (forms[0].query, forms[0].key, forms[0].result))
    (decision,) = report.decisions
    assert decision.launches_saved == 2 + 4
    assert decision.bytes_saved == 4 * 4 * HEADS * POSITIONS**2 + 4 * 2 * 4 * POSITIONS * 32


def test_columns_of_one_tensor_are_read_in_place() -> None:
    def body(x: Any) -> list[Any]:
        emit = relax.BlockBuilder.current().emit
        parts = [emit(relax.op.strided_slice(x, [2], [c], [c + 32])) for c in (0, 32, 64)]
        return [joined(attention(*map(split, parts)))]

    rows, forms, _ = expanded([("x", (1, POSITIONS, 96), "float32")], body)
    # Before: 3 x (strided_slice, reshape, permute_dims), uif.attention, permute_dims, reshape.
    assert rows == [("attention", (1, POSITIONS, 32))]
    assert [forms[0].query.start, forms[0].key.start, forms[0].value.start] == [0, 32, 64]


@pytest.mark.parametrize("positions", [1, 5])
def test_repeated_heads_are_read_once(positions: int, tmp_path: Path) -> None:
    inputs = [
        ("q", (2, 6, 3, 8), "float32"),
        ("k", (2, 2, positions, 8), "float32"),
        ("v", (2, 2, positions, 8), "float32"),
    ]

    def repeated(x: Any) -> Any:
        emit = relax.BlockBuilder.current().emit
        single = emit(relax.op.reshape(x, (2, 2, 1, positions, 8)))
        many = emit(relax.op.broadcast_to(single, (2, 2, 3, positions, 8)))
        return emit(relax.op.reshape(many, (2, 6, positions, 8)))

    def body(q: Any, k: Any, v: Any) -> list[Any]:
        return [attention(q, repeated(k), repeated(v))]

    rows, forms, _ = expanded(inputs, body)
    # Before: 2 x (reshape, broadcast_to, reshape), uif.attention of 6 heads each.
    assert rows == [("attention", (2, 6, 3, 8))]
    assert (forms[0].heads, forms[0].groups) == (6, 2)
    arrays = [weights(*shape, seed=i) for i, (_, shape, _) in enumerate(inputs)]
    found = [
        np.asarray(engine(tmp_path, imported(inputs, body), level=level).run(*arrays)[0])
        for level in (0, 2)
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_single_positions_need_no_transposition() -> None:
    def body(x: Any, k: Any, v: Any) -> list[Any]:
        emit = relax.BlockBuilder.current().emit
        part = emit(relax.op.strided_slice(x, [2], [32], [64]))
        return [attention(emit(relax.op.reshape(part, (1, HEADS, 1, FEATURES))), k, v)]

    rows, forms, _ = expanded([("x", (1, 1, 96), "float32"), *QKV[1:]], body)
    # Before: strided_slice, reshape, uif.attention.
    assert rows == [("attention", (1, HEADS, 1, FEATURES))]
    assert forms[0].query == View(True, 32)


def test_flat_rows_are_reshaped_only() -> None:
    inputs = [("x", (POSITIONS, 32), "float32"), *QKV[1:]]
    rows, _, _ = expanded(inputs, lambda x, k, v: [attention(split(x), k, v)])
    assert rows == [("relax.reshape", (1, POSITIONS, 32)), ("attention", SHAPE)]


def test_a_result_with_other_readers_keeps_its_shape() -> None:
    def body(q: Any, k: Any, v: Any) -> list[Any]:
        y = relax.BlockBuilder.current().emit(attention(q, k, v))
        return [relax.op.permute_dims(y, SWAP), relax.op.nn.relu(y)]

    rows, forms, _ = expanded(QKV, body)
    assert rows[0] == ("attention", SHAPE)
    assert not forms[0].result.rows


def _without_planner() -> Any:
    return fake_target(planner=None)


def _refusing() -> Any:
    spec = get_target("cpu")

    def capability(op: str, attrs: Any, dtypes: Any) -> Refusal | None:
        return Refusal("ragged", "no") if op == "attention" else spec.capability(op, attrs, dtypes)

    return fake_target(capability=capability)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"target": _without_planner()}, "no-planner"),
        ({"target": _refusing()}, "ragged"),
        ({"disabled_fusion": ("att*",)}, "disabled"),
    ],
)
def test_declined_attention_is_composed(options: Any, code: str) -> None:
    rows, _, report = expanded(QKV, lambda q, k, v: [attention(q, k, v)], **options)
    assert [name for name, _ in rows] == [
        "relax.permute_dims", "relax.matmul", "relax.multiply", "relax.nn.softmax", "relax.matmul",
    ]  # fmt: skip
    (decision,) = report.decisions
    assert not decision.fired
    assert decision.reason.startswith(code)


def test_what_does_not_pay_is_composed() -> None:
    # One key for many wide rows: sums rescaled and keys packed again cost more than the scores.
    inputs = [("q", (1, 1, 4096, 256), "float32"), *[(n, (1, 1, 1, 256), "float32") for n in "kv"]]
    gains = []
    spec = get_target("cpu")
    assert spec.planner is not None

    class Planner:
        """Plans one-row tasks."""

        version = 1

        def attention(self, problem: Any, machine: Any) -> Any:
            plan = spec.planner.attention(problem, machine)  # type: ignore[union-attr]
            return dataclasses.replace(plan, row_block=plan.tile_rows, key_block=1)

    roofline = dataclasses.replace(spec.roofline, launch_us=0.0)
    target = fake_target(planner=Planner(), roofline=roofline)
    rows, _, report = expanded(inputs, lambda q, k, v: [attention(q, k, v)], target=target)
    gains.append(report.decisions[0])
    assert not gains[0].fired
    assert gains[0].reason.startswith("does not pay")
    assert "relax.nn.softmax" in [name for name, _ in rows]


def test_other_types_are_composed() -> None:
    inputs = [(name, SHAPE, "float64") for name in "qkv"]
    rows, _, report = expanded(inputs, lambda q, k, v: [attention(q, k, v)])
    assert "relax.nn.softmax" in [name for name, _ in rows]
    assert report.decisions[0].reason.startswith("dtype")


@pytest.mark.parametrize("causal", [False, True])
def test_results(causal: bool, tmp_path: Path) -> None:
    inputs = [("x", (1, POSITIONS, 96), "float32")]

    def body(x: Any) -> list[Any]:
        emit = relax.BlockBuilder.current().emit
        parts = [emit(relax.op.strided_slice(x, [2], [c], [c + 32])) for c in (0, 32, 64)]
        return [joined(attention(*map(split, parts), causal=causal))]

    x = weights(1, POSITIONS, 96)
    results = []
    for level in (0, 2):
        run = engine(tmp_path, imported(inputs, body), level=level)
        results.append(np.asarray(run.run(x)[0]))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_open_positions(heads: tuple[int, int], tmp_path: Path) -> None:
    inputs = [
        ("q", ("b", heads[0], "m", 24), "float32"),
        ("k", ("b", heads[1], "n", 24), "float32"),
        ("v", ("b", heads[1], "n", 24), "float32"),
    ]
    model = imported(inputs, lambda q, k, v: [attention(q, k, v, causal=True, offset=3)])
    run = engine(tmp_path, model)
    assert [kernel["rule"] for kernel in run.report["kernels"]] == ["fused-attention"]
    from uif_tvm.ops.attention import attention as reference

    for batch, m, n in [(1, 1, 1), (2, 9, 40), (1, 70, 70), (2, 3, 700)]:
        q = weights(batch, heads[0], m, 24)
        k, v = (weights(batch, heads[1], n, 24, seed=s) for s in (1, 2))
        expected = reference(q, k, v, None, 0.0, True, 3, 0.0, -1, -1)
        np.testing.assert_allclose(run.run(q, k, v)[0], expected, rtol=1e-4, atol=1e-5)
