"""The exact search: what it finds is right, and what it calls impossible is."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings

from tests.compiler.memory.problems import buffers, instance
from uif_tvm.compiler.memory import cpsat
from uif_tvm.compiler.memory.heuristics import climb, first_fit, orders
from uif_tvm.compiler.memory.problem import Buffer
from uif_tvm.compiler.memory.scaled import Scaled, scale
from uif_tvm.compiler.memory.search import ORDERS, Outcome, fit

SOON = 1e18


def disjoint(problem: Scaled, offsets) -> bool:
    return all(
        offsets[one] % problem.alignment[one] == 0
        and (
            offsets[one] + problem.size[one] <= offsets[other]
            or offsets[other] + problem.size[other] <= offsets[one]
        )
        for one in range(len(problem))
        for other in problem.meets[one]
    )


def smallest(problem: Scaled) -> int:
    """By trying every order: each solution is a first fit in the order of its offsets."""
    return min(
        problem.height(first_fit(problem, list(order)))
        for order in itertools.permutations(range(len(problem)))
    )


@given(buffers(most=6, steps=6))
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("order", ORDERS)
def test_it_finds_the_smallest_capacity_exactly(order, items):
    problem = scale(items)
    least = smallest(problem)
    found = fit(problem, least, nodes=10**6, deadline=SOON, orders=(order,))
    assert found.outcome is Outcome.FITS
    assert disjoint(problem, found.offsets)
    assert problem.height(found.offsets) <= least
    if least > 0:
        less = fit(problem, least - 1, nodes=10**6, deadline=SOON, orders=(order,))
        assert less.outcome is Outcome.IMPOSSIBLE


@given(buffers(most=14, alignments=(64,), steps=8))
@settings(deadline=None, max_examples=25)
def test_it_agrees_with_cp_sat(items):
    problem = scale(items)
    hint = first_fit(problem, orders(problem)["size"])
    solved = cpsat.minimise(problem, hint, problem.bound, time.monotonic() + 30)
    least = problem.height(hint if solved.offsets is None else solved.offsets)
    assert solved.bound == least  # proved
    if solved.offsets is not None:
        assert disjoint(problem, solved.offsets)
    assert fit(problem, least, nodes=10**6, deadline=SOON).outcome is Outcome.FITS
    if least:
        less = fit(problem, least - 1, nodes=10**6, deadline=SOON)
        assert less.outcome is Outcome.IMPOSSIBLE


def test_capacity_below_the_bound_is_impossible_at_once():
    problem = scale([Buffer("a", 0, 2, 64), Buffer("b", 1, 3, 64)])
    assert fit(problem, 1, nodes=1, deadline=SOON).outcome is Outcome.IMPOSSIBLE


def test_limits_stop_it():
    problem = scale(instance("A"))
    few = fit(problem, problem.bound, nodes=500, deadline=SOON)
    assert (few.outcome, few.offsets) == (Outcome.STOPPED, ())
    assert few.nodes <= 500 + len(ORDERS)
    late = fit(problem, problem.bound, nodes=10**9, deadline=time.monotonic())
    assert late.outcome is Outcome.STOPPED


def test_it_repeats_itself():
    problem = scale(instance("G"))
    first, second = (fit(problem, problem.bound, nodes=10**6, deadline=SOON) for _ in range(2))
    assert first == second


def test_units_and_sections():
    items = [Buffer("a", 0, 40, 300), Buffer("b", 10, 50, 640), Buffer("c", 45, 60, 320)]
    problem = scale(items)
    assert problem.unit == 320  # 300 is 320 in lines of 64
    assert problem.names == ("a", "b", "c")
    assert problem.size == (1, 2, 1)
    assert problem.sections == ((0, 1), (1, 2))
    assert problem.meets == [[1], [0, 2], [1]]
    assert problem.bound == 3


def test_the_hill_climb_improves_or_says_nothing():
    problem = scale(instance("A"))
    order = orders(problem)["size"]
    before = problem.height(first_fit(problem, order))
    found = climb(problem, order, before, target=0, rounds=200, deadline=SOON)
    assert found is not None
    assert disjoint(problem, found)
    assert problem.height(found) < before
    assert climb(problem, order, problem.bound, target=0, rounds=5, deadline=SOON) is None
