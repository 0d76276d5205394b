"""Rotary positions are found in every spelling, and in nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from uif_tvm.relay_passes.recover_rope import PASS

from tests.models import compiled, constant, engine, fake_target, imported, weights
from tests.relay_passes.recovery import (
    Emitting,
    assert_same_values,
    declines,
    fired,
    operators,
    prepared,
    recovered,
)
from uif_tvm.standard_ops import call as standard_call
from uif_tvm.target.spec import Refusal

op = Emitting()
HALF = 4
X = [("x", (2, 3, 5, 2 * HALF), "float32")]
ANGLES = np.random.default_rng(7).uniform(0, 6, (1, 1, 5, HALF))


def twice(array, interleaved):
    return np.repeat(array, 2, -1) if interleaved else np.concatenate([array, array], -1)


def tables(interleaved=False, dtype="float32", angles=ANGLES):
    both = twice(angles, interleaved)
    return constant(np.cos(both).astype(dtype)), constant(np.sin(both).astype(dtype))


def negated(x, how="negative"):
    minus = constant(np.asarray(-1, str(x.ty.dtype)))
    return op.negative(x) if how == "negative" else op.multiply(minus, x)


def parts(x, interleaved, how="slice"):
    """First and second features of the pairs."""
    width = int(x.ty.shape[-1])
    if interleaved:
        return op.strided_slice(x, [3], [0], [width], [2]), op.strided_slice(
            x, [3], [1], [width], [2]
        )
    if how == "split":
        both = op.split(x, 2, axis=-1)
        return both[0], both[1]
    return op.strided_slice(x, [3], [0], [width // 2]), op.strided_slice(
        x, [3], [width // 2], [width]
    )


def together(one, two, interleaved):
    if not interleaved:
        return op.concat([one, two], axis=-1)
    *lead, width = one.ty.shape
    stacked = op.concat([op.expand_dims(one, -1), op.expand_dims(two, -1)], axis=-1)
    return op.reshape(stacked, [*lead, 2 * width])


def turned(x, interleaved=False, cut="slice", minus="negative"):
    one, two = parts(x, interleaved, cut)
    return together(negated(two, minus), one, interleaved)


def rotated(x, cos, sin, interleaved=False, cut="slice", minus="negative", swapped=False):
    """``x C + turned(x) S``."""
    turn = turned(x, interleaved, cut, minus)
    if swapped:
        return op.add(op.multiply(sin, turn), op.multiply(cos, x))
    return op.add(op.multiply(x, cos), op.multiply(turn, sin))


def direct(x, cos, sin, interleaved=False):
    """``x1 c - x2 s`` and ``x2 c + x1 s``."""
    one, two = parts(x, interleaved)
    first = op.subtract(op.multiply(one, cos), op.multiply(two, sin))
    second = op.add(op.multiply(two, cos), op.multiply(one, sin))
    return together(first, second, interleaved)


def check(body, inputs=X, names=("rope",), **options):
    """The rewrite fires, says what it gains and keeps the values; the operators after it."""
    mod = prepared(inputs, body)
    after, decisions = recovered(PASS, mod, **options)
    decisions = [decision for decision in decisions if decision.pass_name == PASS.name]
    assert fired(decisions) == list(names), declines(decisions)
    feeds = [weights(*shape, seed=at).astype(dtype) for at, (_, shape, dtype) in enumerate(inputs)]
    assert_same_values(mod, after, *feeds)
    return operators(after)


def refused(body, inputs=X, **options):
    """Nothing is rewritten; the reason."""
    mod = prepared(inputs, body)
    after, decisions = recovered(PASS, mod, **options)
    assert tvm_ffi.structural_equal(after, mod)
    assert not fired(decisions)
    return declines(decisions)


SMALL = [("x", (1, 2, 3, 4), "float32"), ("f", (1, 3, 2), "float32")]


def before(x, f):
    both = op.concat([f, f], axis=-1)
    cos, sin = op.expand_dims(op.cos(both), axis=1), op.expand_dims(op.sin(both), axis=1)
    first, second = op.strided_slice(x, [3], [0], [2]), op.strided_slice(x, [3], [2], [4])
    turn = op.concat([op.negative(second), first], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(turn, sin))


def expected(x, f):
    builder = relax.BlockBuilder.current()
    return builder.normalize(standard_call("rope", x, op.cos(f), op.sin(f), interleaved=False))


def test_ir_before_and_after():
    mod = prepared(SMALL, before)
    after, decisions = recovered(PASS, mod)
    assert tvm_ffi.structural_equal(after, prepared(SMALL, expected), map_free_vars=True)
    (decision,) = decisions
    assert decision.fired
    assert decision.reason == "rope recovered from 7 operators"
    assert_same_values(mod, after, weights(1, 2, 3, 4), weights(1, 3, 2, seed=1))


def test_gain_is_the_width_of_the_tables():
    """One kernel before and after; each of two tables of 3 positions is 2 floats narrower."""
    _, (decision,) = recovered(PASS, prepared(SMALL, before))
    assert (decision.launches_saved, decision.bytes_saved) == (0, 2 * 3 * 2 * 4)
    assert decision.gain_us > 0


@settings(max_examples=25, deadline=None)
@given(
    st.booleans(),
    st.sampled_from(["slice", "split"]),
    st.sampled_from(["negative", "times-minus-one"]),
    st.booleans(),
    st.sampled_from(["float32", "float16"]),
)
def test_every_spelling(interleaved, cut, minus, swapped, dtype):
    def body(x):
        cos, sin = tables(interleaved, dtype)
        return rotated(x, cos, sin, interleaved, cut, minus, swapped)

    assert check(body, [("x", (2, 3, 5, 2 * HALF), dtype)]) == ["rope"]


@pytest.mark.parametrize("interleaved", [False, True])
def test_halves_computed_apart(interleaved):
    cos, sin = (constant(f(ANGLES).astype("float32")) for f in (np.cos, np.sin))
    assert check(lambda x: direct(x, cos, sin, interleaved)) == ["rope"]


def test_subtraction_of_the_turned_features():
    def body(x):
        one, two = parts(x, False)
        cos, sin = tables()
        other = op.concat([two, negated(one)], axis=-1)
        return op.subtract(op.multiply(x, cos), op.multiply(other, sin))

    assert check(body) == ["rope"]


def partial(x, interleaved=False, rest_from=2 * HALF):
    width = int(x.ty.shape[-1])
    first = op.strided_slice(x, [3], [0], [2 * HALF])
    rest = op.strided_slice(x, [3], [rest_from], [rest_from + width - 2 * HALF])
    return op.concat([rotated(first, *tables(interleaved), interleaved), rest], axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_other_features_pass(interleaved):
    wide = [("x", (2, 3, 5, 2 * HALF + 3), "float32")]
    assert check(lambda x: partial(x, interleaved), wide) == ["rope"]


def test_other_features_that_are_not_the_rest_stay_outside():
    wide = [("x", (2, 3, 5, 2 * HALF + 3), "float32")]
    left = check(lambda x: partial(x, rest_from=2 * HALF - 1), wide)
    assert left == ["strided_slice", "strided_slice", "rope", "concat"]


def angles_of(f, interleaved, how):
    if not interleaved:
        return op.concat([f, f], axis=-1)
    batch, positions, width = f.ty.shape
    if how == "stack":
        return together(f, f, True)
    spread = op.broadcast_to(op.expand_dims(f, -1), [batch, positions, width, 2])
    return op.reshape(spread, [batch, positions, 2 * width])


def heads_sharing(interleaved, how):
    """Queries and keys turned by tables that are computed from the angles ``f``."""

    def body(q, k, f):
        both = angles_of(f, interleaved, how)
        scale = constant(np.float32(0.5))
        cos, sin = (op.expand_dims(op.multiply(g(both), scale), 1) for g in (op.cos, op.sin))
        return [rotated(x, cos, sin, interleaved) for x in (q, k)]

    return body


def queries_keys_angles(batch, positions):
    return [
        ("q", (batch, 3, positions, 2 * HALF), "float32"),
        ("k", (batch, 1, positions, 2 * HALF), "float32"),
        ("f", (batch, positions, HALF), "float32"),
    ]


PROOFS = [(False, "concat"), (True, "stack"), (True, "broadcast")]


@pytest.mark.parametrize(("interleaved", "how"), PROOFS)
def test_tables_of_angles_are_halved_by_proof_and_once(interleaved, how):
    body = heads_sharing(interleaved, how)
    left = check(body, queries_keys_angles(2, 5), names=("rope", "rope"))
    assert left == ["cos", "multiply", "sin", "multiply", "rope", "rope"]


@pytest.mark.parametrize(("interleaved", "how"), PROOFS)
def test_extents_settled_at_run_time(interleaved, how, tmp_path):
    body, inputs = heads_sharing(interleaved, how), queries_keys_angles("b", "s")
    _, decisions = recovered(PASS, prepared(inputs, body))
    assert [d.fired for d in decisions if d.pass_name == PASS.name] == [True, True]
    model = imported(inputs, body)
    shapes = (2, 3, 5, 2 * HALF), (2, 1, 5, 2 * HALF), (2, 5, HALF)
    feeds = [weights(*shape, seed=at) for at, shape in enumerate(shapes)]
    assert_levels_agree(tmp_path, model, *feeds)


def assert_levels_agree(folder, model, *feeds):
    results = []
    for level in (0, 2):
        (own := folder / str(level)).mkdir()
        results.append(engine(own, model, level=level).run(*feeds))
    for have, want in zip(*results[::-1], strict=True):
        np.testing.assert_allclose(have, want, 1e-5, 1e-6)


def test_tables_that_are_not_known_to_repeat_stay():
    inputs = [*X, ("c", (1, 5, 2 * HALF), "float32")]

    def body(x, c):
        return rotated(x, op.expand_dims(c, 1), tables()[1])

    assert refused(body, inputs) == ["cos is not known to have equal halves: c is an input"]


def test_tables_with_different_halves():
    inputs = [*X, ("f", (5, HALF), "float32"), ("g", (5, HALF), "float32")]

    def body(x, f, g):
        return rotated(x, tables()[0], op.sin(op.concat([f, g], axis=-1)))

    assert refused(body, inputs) == ["sin has two different halves, f and g"]
    uneven = twice(ANGLES, False).astype("float32")
    uneven[0, 0, 3, 1] += 0.25
    (reason,) = refused(lambda x: rotated(x, constant(uneven), tables()[1]))
    assert reason == "cos has halves that differ by up to 0.25"


def test_tables_of_the_other_form():
    """Tables that repeat as neighbours do not turn halves."""
    (reason,) = refused(lambda x: rotated(x, *tables(interleaved=True)))
    assert reason.startswith("cos has halves that differ by up to")


def test_the_other_direction():
    def body(x):
        one, two = parts(x, False)
        cos, sin = tables()
        return op.add(op.multiply(x, cos), op.multiply(op.concat([two, negated(one)], -1), sin))

    assert refused(body) == [
        "signs + + - of x, and of the features that change places, where rope has + - +"
    ]


def test_pairs_that_are_neighbours_before_and_halves_after():
    cos, sin = (constant(f(ANGLES).astype("float32")) for f in (np.cos, np.sin))

    def body(x):
        one, two = parts(x, True)
        first = op.subtract(op.multiply(one, cos), op.multiply(two, sin))
        second = op.add(op.multiply(two, cos), op.multiply(one, sin))
        return op.concat([first, second], axis=-1)

    assert refused(body) == ["pairs are neighbours in x and halves in the result"]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((1, 5, 1, HALF), "cos runs over axis 1 of x: positions stand before heads"),
        ((1, 3, 5, HALF), "cos differs per head: 3 of them"),
        ((1, 1, 1, HALF), "cos has 1 positions, x has 5"),
    ],
)
def test_tables_elsewhere(shape, reason):
    inputs = [("x", (2, 5 if shape[1] == 5 else 3, 5, 2 * HALF), "float32")]
    angles = np.random.default_rng(1).random(shape)
    assert refused(lambda x: rotated(x, *tables(angles=angles)), inputs) == [reason]


def test_axes_of_x():
    inputs = [("x", (3, 5, 2 * HALF), "float32")]

    def body(x):
        one = op.strided_slice(x, [2], [0], [HALF])
        two = op.strided_slice(x, [2], [HALF], [2 * HALF])
        cos, sin = (constant(twice(ANGLES[0], False).astype("float32")) for _ in range(2))
        turn = op.concat([op.negative(two), one], axis=-1)
        return op.add(op.multiply(x, cos), op.multiply(turn, sin))

    assert refused(body, inputs) == [
        "x has 3 axes, where rope has batch, heads, positions, features"
    ]


def test_halves_of_different_tensors_are_nothing():
    inputs = [*X, ("z", (2, 3, 5, 2 * HALF), "float32")]

    def body(x, z):
        cos, sin = tables()
        return op.add(op.multiply(x, cos), op.multiply(turned(z), sin))

    assert refused(body, inputs) == []


def test_an_intermediate_value_read_elsewhere():
    def body(x):
        turn = turned(x)
        cos, sin = tables()
        return [op.add(op.multiply(x, cos), op.multiply(turn, sin)), turn]

    (reason,) = refused(body)
    assert reason.startswith("rope: intermediate value is used elsewhere:")


def test_the_target_decides():
    target = fake_target()
    allowed = target.capability

    def capability(name, attrs, dtypes):
        return Refusal("op", "no turning here") if name == "rope" else allowed(name, attrs, dtypes)

    (reason,) = refused(lambda x: rotated(x, *tables()), target=fake_target(capability=capability))
    assert reason.startswith("rope: the target refuses it:")
    assert "no turning here" in reason


def test_one_kernel_as_before(tmp_path):
    """Views around it are fused, the result is the same at level 0."""
    inputs = [("x", (2, 5, 3 * 2 * HALF), "float32")]

    def body(x):
        heads = op.permute_dims(op.reshape(x, [2, 5, 3, 2 * HALF]), [0, 2, 1, 3])
        return [rotated(heads, *tables())]

    made = compiled(imported(inputs, body))
    assert len(made.report["memory_plan"]["steps"]) == 1
    assert_levels_agree(tmp_path, imported(inputs, body), weights(2, 5, 3 * 2 * HALF))
