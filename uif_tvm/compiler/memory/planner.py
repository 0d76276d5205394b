"""Offsets for buffers in one arena, as small as can be found.

1. Every placement heuristic; the best is kept, and usually reaches the lower bound.
2. If not: the exact search at the bound, a hill climb over orders, the exact search at
   capacities between the bound and the best arena; the searches again with more and more nodes;
   and CP-SAT for what time is left.

Steps end when an arena is as small as the bound or proved to be the smallest, or at the limits.
The limits of all but CP-SAT count work, not time, so that results repeat from run to run unless
the machine is too slow to do that work in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from uif_tvm.compiler.memory import cpsat
from uif_tvm.compiler.memory.heuristics import Order, all_placements, climb
from uif_tvm.compiler.memory.problem import Buffer, Plan, arena_of, lower_bound
from uif_tvm.compiler.memory.scaled import Scaled, scale
from uif_tvm.compiler.memory.search import Outcome, fit
from uif_tvm.errors import UsageError

#: Nodes of the exact search at the bound in its first round: about a second.
_NODES = 15_000
#: How many times as many there are in each further round.
_GROWTH = 4
#: Capacities that one round tries between the bound and the best.
_POINTS = 8
_ALL_NODES = 1 << 40
_ROUNDS = 400
#: The exact search keeps tables of buffers x buffers.
_MOST_BUFFERS = 4_000


def plan(
    buffers: Sequence[Buffer],
    *,
    time_limit_s: float = 5.0,
    exact: bool = False,
    capacity: int | None = None,
) -> Plan:
    """Place ``buffers`` in one arena.

    Args:
        time_limit_s: for what follows the heuristics, seconds; 0 for heuristics only.
        exact: use all that time if need be to prove that no arena is smaller.
        capacity: bytes; an arena that needs no more is good enough.

    Returns:
        A plan whose ``method`` says what found it and whether it is proved to be optimal.

    Raises:
        UsageError: a buffer is malformed, two have one name, or the limit is negative.
    """
    _validate(buffers, time_limit_s)
    problem = scale(buffers)
    work = _Work(problem, time.monotonic() + time_limit_s, (capacity or 0) // problem.unit)
    work.heuristics()
    if not work.is_done and time_limit_s > 0:
        work.explore(0.5 if exact else 0.75)
        if exact:
            work.prove()
        work.cpsat()
    offsets = problem.named(work.offsets)
    method = f"{work.method}, {work.verdict}" if buffers else "nothing to place"
    return Plan(offsets, arena_of(buffers, offsets), lower_bound(buffers), method)


def _validate(buffers: Sequence[Buffer], time_limit_s: float) -> None:
    wrong = next(
        (item for item in buffers if item.size < 1 or item.alignment < 1 or item.end <= item.first),
        None,
    )
    names = {item.name for item in buffers}
    if wrong is not None:
        what = f"{wrong} needs size >= 1, alignment >= 1 and end > first"
    elif len(names) != len(buffers):
        what = f"{len(buffers) - len(names)} buffers have the name of another"
    elif time_limit_s < 0:
        what = f"time_limit_s is {time_limit_s}"
    else:
        return
    raise UsageError(
        f"no plan can be made: {what}",
        stage="compile",
        code="UIF-COMPILE-MEMORY",
        hint="give distinct, non-empty buffers and a limit of 0 s or more",
    )


@dataclass
class _Work:
    """The best plan so far, and the bound: proved, or taken from the problem.

    ``enough`` is a height, units, that needs no improvement.
    """

    problem: Scaled
    deadline: float
    enough: int = 0

    def __post_init__(self) -> None:
        self.bound = self.problem.bound
        self.offsets: Sequence[int] = ()
        self.height: int | None = None
        self.method = ""
        self._limits: dict[str, None] = {}
        self._order: Order = []

    @property
    def goal(self) -> int:
        """The height at which to stop."""
        return max(self.bound, self.enough)

    @property
    def is_done(self) -> bool:
        """Whether the best is as good as it can be, or good enough."""
        return self.height is not None and self.height <= self.goal

    @property
    def verdict(self) -> str:
        """How good the best is, in words."""
        if self._height <= self.bound:
            return "optimal"
        limits = ", ".join(self._limits) or "heuristics only"
        return "fits" if self.is_done else f"not proved optimal ({limits})"

    def heuristics(self) -> None:
        for method, order, offsets in all_placements(self.problem):
            if self._keep(offsets, method) and method.startswith("first fit"):
                self._order = order
            if self.is_done:
                return

    def climb(self) -> None:
        """Moves in the order of the heuristic, see :func:`heuristics.climb`."""
        found = climb(
            self.problem,
            self._order,
            self._height,
            target=self.goal,
            rounds=_ROUNDS,
            deadline=self.deadline,
        )
        if found is not None:
            self._keep(found, "hill climb")

    def search(self, capacity: int, nodes: int) -> Outcome:
        """The exact search for one capacity."""
        if len(self.problem) > _MOST_BUFFERS:
            self._limits[f"more than {_MOST_BUFFERS} buffers, no exact search"] = None
            return Outcome.STOPPED
        found = fit(self.problem, capacity, nodes=nodes, deadline=self.deadline)
        if found.outcome is Outcome.FITS:
            self._keep(found.offsets, f"exact search {found.order}")
        elif found.outcome is Outcome.IMPOSSIBLE:
            self.bound = max(self.bound, capacity + 1)
        else:
            late = time.monotonic() > self.deadline
            self._limits["time limit" if late else "node limit"] = None
        return found.outcome

    def explore(self, share: float) -> None:
        """Rounds of searches with more and more nodes, for a share of the time left."""
        with self._share(share):
            if self.enough >= self.bound:  # nothing but this capacity matters
                self.search(self.goal, _ALL_NODES)
            nodes = _NODES
            while not self.is_done and time.monotonic() < self.deadline:
                outcome = self.search(self.goal, nodes)
                if nodes == _NODES:
                    self.climb()
                self.sweep(nodes // _POINTS)
                if outcome is Outcome.STOPPED and len(self.problem) > _MOST_BUFFERS:
                    return
                nodes *= _GROWTH

    def sweep(self, nodes: int) -> None:
        """Search at a few capacities between the bound and the best, the lowest first.

        Luck differs from one capacity to the next, and a higher one need not be easier.
        """
        low, high = self.goal + 1, self._height - 1
        points = min(_POINTS, high - low + 1)
        for point in range(points):
            capacity = low + (high - low) * point // max(1, points - 1)
            if self.is_done or time.monotonic() > self.deadline:
                return
            if self.search(max(capacity, self.bound), nodes) is Outcome.FITS:
                return

    def prove(self) -> None:
        """Search below the best until it is optimal or time is out."""
        while not self.is_done and time.monotonic() < self.deadline:
            with self._share(0.5):  # the rest is for CP-SAT, whose proofs differ in kind
                outcome = self.search(self._height - 1, _ALL_NODES)
            if outcome is Outcome.STOPPED:
                return

    @contextmanager
    def _share(self, share: float) -> Iterator[None]:
        """Within, the deadline is earlier: only a share of the time left."""
        whole, now = self.deadline, time.monotonic()
        self.deadline = now + (whole - now) * share
        try:
            yield
        finally:
            self.deadline = whole

    def cpsat(self) -> None:
        """CP-SAT for the time left."""
        if self.is_done:
            return
        found = cpsat.minimise(self.problem, self.offsets, self.bound, self.deadline, self.enough)
        self.bound = max(self.bound, found.bound)
        if found.offsets is not None:
            self._keep(found.offsets, "cp-sat")
        if not self.is_done:
            self._limits["time limit"] = None

    @property
    def _height(self) -> int:
        return 0 if self.height is None else self.height

    def _keep(self, offsets: Sequence[int], method: str) -> bool:
        height = self.problem.height(offsets)
        if self.height is not None and height >= self.height:
            return False
        self.offsets, self.height, self.method = offsets, height, method
        return True
