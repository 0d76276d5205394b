"""Placement heuristics: every rule with every order gives a valid placement."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.compiler.memory.problems import buffers
from uif_tvm.compiler.memory.heuristics import (
    RULES,
    all_placements,
    best_fit,
    bottom_left,
    first_fit,
    orders,
)
from uif_tvm.compiler.memory.problem import Buffer
from uif_tvm.compiler.memory.scaled import scale


@given(buffers(most=20))
@settings(deadline=None, max_examples=60)
def test_all_are_disjoint_and_aligned(items):
    problem = scale(items)
    for method, _, offsets in all_placements(problem):
        for one in range(len(problem)):
            assert offsets[one] % problem.alignment[one] == 0, method
            for other in problem.meets[one]:
                apart = (
                    offsets[one] + problem.size[one] <= offsets[other]
                    or offsets[other] + problem.size[other] <= offsets[one]
                )
                assert apart, method


@given(buffers(most=20))
@settings(deadline=None, max_examples=40)
def test_orders_are_permutations(items):
    problem = scale(items)
    for name, order in orders(problem).items():
        assert sorted(order) == list(range(len(problem))), name


#: d fits into both gaps that the others leave for it: [2, 5) above a, and [8, 10) above b.
GAPS = [
    Buffer("a", 0, 9, 2 * 64),
    Buffer("hole", 0, 1, 3 * 64),
    Buffer("b", 0, 9, 3 * 64),
    Buffer("gap", 0, 1, 2 * 64),
    Buffer("c", 0, 9, 64),
    Buffer("d", 5, 6, 2 * 64),
]


@pytest.mark.parametrize(("rule", "at"), [(first_fit, 2), (best_fit, 8), (bottom_left, 2)])
def test_what_the_rules_differ_in(rule, at):
    problem = scale(GAPS)
    assert problem.unit == 64
    order = [problem.names.index(item.name) for item in GAPS]
    placed = dict(zip(problem.names, rule(problem, order), strict=True))
    assert placed == {"a": 0, "hole": 2, "b": 5, "gap": 8, "c": 10, "d": at}


def test_every_rule_is_tried_with_every_order():
    problem = scale(GAPS)
    names = [method for method, _, _ in all_placements(problem)]
    assert len(names) == len(set(names)) == len(RULES) * len(orders(problem))
