"""Reordering for a lower peak: valid orders, never a higher peak, the lowest where it is exact."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uif_tvm.compiler.memory import reorder as module
from uif_tvm.compiler.memory.reorder import Program, Step, needs, reorder


def valid(program: Program, order) -> bool:
    """Every step once, after those that make what it reads and those that it must follow."""
    maker = {value: index for index, step in enumerate(program.steps) for value in step.writes}
    at = {index: place for place, index in enumerate(order)}
    return sorted(order) == list(range(len(program.steps))) and all(
        at[before] < at[index]
        for index, step in enumerate(program.steps)
        for before in {*(maker[v] for v in step.reads if v in maker), *step.after}
    )


def peak(program: Program, order) -> int:
    """By looking at each step alone: what was made, and is still needed by it or after it."""
    made_by = {value: index for index, step in enumerate(program.steps) for value in step.writes}
    most = 0
    for place, index in enumerate(order):
        done, rest = set(order[: place + 1]), order[place:]
        needed = {v for later in rest for v in program.steps[later].reads} | program.kept
        needed |= set(program.steps[index].writes)
        alive = [v for v in needed if v not in made_by or made_by[v] in done]
        used = {v for step in program.steps for v in (*step.reads, *step.writes)} | program.kept
        total = sum(program.sizes[v] for v in alive if v in used)
        most = max(most, total + program.steps[index].workspace)
    return most


@st.composite
def programs(draw, most=7):
    """Random graphs: each step reads up to two earlier values and makes one."""
    count = draw(st.integers(1, most))
    steps, sizes = [], [draw(st.integers(0, 3))]
    for index in range(count):
        reads = draw(st.lists(st.integers(0, index), max_size=2, unique=True))
        after = draw(st.lists(st.integers(0, index - 1), max_size=1)) if index else []
        lonely = draw(st.integers(0, 3))
        steps.append(Step(tuple(reads), (index + 1,), lonely, tuple(after)))
        sizes.append(draw(st.integers(0, 9)))
    kept = frozenset(draw(st.lists(st.integers(1, count), max_size=2)))
    return Program(tuple(steps), tuple(sizes), kept)


@given(programs())
@settings(deadline=None)
def test_small_programs_get_the_lowest_peak_of_all_orders(program):
    found = reorder(program)
    assert valid(program, found.order)
    assert peak(program, found.order) == found.peak
    assert peak(program, range(len(program.steps))) == found.peak_before
    orders = itertools.permutations(range(len(program.steps)))
    assert found.peak == min(peak(program, order) for order in orders if valid(program, order))
    assert found.is_optimal
    assert found.bound <= found.peak <= found.peak_before
    if found.peak == found.peak_before:
        assert found.order == tuple(range(len(program.steps)))


@given(programs(most=25))
@settings(deadline=None, max_examples=40)
def test_with_little_effort_orders_are_valid_and_no_worse(program):
    found = reorder(program, effort=60)
    assert valid(program, found.order)
    assert peak(program, found.order) == found.peak <= found.peak_before
    assert found == reorder(program, effort=60)


def branches(count: int, large: int = 100, small: int = 1) -> Program:
    """One source, ``count`` branches source -> large -> small, all joined; breadth first."""
    steps = [Step((), (0,))]
    steps += [Step((0,), (1 + index,)) for index in range(count)]
    steps += [Step((1 + index,), (1 + count + index,)) for index in range(count)]
    steps.append(Step(tuple(range(1 + count, 1 + 2 * count)), (1 + 2 * count,)))
    sizes = (1, *[large] * count, *[small] * count, 1)
    return Program(tuple(steps), sizes, frozenset({1 + 2 * count}))


def test_branches_one_after_the_other():
    found = reorder(branches(4))
    assert (found.peak_before, found.peak) == (401, 104)
    assert found.is_optimal
    # Each branch is finished before the next begins.
    assert [abs(found.order.index(i + 4) - found.order.index(i)) for i in range(1, 5)] == [1] * 4


def test_many_branches_are_beyond_the_exact_search_but_not_the_beam(monkeypatch):
    exact = []
    original = module._Segment._exact
    monkeypatch.setattr(
        module._Segment, "_exact", lambda *a: exact.append(original(*a)) or exact[-1]
    )
    program = branches(30)
    found = reorder(program, effort=4_000)
    assert exact == [(None, False)]
    assert valid(program, found.order)
    assert found.peak < found.peak_before // 20
    assert not found.is_optimal


def test_a_chain_is_left_alone_at_once(monkeypatch):
    monkeypatch.setattr(module._Segment, "best", lambda *_: pytest.fail("searched"))
    steps = tuple(Step((index,), (index + 1,)) for index in range(5_000))
    program = Program(steps, (0, *(1 + index % 7 for index in range(5_000))), frozenset({5_000}))
    found = reorder(program)
    assert found.order == tuple(range(5_000))
    assert found.is_optimal


def test_residual_blocks_are_searched_one_by_one():
    """Forty blocks with a cheap branch that comes too early; only what makes the peak is moved."""
    steps, sizes = [Step((), (0,))], [10]
    for _ in range(40):
        x = len(sizes) - 1
        a, b, c, y = (len(sizes) + index for index in range(4))
        steps += [Step((x,), (a,)), Step((x,), (b,)), Step((b,), (c,)), Step((a, c), (y,))]
        sizes += [40, 60, 5, 10]
    program = Program(tuple(steps), tuple(sizes), frozenset({len(sizes) - 1}))
    found = reorder(program)
    assert (found.peak_before, found.peak) == (110, 75)
    assert valid(program, found.order)


def test_side_effects_keep_their_order():
    plain = branches(2)
    steps = list(plain.steps)
    steps[2] = Step(steps[2].reads, steps[2].writes, after=(1,))
    steps[3] = Step(steps[3].reads, steps[3].writes, after=(2,))
    program = Program(tuple(steps), plain.sizes, plain.kept)
    found = reorder(program)
    assert found.order.index(1) < found.order.index(2) < found.order.index(3)


def test_workspace_counts():
    steps = (Step((), (0,), 7), Step((0,), (1,), 3))
    assert needs(Program(steps, (2, 4), frozenset({1})), (0, 1)) == [9, 9]


def test_nothing_to_do():
    assert reorder(Program((), ())).order == ()


def test_random_graphs_improve_on_average():
    """Twenty graphs of 60 steps in a random order: the search saves at least a tenth of all."""
    before = after = 0
    for seed in range(20):
        generator = random.Random(seed)
        steps = [
            Step(tuple({generator.randrange(max(0, i - 12), i + 1) for _ in range(2)}), (i + 1,))
            for i in range(60)
        ]
        sizes = (0, *(generator.randrange(1, 100) for _ in range(60)))
        program = Program(tuple(steps), sizes, frozenset({60}))
        found = reorder(program, effort=40_000)
        assert valid(program, found.order)
        before, after = before + found.peak_before, after + found.peak
    assert after < 0.9 * before


def test_a_tie_elsewhere_changes_nothing():
    """Two blocks with one peak; only the first could be lowered, which would not help."""
    low = [Step((0,), (1,)), Step((0,), (2,)), Step((2,), (3,)), Step((1, 3), (4,))]
    stuck = [Step((4,), (5,)), Step((4,), (6,)), Step((5, 6), (7,))]
    sizes = (10, 40, 60, 5, 10, 50, 50, 10)
    program = Program((*low, *stuck), sizes, frozenset({7}))
    found = reorder(program)
    assert (found.peak_before, found.peak) == (110, 110)
    assert found.order == tuple(range(7))
