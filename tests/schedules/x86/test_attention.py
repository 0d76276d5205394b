"""Fused attention: numbers against the operator's reference over remainders, masks and machines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tvm import te
from uif_tvm.schedules.x86.attention import FusedAttention
from uif_tvm.schedules.x86.attention_planner import plan_attention

from tests.schedules import harness
from tests.schedules.harness import MACHINES, MIDDLE, NARROW, WIDE, Array
from uif_tvm.kernels.fused_attention import FORM_ATTR, AttentionForm, View, fused_attention
from uif_tvm.ops.attention import attention
from uif_tvm.target.schedule import AttentionProblem
from uif_tvm.target.spec import Refusal

ROWS = View(rows=True)
SIGHT = {"causal": False, "offset": 0, "softcap": 0.0, "before": -1, "after": -1}
#: (heads, groups), (queries, keys), (depth, width): remainders of every block, one block and many.
EXTENTS = [
    ((1, 1), (1, 1), (1, 1)),
    ((2, 2), (16, 32), (64, 64)),
    ((4, 2), (13, 17), (20, 9)),
    ((3, 1), (7, 70), (130, 33)),
    ((2, 1), (70, 600), (64, 70)),
    ((8, 2), (1, 333), (128, 128)),
]


def operands(
    heads: tuple[int, int], positions: tuple[int, int], features: tuple[int, int], batch: int = 2
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (
        (batch, heads[0], positions[0], features[0]),
        (batch, heads[1], positions[1], features[0]),
        (batch, heads[1], positions[1], features[1]),
    )
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return q, k, v


def kernel(form: AttentionForm, *given: Array) -> Any:
    """The kernel before it is scheduled."""
    holders = [
        harness.placeholder(*array.shape, name=name, dtype=str(array.dtype))
        for array, name in zip(given, "qkvm", strict=False)
    ]
    out = fused_attention(*[*holders, None][:4], form)
    return te.create_prim_func([*holders, out]).with_attr(FORM_ATTR, form.dumps())


def as_rows(x: Array) -> Array:
    batch, heads, positions, features = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, positions, heads * features)


def compare(
    given: tuple[Array, ...], machine: Any = WIDE, rows: bool = False, tolerance: float = 1e-5,
    scale: float = 0.0, **sight: Any,
) -> None:  # fmt: skip
    """Run the scheduled kernel and the reference."""
    q, k, v, *mask = given
    scale = scale or 1 / math.sqrt(q.shape[3])
    seen = SIGHT | sight
    wide = [x if x.dtype == bool else x.astype(np.float64) for x in given]
    expected = attention(*[*wide, None][:4], scale, *seen.values())
    views = dict.fromkeys(("query", "key", "value", "result"), ROWS) if rows else {}
    form = AttentionForm(q.shape[1], k.shape[1], q.shape[3], v.shape[3], scale, **seen, **views)
    if rows:
        expected, given = as_rows(expected), (*map(as_rows, (q, k, v)), *mask)
    func = harness.scheduled(FusedAttention(), kernel(form, *given), machine)
    found = harness.run(func, given, expected.shape, str(q.dtype))
    np.testing.assert_allclose(
        found.astype(np.float64), expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{8 * m.vector_bytes}-bit")
def test_remainders_of_every_block(extents: Any, machine: Any) -> None:
    compare(operands(*extents), machine)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    "sight",
    [
        {"causal": True, "offset": 4},
        {"causal": True, "offset": -2},
        {"before": 3, "after": 2},
        {"causal": True, "before": 2, "softcap": 3.0},
    ],
    ids=str,
)
def test_positions_hide_keys(sight: Any, rows: bool) -> None:
    compare(operands((4, 2), (13, 17), (20, 9)), rows=rows, **sight)


def test_whole_blocks_of_keys_are_passed_over() -> None:
    compare(operands((2, 1), (150, 700), (64, 64), 1), causal=True, offset=300)


MASKS = [(2, 1, 13, 17), (1, 4, 1, 17), (13, 17), (17,), (13, 1), (2, 4, 1, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_masks_broadcast(shape: tuple[int, ...], kind: str) -> None:
    seen = np.random.default_rng(1).random(shape) > 0.4
    mask = seen if kind == "bool" else np.where(seen, 0.5, -np.inf).astype(np.float32)
    compare((*operands((4, 2), (13, 17), (20, 9)), mask), NARROW)


def test_rows_without_keys_are_zeros() -> None:
    given = operands((2, 2), (5, 40), (16, 16))
    compare((*given, np.zeros((5, 40), bool)))
    compare((*given, np.full((40,), -np.inf, np.float32)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_special_values(value: float, operand: int) -> None:
    given = operands((2, 1), (9, 40), (16, 20), 1)
    given[operand][0, 0, 3, 5] = value
    with np.errstate(all="ignore"):
        compare(given, MIDDLE)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("keys", [17, 600])
def test_float16_is_summed_in_float32(keys: int, rows: bool) -> None:
    given = operands((4, 2), (13, keys), (20, 24))
    compare(tuple(x.astype(np.float16) for x in given), rows=rows, tolerance=2e-3)  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [17, 600])
def test_bfloat16_is_summed_in_float32(keys: int) -> None:
    import ml_dtypes

    given = operands((4, 2), (13, keys), (20, 24))
    half = tuple(x.astype(ml_dtypes.bfloat16) for x in given)
    compare(half, tolerance=1e-2)  # type: ignore[arg-type]


def test_operands_may_be_columns_of_one_tensor() -> None:
    q, k, v = operands((4, 4), (13, 13), (16, 16))
    joined = np.concatenate([as_rows(x) for x in (q, k, v)], -1)
    form = AttentionForm(
        4, 4, 16, 16, 0.25,
        query=View(True, 0), key=View(True, 64), value=View(True, 128), result=ROWS,
    )  # fmt: skip
    func = harness.scheduled(FusedAttention(), kernel(form, joined, joined, joined))
    expected = as_rows(attention(q, k, v, None, 0.25, *SIGHT.values()))
    found = harness.run(func, [joined] * 3, expected.shape, "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_expression_means_the_operator() -> None:
    given = operands((4, 2), (5, 7), (6, 3))
    mask = np.random.default_rng(1).random((5, 7)) > 0.3
    mask[2] = False
    seen = SIGHT | {"causal": True, "offset": 2, "softcap": 2.0, "before": 4}
    form = AttentionForm(4, 2, 6, 3, 0.5, **seen)
    expected = attention(*given, mask, 0.5, *seen.values())
    found = harness.run(kernel(form, *given, mask), [*given, mask], expected.shape, "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_vectors_stay_vectors() -> None:
    form = AttentionForm(2, 2, 64, 64, 0.125)
    given = operands((2, 2), (32, 64), (64, 64))
    func = harness.scheduled(FusedAttention(), kernel(form, *given), WIDE)
    text = harness.assembly(func, "x86-64-v4")
    assert text.count("vfmadd") > 60
    assert "expf" not in text


def test_other_kernels_are_declined() -> None:
    x = harness.placeholder(4, 4)
    func = te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] + 1)])
    assert isinstance(FusedAttention().apply(func, harness.host_spec(WIDE)), Refusal)


def test_plans_fit_the_machine() -> None:
    for machine in MACHINES:
        for depth in (1, 16, 64, 80, 128, 256):
            plan = plan_attention(
                AttentionProblem(1, 8, 2, 300, 1000, depth, depth, "float32"), machine
            )
            assert not isinstance(plan, Refusal)
            lanes = machine.lanes("float32")
            for vectors in (plan.panel // lanes, plan.columns // lanes):
                assert plan.tile_rows * vectors + vectors + 1 <= machine.vector_registers
            assert plan.key_block % plan.panel == 0
            assert plan.row_block % plan.tile_rows == 0


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (AttentionProblem(1, 2, 2, 8, 8, 16, 16, "float64"), "dtype"),
        (AttentionProblem(1, 2, 2, 8, 8, 0, 16, "float32"), "empty"),
        (AttentionProblem(1, 2, 2, 8, 8, 1 << 15, 16, "float32"), "depth"),
    ],
)
def test_plans_that_do_not_exist(problem: AttentionProblem, code: str) -> None:
    plan = plan_attention(problem, WIDE)
    assert isinstance(plan, Refusal)
    assert plan.code == code
