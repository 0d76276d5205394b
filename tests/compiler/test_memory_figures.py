"""Planned memory: what is alive at once, each tensor once; nothing said of unknown sizes."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.compiler.test_lower import LEVELS, Branches
from tests.models import compiled, constant, imported, linear, weights
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.signature import Signature, TensorSpec

ONE = 64 * 64 * 4


def chain(x, length=6):
    for _ in range(length):
        x = relax.op.nn.softmax(x)
    return x


def activations(body, level, shape=(64, 64)):
    """Of ``body`` with every operator a kernel of its own."""
    model = imported([("x", shape, "float32")], body)
    return compiled(model, level=level, disabled_fusion=("*",)).memory.get("activations")


def test_weights_and_activations():
    payload = compiled(linear(), level=0)
    assert payload.memory == {"weights": 64 * 32 * 4, "activations": 2 * 4 * 32 * 4}
    assert compiled(linear(), level=2).memory["activations"] == 4 * 32 * 4


@pytest.mark.parametrize("level", [0, 1])
def test_a_chain_needs_two_at_a_time(level):
    assert activations(lambda x: [chain(x)], level) == 2 * ONE


@pytest.mark.parametrize("level", LEVELS)
def test_a_longer_chain_needs_no_more(level):
    short, long = (activations(lambda x, n=n: [chain(x, n)], level) for n in (5, 9))
    assert 2 * ONE <= long == short <= 3 * ONE


@pytest.mark.parametrize("level", LEVELS)
def test_tensors_used_late_stay_alive(level):
    def body(x):
        early = relax.op.nn.softmax(x)
        return [relax.op.add(chain(early), early)]

    assert activations(body, level) >= 3 * ONE


def test_reshaped_tensors_keep_their_storage():
    def body(x):
        flat = relax.op.reshape(relax.op.nn.softmax(x), (64 * 64,))
        other = chain(x, 2)
        return [relax.op.add(relax.op.reshape(flat, (64, 64)), other)]

    # Level 0 orders and allocates as written: flat's storage, two of the chain's.
    assert activations(body, 0) >= 3 * ONE


@pytest.mark.parametrize("level", LEVELS)
def test_results_count_once_and_copies_of_the_engine_too(level):
    assert activations(lambda x: [relax.op.exp(x)], level) == ONE
    assert activations(lambda x: [x], level) == ONE
    assert activations(lambda _x: [constant(weights(8, 8))], level) == 8 * 8 * 4

    def twice(x):
        total = relax.op.exp(x)
        return [total, total]

    assert activations(twice, level) == 2 * ONE


@pytest.mark.parametrize("level", LEVELS)
def test_only_one_branch_counts(level):
    signature = Signature(
        (TensorSpec("x", (4,), "float32"), TensorSpec("flag", (), "bool")),
        (TensorSpec("y", (4,), "float32"),),
    )
    memory = compiled(ImportedModel(Branches, signature, "test"), level=level).memory
    # In an arena each of the three starts a cache line; the engine copies the result out.
    limit = 2 * 4 * 4 if level < 2 else 3 * 64 + 4 * 4
    assert 4 * 4 <= memory["activations"] <= limit


@pytest.mark.parametrize("level", LEVELS)
def test_unknown_sizes_are_not_guessed(level):
    assert activations(lambda x: [chain(x)], level, ("n", 64)) is None
    assert activations(lambda x: [x], level, ("n", 64)) is None
