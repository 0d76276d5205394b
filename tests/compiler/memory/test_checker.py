"""The checker of memory plans: sound plans pass, and every kind of fault is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.compiler.memory.problems import buffers
from uif_tvm.compiler.memory.checker import check
from uif_tvm.compiler.memory.planner import plan
from uif_tvm.compiler.memory.problem import Buffer, Plan, arena_of, lower_bound
from uif_tvm.errors import CompileError

A = Buffer("a", 0, 2, 100)
B = Buffer("b", 1, 3, 100)
C = Buffer("c", 2, 4, 100)
SOUND = Plan({"a": 0, "b": 128, "c": 0}, 256, 256, "by hand")


def test_neighbours_in_time_share_bytes():
    check([A, B, C], SOUND)


def test_nothing_is_sound():
    check([], Plan({}, 0, 0, "by hand"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"offsets": {"a": 0, "b": 64, "c": 128}},
            "b and a are both alive at step 1 and share bytes 64 to 99",
        ),
        ({"offsets": {"a": 0, "b": 0, "c": 128}}, "share bytes 0 to 99"),
        ({"offsets": {"a": 0, "b": 130, "c": 0}}, "b lies at 130, not at a multiple of 64"),
        ({"offsets": {"a": 0, "b": -64, "c": 0}}, "b has the offset -64"),
        ({"offsets": {"a": 0, "c": 0}}, "buffers without an offset: b"),
        ({"offsets": {"a": 0, "b": 128, "c": 0, "d": 0}}, "offsets without a buffer: d"),
        ({"arena_bytes": 192}, "the arena has 192 bytes, but b needs it to have 256"),
        ({"arena_bytes": 320}, "the arena has 320 bytes, but b needs it to have 256"),
        ({"bound_bytes": 320}, "no arena was to be below 320 bytes, but this one has 256"),
    ],
)
def test_faults_are_named(change, message):
    wrong = replace(SOUND, **change)
    if "offsets" in change and wrong.offsets.keys() == {"a", "b", "c"}:
        wrong = replace(wrong, arena_bytes=arena_of([A, B, C], wrong.offsets), bound_bytes=0)
    with pytest.raises(CompileError, match=message) as caught:
        check([A, B, C], wrong)
    assert caught.value.code == "UIF-COMPILE-MEMORY"
    assert "report this" in caught.value.hint


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([A, A], "1 buffers have the name of another"),
        ([replace(A, size=0)], "a has 0 bytes from step 0 to 2"),
        ([replace(A, end=0)], "a has 100 bytes from step 0 to 0"),
        ([replace(A, alignment=0)], "aligned to 0"),
    ],
)
def test_buffers_that_are_none(bad, message):
    with pytest.raises(CompileError, match=message):
        check(bad, Plan({"a": 0}, 128, 0, "by hand"))


def test_a_buffer_inside_another():
    large, small = Buffer("large", 0, 9, 1024), Buffer("small", 4, 5, 64)
    with pytest.raises(CompileError, match=r"small and large .* step 4 .* bytes 512 to 575"):
        check([large, small], Plan({"large": 0, "small": 512}, 1024, 0, "by hand"))


@given(buffers(), st.data())
def test_planted_overlaps_are_caught(items, data):
    """Any buffer moved onto any other that is alive with it is found out."""
    found = plan(items, time_limit_s=0)
    check(items, found)
    pairs = [
        (one, other) for one in items for other in items if one is not other and one.meets(other)
    ]
    assume(pairs)
    moved, onto = data.draw(st.sampled_from(pairs))
    # Aligned for the one, and within the other.
    last = found.offsets[onto.name] + onto.size - 1
    offset = last // moved.alignment * moved.alignment
    assume(offset + moved.size > found.offsets[onto.name])
    offsets = {**found.offsets, moved.name: offset}
    wrong = Plan(offsets, arena_of(items, offsets), 0, "planted")
    with pytest.raises(CompileError, match=r"are both alive at step .* and share bytes"):
        check(items, wrong)


@given(buffers())
def test_the_checker_agrees_with_a_look_at_every_pair(items):
    """Everything at 0: wrong exactly when two meet."""
    offsets = {item.name: 0 for item in items}
    stacked = Plan(offsets, arena_of(items, offsets), 0, "all at 0")
    if any(one.meets(other) for one in items for other in items if one is not other):
        with pytest.raises(CompileError, match="share bytes 0 to"):
            check(items, stacked)
    else:
        check(items, stacked)


@given(buffers())
def test_the_bound_is_the_most_alive_at_a_step(items):
    steps = range(max((item.end for item in items), default=0))
    alive = [sum(item.size for item in items if item.first <= at < item.end) for at in steps]
    assert lower_bound(items) >= max(alive, default=0)


def test_thousands_of_buffers_are_quick_to_check():
    """A chain of 20,000: the sweep's work is what is alive, not all pairs."""
    items = [Buffer(f"b{index}", index, index + 2, 64) for index in range(20_000)]
    offsets = {item.name: 64 * (index % 2) for index, item in enumerate(items)}
    check(items, Plan(offsets, 128, 128, "by hand"))
