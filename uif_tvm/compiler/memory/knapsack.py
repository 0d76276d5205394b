"""Which items to take so that they are worth most and fit at every slot: a knapsack over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: The search ends after so much work, in CP-SAT's own unit, about a second: it is repeatable.
_WORK = 1.0
_SEED = 20
#: Worth is counted in this part of the largest one: CP-SAT calculates with integers.
_RESOLUTION = 1_000_000


@dataclass(frozen=True)
class Item:
    """``size`` bytes in slots ``start`` up to ``end``, worth ``worth`` (above 0)."""

    worth: float
    size: int
    start: int
    end: int


def choose(items: Sequence[Item], free: Sequence[int]) -> list[int]:
    """Indices of the items to take, ascending; the best choice unless the limit of work is hit.

    Args:
        free: bytes in each slot.
    """
    from ortools.sat.python import cp_model  # slow to import, and seldom needed

    model = cp_model.CpModel()
    taken = [model.new_bool_var(f"take{index}") for index in range(len(items))]
    borders = sorted({slot for item in items for slot in (item.start, item.end)})
    for start, end in pairwise(borders):
        alive = [index for index, item in enumerate(items) if item.start <= start < item.end]
        room = max(0, min(free[start:end]))
        model.add(sum(items[index].size * taken[index] for index in alive) <= room)
    unit = max((item.worth for item in items), default=1.0) / _RESOLUTION
    model.maximize(sum(max(1, round(item.worth / unit)) * taken[i] for i, item in enumerate(items)))
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = _WORK
    solver.parameters.random_seed = _SEED
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return []
    return [index for index, var in enumerate(taken) if solver.value(var)]
