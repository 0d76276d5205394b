"""Delta debugging finds a part that fails and of which nothing can be left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.selection.reduction.ddmin import ddmin


@given(
    size=st.integers(1, 60),
    needed=st.sets(st.integers(0, 59), max_size=5),
)
def test_exactly_what_is_needed_is_left(size, needed):
    wanted = {item for item in needed if item < size} or {0}
    assert ddmin(range(size), lambda part: wanted <= set(part)) == sorted(wanted)


@given(size=st.integers(1, 25), seed=st.integers(0, 9))
def test_any_check_ends_in_a_part_that_cannot_lose_one_item(size, seed):
    def fails(part):  # neither monotone nor smooth
        return len(part) > 0 and (hash((tuple(part), seed)) % 3 == 0 or len(part) == size)

    kept = ddmin(range(size), fails)
    assert fails(kept)
    assert kept == sorted(kept)
    if len(kept) > 1:
        assert not any(fails(kept[:i] + kept[i + 1 :]) for i in range(len(kept)))


def test_one_fault_among_many_takes_about_twice_the_logarithm():
    asked = []

    def fails(part):
        asked.append(part)
        return 700 in part

    assert ddmin(range(1024), fails) == [700]
    assert len(asked) <= 2 * 10
