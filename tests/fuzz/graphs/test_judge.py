"""Allowances come from conditioning: honest rounding passes, wrong results do not."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from tests.fuzz.graphs.evaluate import Array, Evaluator, Noise, Refused, roundings, terms
from tests.fuzz.graphs.generate import Graph, generate
from tests.fuzz.graphs.judge import differs, expected
from tests.fuzz.graphs.maker import Maker, model


def graph(maker: Maker) -> Graph:
    """The whole graph of a maker, its last value the output."""
    inputs = [(value, list(value.shape)) for value in maker.inputs]
    outputs = maker.values[-1:]
    proto = model(inputs, maker.nodes, maker.weights, outputs)
    feed = {value.name: value.array for value in maker.inputs}
    return Graph(proto, [feed], maker, outputs, False, False)


def verdict(maker: Maker, have: Array) -> str:
    made = graph(maker)
    (wanted,) = expected(made, made.feeds[0])
    return differs(have, wanted.array, wanted.change, 2)


def started(array: Array) -> Maker:
    maker = Maker(random.Random(0))
    maker.input(array, "float32")
    return maker


def test_a_copy_must_be_exact() -> None:
    maker = started(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    maker.node("Transpose", [maker.values[0]])
    want = maker.values[0].array.T
    assert not verdict(maker, want)
    assert verdict(maker, np.nextafter(want, np.float32(2)))


def test_sums_in_another_order_pass_and_a_lost_term_does_not() -> None:
    x = np.random.default_rng(0).standard_normal((4, 900)).astype(np.float32)
    maker = started(x)
    maker.node("ReduceSum", [maker.values[0], maker.ints(1)], keepdims=0)
    backwards = np.cumsum(x[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    assert not verdict(maker, backwards)
    assert verdict(maker, backwards - x[:, 17])


def test_a_norm_without_its_epsilon_is_noticed() -> None:
    x = np.random.default_rng(1).standard_normal((6, 32)).astype(np.float32)
    maker = started(x)
    scale = maker.weight(np.ones(32), "float32")
    maker.node("LayerNormalization", [maker.values[0], scale], axis=-1, epsilon=1e-3)
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    assert not verdict(maker, centred / np.sqrt(variance + np.float32(1e-3)))
    assert verdict(maker, centred / np.sqrt(variance))


def test_cancelled_differences_may_differ_more_than_their_size() -> None:
    x = np.array([[1.0, 1.0 + 1e-6]], np.float32)
    maker = started(x)
    value = maker.node("Exp", [maker.values[0]])
    left, right = maker.node("Split", [value, maker.ints(1, 1)], outputs=2, axis=1)
    result = maker.node("Sub", [left, right])
    assert not verdict(maker, result.array * np.float32(0.8))
    assert verdict(maker, result.array + np.float32(1e-4))


@pytest.mark.parametrize(
    ("have", "want"),
    [([np.nan], [1.0]), ([1.0], [np.nan]), ([np.inf], [-np.inf]), ([np.inf], [3e38])],
)
def test_what_is_not_finite_must_be_the_same(have: list[float], want: list[float]) -> None:
    left, right = np.array(have, np.float32), np.array(want, np.float32)
    assert differs(left, right, np.ones(1), 2)
    assert not differs(right, right, np.ones(1), 2)


def test_shapes_types_and_integers_must_be_the_same() -> None:
    one = np.ones(3, np.int32)
    nothing = np.zeros(3)
    assert not differs(one, one, nothing, 2)
    assert differs(one, one[:2], nothing, 2)
    assert differs(one, one.astype(np.int64), nothing, 2)
    assert "1 of 3" in differs(np.array([1, 1, 2], np.int32), one, nothing, 2)


def test_noise_leaves_integers_and_infinities_alone() -> None:
    noise = Noise(0)
    numbers = np.array([-np.inf, np.inf, *np.arange(1, 9)], np.float32)
    moved = noise(numbers, "float32", 3)
    assert list(moved[:2]) == [-np.inf, np.inf]
    assert 0 < np.abs(moved[2:] / numbers[2:] - 1).max() < 2e-6
    assert list(noise(np.arange(3), "int64", 3)) == [0, 1, 2]
    assert list(Noise(None)(numbers, "float32", 3)) == list(numbers)


def test_operators_without_rounding_get_no_noise() -> None:
    assert not roundings("Transpose")
    assert roundings("MatMul") > roundings("Add") > 0


def test_terms_of_a_convolution_and_of_a_matmul() -> None:
    maker = started(np.ones((1, 8, 5, 5), np.float32))
    maker.node("Conv", [maker.values[0], maker.random((4, 8, 3, 3), "float32")])
    image, weight = np.ones((1, 8, 5, 5)), np.ones((4, 8, 3, 3))
    assert terms(maker.nodes[-1], [image, weight]) == 72


def test_graphs_are_known_by_their_seed_and_cover_the_operators() -> None:
    def made(seed: int) -> bytes:
        text: bytes = generate(random.Random(seed)).proto.SerializeToString()
        return text

    assert made(5) == made(5)
    kinds: Counter[str] = Counter()
    opened = special = 0
    for seed in range(150):
        found = generate(random.Random(seed))
        kinds.update(node.op_type for node in found.proto.graph.node)
        opened += found.open_axes
        special += found.special
    assert len(kinds) > 75
    assert opened > 5
    assert special > 3
    for name, least in {"Conv": 50, "MatMul": 50, "Softmax": 10, "If": 1, "Transpose": 50}.items():
        assert kinds[name] >= least


def test_a_refused_step_leaves_nothing_behind() -> None:
    maker = started(np.ones((2, 3), np.float32))
    with maker.attempt():
        maker.node("Relu", [maker.values[0]])
        maker.node("Reshape", [maker.values[0], maker.ints(5)])
    assert not maker.nodes
    assert len(maker.values) == 1
    assert not maker.weights
    with pytest.raises(Refused):
        maker.node("Reshape", [maker.values[0], maker.ints(5)])


def test_an_evaluator_rounds_narrow_floats_after_each_node() -> None:
    maker = Maker(random.Random(0))
    value = maker.input(np.array([1.0, 2.0**-9]), "bfloat16")
    total = maker.node("ReduceSum", [value], keepdims=0)
    assert total.dtype == "bfloat16"
    assert float(total.array) == 1.0
    assert isinstance(maker.evaluator, Evaluator)
