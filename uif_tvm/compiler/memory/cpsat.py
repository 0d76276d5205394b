"""The planning problem for OR-Tools' CP-SAT solver: rectangles of fixed time, free offset."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from uif_tvm.compiler.memory.scaled import Scaled

#: With a fixed seed and one thread the same problem has the same answer, unless time runs out.
_SEED = 20


@dataclass(frozen=True)
class Solved:
    """What CP-SAT found.

    Args:
        offsets: units; ``None`` when nothing lower was found.
        bound: proved: no arena is smaller, units.
    """

    offsets: tuple[int, ...] | None
    bound: int


def minimise(
    problem: Scaled, hint: Sequence[int], bound: int, deadline: float, enough: int = 0
) -> Solved:
    """Look for an arena below that of ``hint``, and for a proof that there is none.

    Args:
        hint: offsets of a valid plan, units.
        bound: a known lower bound, units.
        deadline: of ``time.monotonic()``.
        enough: an arena of so many units needs no improvement.
    """
    from ortools.sat.python import cp_model  # slow to import, and seldom needed

    best = problem.height(hint)
    if best <= bound or time.monotonic() >= deadline:
        return Solved(None, bound)
    model = cp_model.CpModel()
    arena = model.new_int_var(max(bound, min(enough, best - 1)), best - 1, "arena")
    times, spaces, offsets = [], [], []
    for item, (size, step) in enumerate(zip(problem.size, problem.alignment, strict=True)):
        low, high = problem.low[item], problem.high[item]
        place = model.new_int_var(0, max(0, (best - 1 - size) // step), f"place{item}")
        model.add_hint(place, hint[item] // step)
        model.add(place * step + size <= arena)
        times.append(model.new_fixed_size_interval_var(low, high - low, f"time{item}"))
        spaces.append(model.new_fixed_size_interval_var(place * step, size, f"space{item}"))
        offsets.append(place)
    model.add_no_overlap_2d(times, spaces)
    # Buffers of one section exclude each other in space alone: a stronger form of the same.
    for members in problem.sections:
        if len(members) > 2:
            model.add_no_overlap([spaces[item] for item in members])
    model.minimize(arena)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.0, deadline - time.monotonic())
    solver.parameters.random_seed = _SEED
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Solved(None, best)
    proved = bound if enough > bound else max(bound, math.ceil(solver.best_objective_bound - 1e-6))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(None, min(proved, best))
    found = tuple(
        solver.value(place) * step for place, step in zip(offsets, problem.alignment, strict=True)
    )
    return Solved(found, min(proved, problem.height(found)))
