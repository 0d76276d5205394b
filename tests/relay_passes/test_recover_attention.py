"""Attention is found around any placement of its scale and mask, and in nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from uif_tvm.relay_passes import recover_softmax
from uif_tvm.relay_passes.recover_attention import PASS

from tests.models import constant, fake_target, weights
from tests.relay_passes.recovery import (
    Emitting,
    assert_same_values,
    declines,
    evaluate,
    fired,
    operators,
    prepared,
    recovered,
)
from uif_tvm.relax_util import calls, op_name
from uif_tvm.standard_ops import read
from uif_tvm.target.spec import Refusal

op = Emitting()
B, H, Q, K, D = 2, 3, 5, 6, 8
QKV = [
    ("q", (B, H, Q, D), "float32"),
    ("k", (B, H, K, D), "float32"),
    ("v", (B, H, K, 4), "float32"),
]
ARRAYS = (weights(B, H, Q, D) * 2, weights(B, H, K, D, seed=1) * 2, weights(B, H, K, 4, seed=2))
SCALE = 1 / math.sqrt(D)
LOW = float(np.finfo(np.float32).min)
PLACES = ("scores", "divided", "query", "keys", "both", "transposed-keys", "none")
GUARDS = ("none", "isnan")


def const(value, dtype="float32"):
    return constant(np.asarray(value, dtype))


def scores(q, k, place, scale=SCALE):
    root = const(math.sqrt(scale))
    if place in ("query", "both"):
        q = op.multiply(q, root if place == "both" else const(scale))
    if place == "keys":
        k = op.multiply(const(scale), k)
    turned = op.permute_dims(k, (0, 1, 3, 2))
    if place in ("both", "transposed-keys"):
        turned = op.multiply(turned, root if place == "both" else const(scale))
    y = op.matmul(q, turned)
    if place == "scores":
        return op.multiply(const(scale), y)
    return op.divide(y, const(1 / scale)) if place == "divided" else y


def weighted(y, v, guard="none"):
    p = op.nn.softmax(y, -1)
    if guard == "isnan":
        p = op.where(op.isnan(p), const(0.0), p)
    return op.matmul(p, v)


def attributes(mod):
    (call,) = [call for _, call in calls(mod) if op_name(call) == "uif.attention"]
    return read(call)[2]


def check(body, rows, arrays, **wanted):
    mod = prepared(rows, body)
    after, decisions = recovered(PASS, mod)
    assert fired(decisions) == ["attention"], decisions
    assert_same_values(mod, after, *arrays)
    found = attributes(after)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value), name
    return after, decisions


def unchanged(body, rows=QKV, **options):
    mod = prepared(rows, body)
    after, decisions = recovered(PASS, mod, **options)
    assert tvm_ffi.structural_equal(after, mod), after.script()
    assert not fired(decisions)
    return declines(decisions)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("place", PLACES)
def test_placement_of_the_scale(place, guard):
    after, _ = check(
        lambda q, k, v: weighted(scores(q, k, place), v, guard),
        QKV,
        ARRAYS,
        scale=1.0 if place == "none" else SCALE,
    )
    assert operators(after) == ["attention"]


@given(st.sampled_from(PLACES), st.floats(0.01, 3.0), st.booleans())
@settings(deadline=None, max_examples=15)
def test_any_scale(place, scale, first):
    bias = weights(Q, K, seed=4)

    def body(q, k, v):
        y = scores(q, k, place, scale)
        return weighted(op.add(const(bias), y) if first else op.add(y, const(bias)), v)

    check(body, QKV, ARRAYS)


def test_gain_is_the_traffic_of_the_scores():
    _, (decision,) = check(lambda q, k, v: weighted(scores(q, k, "scores"), v), QKV, ARRAYS)
    plane, operand = 4 * B * H * Q * K, 4 * B * H
    # k^T and q k^T; the scale; softmax; its product with v.
    turned = 2 * operand * K * D
    products = operand * Q * D + operand * K * D + plane + plane + operand * K * 4 + operand * Q * 4
    assert decision.bytes_saved < turned + products + 6 * plane
    assert decision.bytes_saved >= 4 * plane
    assert decision.launches_saved >= 2


def test_keys_transposed_twice_are_read_in_place():
    rows = [QKV[0], ("k", (B, K, H, D), "float32"), QKV[2]]
    arrays = (ARRAYS[0], weights(B, K, H, D), ARRAYS[2])

    def body(q, k, v):
        return weighted(op.matmul(q, op.permute_dims(k, (0, 2, 3, 1))), v)

    after, _ = check(body, rows, arrays)
    assert operators(after) == ["permute_dims", "attention"]


def test_three_dimensional_operands():
    rows = [(name, shape[1:], dtype) for name, shape, dtype in QKV]

    def body(q, k, v):
        y = op.matmul(q, op.permute_dims(k, (0, 2, 1)))
        return weighted(op.add(y, const(weights(H, Q, K))), v)

    after, _ = check(body, rows, [item[0] for item in ARRAYS])
    assert operators(after)[-2:] == ["attention", "squeeze"]


def test_softcap():
    def body(q, k, v):
        y = op.tanh(op.divide(scores(q, k, "scores"), const(5.0)))
        return weighted(op.add(op.multiply(y, const(5.0)), const(weights(Q, K))), v)

    check(body, QKV, ARRAYS, softcap=5.0, scale=SCALE)


@pytest.mark.parametrize("low", [-math.inf, LOW])
@pytest.mark.parametrize("added", [False, True])
def test_constant_causal_mask(low, added):
    seen = np.tri(Q, K, K - Q, dtype=bool)

    def body(q, k, v):
        y = scores(q, k, "scores")
        if added:
            return weighted(op.add(y, const(np.where(seen, 0, low)[None, None])), v)
        return weighted(op.where(constant(seen), y, const(low)), v)

    after, _ = check(body, QKV, ARRAYS, causal=True, offset=K - Q)
    assert operators(after) == ["attention"]


def padding():
    seen = np.ones((B, 1, 1, K), bool)
    seen[0, ..., 4:] = False
    seen[1] = False  # hides everything
    return seen


MASK = ("m", (B, 1, 1, K), "bool")


@pytest.mark.parametrize("place", ["scores", "both"])
def test_exported_guard_of_hidden_queries(place):
    def body(q, k, v, m):
        bias = op.where(m, const(0.0), const(-math.inf))
        return weighted(op.add(scores(q, k, place), bias), v, "isnan")

    check(body, [*QKV, MASK], (*ARRAYS, padding()))


def test_guard_behind_the_product():
    """As this framework composes attention itself; the test of the mask serves many layers."""

    def body(q, k, v, m):
        hidden = op.equal(op.max(op.astype(m, "int32"), -1, True), const(0, "int32"))
        y = weighted(op.where(m, scores(q, k, "scores"), const(-math.inf)), v)
        return [op.where(hidden, const(0.0), y), op.where(hidden, const(1.0), const(2.0))]

    after, _ = check(body, [*QKV, MASK], (*ARRAYS, padding()))
    assert "softmax" not in operators(after)


@pytest.mark.parametrize("inverted", [False, True])
def test_finite_padding_needs_no_guard(inverted):
    """A query that sees no key has equal weights in both forms."""

    def body(q, k, v, m):
        order = (const(LOW), const(0.0)) if inverted else (const(0.0), const(LOW))
        return weighted(op.add(scores(q, k, "scores"), op.where(m, *order)), v)

    check(body, [*QKV, MASK], (*ARRAYS, padding()))


def test_filled_scores():
    def body(q, k, v, m):
        return weighted(op.where(m, const(LOW), scores(q, k, "scores")), v)

    check(body, [*QKV, MASK], (*ARRAYS, padding()))


def test_padding_as_numbers():
    def body(q, k, v, m):
        bias = op.multiply(op.subtract(const(1.0), op.astype(m, "float32")), const(-10000.0))
        return weighted(op.add(scores(q, k, "scores"), bias), v)

    seen = padding().astype(np.int64)
    seen[1, ..., 0] = 1  # scores that lost their last digits to the 10000 have no equal
    check(body, [*QKV, ("m", (B, 1, 1, K), "int64")], (*ARRAYS, seen))


def test_softmax_spelled_out():
    def body(q, k, v):
        y = scores(q, k, "scores")
        powers = op.exp(op.subtract(y, op.max(y, -1, True)))
        return op.matmul(op.divide(powers, op.sum(powers, -1, True)), v)

    mod = prepared(QKV, body)
    after, _ = recovered(PASS, recovered(recover_softmax.PASS, mod)[0])
    assert operators(after) == ["attention"]
    assert_same_values(mod, after, *ARRAYS)


@pytest.mark.parametrize("whole", [False, True])
def test_casts_to_a_wider_type(whole):
    """Softmax alone in float32, or all of it."""
    rows = [(name, shape, "float16") for name, shape, _ in QKV]

    def body(q, k, v):
        if whole:
            q, k, v = (op.astype(item, "float32") for item in (q, k, v))
            y = weighted(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))), v)
            return op.astype(y, "float16")
        y = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
        p = op.astype(op.nn.softmax(op.astype(y, "float32"), -1), "float16")
        return op.matmul(p, v)

    after, _ = check(body, rows, [item.astype(np.float16) * 0.5 for item in ARRAYS])
    assert operators(after) == ["attention"]


def test_open_extents():
    rows = [("q", ("b", H, "s", D), "float32"), ("k", ("b", H, "t", D), "float32"),
            ("v", ("b", H, "t", D), "float32")]  # fmt: skip
    mod = prepared(rows, lambda q, k, v: weighted(scores(q, k, "both"), v))
    after, _ = recovered(PASS, mod)
    assert operators(after) == ["attention"]


# -- declines ------------------------------------------------------------------------------------

MAY = "the mask may hide every key of a query: the graph gives NaN there, attention 0"


def test_unknown_mask_without_guard():
    rows = [*QKV, ("m", (B, 1, Q, K), "float32")]
    body = lambda q, k, v, m: weighted(op.add(scores(q, k, "scores"), m), v)  # noqa: E731
    assert unchanged(body, rows) == [MAY]
    hiding = lambda q, k, v, m: weighted(  # noqa: E731
        op.where(m, scores(q, k, "scores"), const(-math.inf)), v
    )
    assert unchanged(hiding, [*QKV, MASK]) == [MAY]


def test_constant_mask_that_hides_a_query():
    seen = np.tri(Q, K, -1, dtype=bool)
    body = lambda q, k, v: weighted(  # noqa: E731
        op.where(constant(seen), scores(q, k, "scores"), const(-math.inf)), v
    )
    (reason,) = unchanged(body)
    assert reason.startswith("the mask hides every key of a query")


def test_fill_that_does_not_absorb_scores():
    body = lambda q, k, v, m: weighted(  # noqa: E731
        op.where(m, scores(q, k, "scores"), const(-10000.0)), v
    )
    assert unchanged(body, [*QKV, MASK]) == [
        "hidden scores become -10000, which is not far below any score"
    ]


def test_scale_behind_the_mask():
    body = lambda q, k, v: weighted(  # noqa: E731
        op.multiply(op.add(scores(q, k, "none"), const(weights(Q, K))), const(0.5)), v
    )
    assert unchanged(body) == ["scores are scaled after the mask"]


def test_weights_used_elsewhere():
    def body(q, k, v):
        p = op.nn.softmax(scores(q, k, "scores"), -1)
        return [op.matmul(p, v), op.exp(p)]

    (reason,) = unchanged(body)
    assert reason.startswith("attention: intermediate value is used elsewhere: lv")


def test_target_without_the_operator():
    def refuses(name, attrs, dtypes):
        return Refusal("no-unit", name) if name == "attention" else None

    body = lambda q, k, v: weighted(scores(q, k, "scores"), v)  # noqa: E731
    reasons = unchanged(body, target=fake_target(capability=refuses))
    assert reasons == ["attention: the target refuses it: no-unit: attention"]


def test_computed_scale_and_other_axes_stay():
    rows = [*QKV, ("s", (), "float32")]
    assert (
        unchanged(lambda q, k, v, s: weighted(op.multiply(scores(q, k, "none"), s), v), rows) == []
    )
    square = [("q", (B, H, K, D), "float32"), *QKV[1:]]
    assert (
        unchanged(lambda q, k, v: op.matmul(op.nn.softmax(scores(q, k, "none"), 2), v), square)
        == []
    )


def test_reference_evaluator_is_not_what_is_tested():
    """The evaluator itself gives NaN for queries that see no key, so equality means something."""

    def body(q, k, v, m):
        return weighted(op.where(m, scores(q, k, "scores"), const(-math.inf)), v)

    (y,) = evaluate(prepared([*QKV, MASK], body), *ARRAYS, padding())
    assert np.isnan(y[1]).all()
    assert not np.isnan(y[0]).any()
