"""Placement heuristics: an order of the buffers, and a rule that places them one by one.

Orders: by size (TensorFlow Lite's greedy by size; XLA's global decreasing size with best fit), by
breadth (TensorFlow Lite: the fullest section first), by length of life (XLA's temporal variant),
area, number of conflicts, and time. Rules: *first fit* takes the lowest gap between what meets the
buffer, *best fit* the tightest; *bottom left* always places what can lie lowest, on top of all that
it meets, and uses the order for ties only.
"""

from __future__ import annotations

import heapq
import random
import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from uif_tvm.compiler.memory.scaled import Scaled

#: An order: a number for each buffer, the lowest first.
Order = list[int]
#: Offsets of a problem in an order.
Rule = Callable[[Scaled, Order], list[int]]


def _fit(problem: Scaled, order: Order, best: bool, limit: int | None = None) -> list[int]:
    """Offsets in an order, or an empty list as soon as they would reach ``limit``."""
    offsets = [-1] * len(problem)
    taken: list[list[tuple[int, int]]] = [[] for _ in order]  # sorted, of what is placed
    for item in order:
        size, step = problem.size[item], problem.alignment[item]
        at = (_tightest if best else _lowest)(taken[item], size, step)
        end = at + size
        if limit is not None and end >= limit:
            return []
        offsets[item] = at
        block = (at, end)
        for other in problem.meets[item]:
            if offsets[other] < 0:
                insort(taken[other], block)
    return offsets


def _lowest(taken: Sequence[tuple[int, int]], size: int, step: int) -> int:
    at = 0
    for start, end in taken:
        if at + size <= start:
            return at
        if end > at:
            at = -(-end // step) * step
    return at


def _tightest(taken: Sequence[tuple[int, int]], size: int, step: int) -> int:
    at, found, tightest = 0, -1, 0
    for start, end in taken:
        room = start - at
        if room >= size and (found < 0 or room < tightest):
            found, tightest = at, room
        if end > at:
            at = -(-end // step) * step
    return at if found < 0 else found


first_fit: Rule = partial(_fit, best=False)
best_fit: Rule = partial(_fit, best=True)


def bottom_left(problem: Scaled, order: Order) -> list[int]:
    """See the module text."""
    offsets, floor = [-1] * len(problem), [0] * len(problem)
    heap = [(0, rank, item) for rank, item in enumerate(order)]
    while heap:
        at, rank, item = heapq.heappop(heap)
        if floor[item] > at:  # something went below it meanwhile
            heapq.heappush(heap, (floor[item], rank, item))
            continue
        offsets[item] = at
        top = at + problem.size[item]
        for other in problem.meets[item]:
            if floor[other] < top:
                step = problem.alignment[other]
                floor[other] = -(-top // step) * step
    return offsets


def orders(problem: Scaled) -> dict[str, Order]:
    """Orders by name, the most promising first."""
    size, life, meets = problem.size, problem.life, problem.meets
    fullest = [
        max(problem.totals[low:high]) for low, high in zip(problem.low, problem.high, strict=True)
    ]
    count = range(len(problem))
    keys: dict[str, list[tuple[int, ...]]] = {
        "size": [(-size[item], -life[item]) for item in count],
        "breadth": [(-fullest[item], -size[item]) for item in count],
        "area": [(-size[item] * life[item], -size[item]) for item in count],
        "life": [(-life[item], -size[item]) for item in count],
        "conflict": [(-size[item] * len(meets[item]), -life[item]) for item in count],
        "full life": [(-fullest[item], -life[item], -size[item]) for item in count],
        "time": [(problem.low[item], -size[item]) for item in count],
    }
    return {name: sorted(count, key=key.__getitem__) for name, key in keys.items()}


RULES: dict[str, Rule] = {
    "first fit": first_fit,
    "best fit": best_fit,
    "bottom left": bottom_left,
}


def all_placements(problem: Scaled) -> Iterator[tuple[str, Order, list[int]]]:
    """Every rule with every order: a name, the order and the offsets."""
    for order_name, order in orders(problem).items():
        for rule_name, rule in RULES.items():
            yield f"{rule_name} by {order_name}", order, rule(problem, order)


def climb(
    problem: Scaled,
    order: Order,
    best: int,
    *,
    target: int,
    rounds: int,
    deadline: float,
    seed: int = 0,
) -> list[int] | None:
    """Improve ``order`` under first fit, by moving what makes the peak, or meets it, forward.

    In the spirit of the hill climb of the Vela compiler. Deterministic for given ``rounds``
    unless the ``deadline`` (of ``time.monotonic()``) comes first.

    Args:
        best: height to fall below, units.
        target: height at which to stop.

    Returns:
        Offsets lower than ``best``, or ``None``.
    """
    generator = random.Random(seed)
    found: list[int] | None = None
    current, offsets = order, first_fit(problem, order)
    for _ in range(rounds):
        if best <= target or time.monotonic() > deadline:
            break
        height = problem.height(offsets)
        changed = _moved(problem, current, offsets, height, generator)
        # A little worse is accepted at times, to leave plateaus behind.
        slack = height // 64 if generator.random() < 0.05 else 0
        tried = _fit(problem, changed, best=False, limit=height + 1 + slack)
        if not tried:
            continue
        current, offsets = changed, tried
        if problem.height(tried) < best:
            best, found = problem.height(tried), tried
    return found


def _moved(
    problem: Scaled, order: Order, offsets: list[int], height: int, generator: random.Random
) -> Order:
    """``order`` with one buffer of the peak, or one that it meets, before where the other was."""
    peak = generator.choice(
        [item for item, at in enumerate(offsets) if at + problem.size[item] >= height]
        or [max(range(len(offsets)), key=lambda item: offsets[item] + problem.size[item])]
    )
    meets = problem.meets[peak]
    first, second = peak, generator.choice(meets) if meets else peak
    if generator.random() < 0.5 and meets:
        first, second = second, generator.choice(meets)
    if first == second:
        return order
    changed = [item for item in order if item != first]
    changed.insert(changed.index(second), first)
    return changed
