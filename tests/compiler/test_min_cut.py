"""Choices of least cost: against trying all answers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uif_tvm.compiler.min_cut import NEVER, Choices

COSTS = st.integers(0, 20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(COSTS, COSTS), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), COSTS), max_size=10),
)
def test_no_other_answer_is_cheaper(own: Any, pairs: Any) -> None:
    pairs = [(a, b, c) for a, b, c in pairs if max(a, b) < len(own) and a != b]
    choices = Choices()
    nodes = [choices.node(yes=yes, no=no) for yes, no in own]
    for yes, no, cost in pairs:
        choices.apart(nodes[yes], nodes[no], cost)
    chosen = choices.solve()

    def cost(answer: Any) -> float:
        alone = sum(costs[0 if given else 1] for costs, given in zip(own, answer, strict=True))
        return alone + sum(c for a, b, c in pairs if answer[a] and not answer[b])

    found = cost([node in chosen for node in nodes])
    assert found == min(map(cost, itertools.product((False, True), repeat=len(own))))


def test_ties_are_yes() -> None:
    choices = Choices()
    node = choices.node(yes=1.0, no=1.0)
    assert choices.solve() == {node}


def test_never_is_dearer_than_everything_else() -> None:
    choices = Choices()
    first, second = choices.node(no=1e6), choices.node(yes=1e6)
    choices.apart(first, second, NEVER)
    assert choices.solve() in (set(), {first, second})
    choices.cost(second, no=1.0)
    assert choices.solve() == {first, second}


def test_a_negative_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0, got -1"):
        Choices().node(yes=-1.0)
