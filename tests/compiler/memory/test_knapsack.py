"""The knapsack over time: within the room of every slot, and worth most."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from uif_tvm.compiler.memory.knapsack import Item, choose

SLOTS = 6

_items = st.lists(
    st.builds(
        lambda worth, size, start, life: Item(worth, size, start, min(SLOTS, start + life)),
        st.integers(1, 50).map(float),
        st.integers(1, 10),
        st.integers(0, SLOTS - 1),
        st.integers(1, SLOTS),
    ),
    max_size=7,
)


def fits(items, taken, free) -> bool:
    return all(
        sum(items[i].size for i in taken if items[i].start <= slot < items[i].end)
        <= max(0, free[slot])
        or not any(items[i].start <= slot < items[i].end for i in taken)
        for slot in range(SLOTS)
    )


@given(_items, st.lists(st.integers(-3, 25), min_size=SLOTS, max_size=SLOTS))
@settings(deadline=None, max_examples=60)
def test_no_other_choice_is_worth_more(items, free):
    taken = choose(items, free)
    assert fits(items, taken, free)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(len(items)), count) for count in range(len(items) + 1)
    )
    best = max(sum(items[i].worth for i in s) for s in subsets if fits(items, s, free))
    assert abs(sum(items[i].worth for i in taken) - best) <= 1e-3


def test_greedy_by_density_would_lose():
    """The densest item keeps out two that are worth more together."""
    items = [Item(7, 6, 0, 1), Item(5, 5, 0, 1), Item(5, 5, 0, 1)]
    assert choose(items, [10]) == [1, 2]
