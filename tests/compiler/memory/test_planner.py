"""The memory planner: sound, never below the bound, no worse than any heuristic, often optimal."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.compiler.memory.minimalloc import measure
from tests.compiler.memory.problems import CAPACITY, DATA, INSTANCES, buffers, instance, load
from uif_tvm.compiler.memory import planner
from uif_tvm.compiler.memory.checker import check
from uif_tvm.compiler.memory.heuristics import all_placements
from uif_tvm.compiler.memory.planner import plan
from uif_tvm.compiler.memory.problem import Buffer
from uif_tvm.compiler.memory.scaled import scale
from uif_tvm.errors import UsageError


@given(buffers())
@settings(deadline=None, max_examples=60)
def test_plans_are_sound_and_the_best_of_all(items):
    found = plan(items, time_limit_s=5)
    check(items, found)
    assert found.arena_bytes >= found.bound_bytes
    problem = scale(items)
    for method, _, offsets in all_placements(problem):
        assert found.arena_bytes <= problem.height(offsets) * problem.unit, method


@given(buffers(most=8))
@settings(deadline=None, max_examples=30)
def test_exact_plans_are_optimal(items):
    """Small problems are always proved, and a proved arena is not larger than without proof."""
    proved, quick = plan(items, exact=True, time_limit_s=20), plan(items, time_limit_s=0)
    check(items, proved)
    assert proved.method.endswith("optimal") or not items
    assert proved.arena_bytes <= quick.arena_bytes


@given(buffers(alignments=(64,)))
@settings(deadline=None, max_examples=20)
def test_the_order_of_input_has_no_influence(items):
    shuffled = list(items)
    random.Random(1).shuffle(shuffled)
    assert plan(items) == plan(shuffled)


def test_no_buffers():
    assert plan([]).arena_bytes == 0
    assert plan([]).method == "nothing to place"


def test_a_chain_reaches_its_bound_by_a_heuristic():
    items = [Buffer(f"b{index}", index, index + 2, 64 * (1 + index % 5)) for index in range(200)]
    found = plan(items)
    check(items, found)
    assert found.arena_bytes == found.bound_bytes
    assert "fit" in found.method or "bottom left" in found.method


def test_a_gap_that_only_the_search_closes():
    items = load(DATA / "input.12.csv")
    found = plan(items, exact=True, time_limit_s=60)
    check(items, found)
    assert (found.arena_bytes, found.bound_bytes) == (12, 12)
    hard = plan(instance("K"), capacity=CAPACITY, time_limit_s=60)
    assert hard.method.startswith("exact search")


def test_without_time_it_says_that_nothing_is_proved():
    found = plan(instance("A"), time_limit_s=0)
    check(instance("A"), found)
    assert found.arena_bytes > found.bound_bytes
    assert found.method.endswith("not proved optimal (heuristics only)")


def test_out_of_time_it_says_so():
    found = plan(instance("D"), time_limit_s=0.05, exact=True)
    check(instance("D"), found)
    assert found.method.endswith("time limit)")


def test_too_many_for_the_search_is_said(monkeypatch):
    monkeypatch.setattr(planner, "_MOST_BUFFERS", 100)
    monkeypatch.setattr(planner, "_ROUNDS", 0)
    found = plan(instance("A"), time_limit_s=0.5)
    assert "more than 100 buffers, no exact search" in found.method


@pytest.mark.parametrize(
    ("items", "limit", "message"),
    [
        ([Buffer("a", 0, 0, 64)], 1, "end > first"),
        ([Buffer("a", 0, 1, 0)], 1, "size >= 1"),
        ([replace(Buffer("a", 0, 1, 8), alignment=0)], 1, "alignment >= 1"),
        ([Buffer("a", 0, 1, 8)] * 2, 1, "1 buffers have the name of another"),
        ([], -1, "time_limit_s is -1"),
    ],
)
def test_malformed_problems_are_refused(items, limit, message):
    with pytest.raises(UsageError, match=message):
        plan(items, time_limit_s=limit)


@pytest.mark.parametrize("name", INSTANCES)
def test_the_published_instances_fit(name):
    """All eleven, each in a few seconds of processor time."""
    row = measure(name, limit=60)
    assert row["fits"], row
