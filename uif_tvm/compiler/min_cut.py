"""Yes-or-no choices of least total cost.

    minimise  sum_i  yes_i x_i + no_i (1 - x_i)  +  sum_ij  apart_ij x_i (1 - x_j),   x in {0, 1}

with costs of at least 0 is a minimum cut (Picard and Ratliff, "Minimum cuts and related problems",
Networks 5, 1975), so the answer is exact. Layout passes choose with it which tensors of a region
change their form.
"""

from __future__ import annotations

from ortools.graph.python import max_flow

#: Microseconds in units of the solver, which takes integers.
_PER_US = 1_000_000
#: A cost that no answer pays. The solver adds capacities up in 64 bits.
NEVER = float("inf")
_NEVER_UNITS = 1 << 52
_SOURCE, _SINK = 0, 1


class Choices:
    """A problem under construction; costs in microseconds."""

    def __init__(self) -> None:
        self._flow = max_flow.SimpleMaxFlow()
        self._count = 2

    def node(self, yes: float = 0.0, no: float = 0.0) -> int:
        """A new choice and what either answer costs."""
        found = self._count
        self._count += 1
        self.cost(found, yes, no)
        return found

    def cost(self, node: int, yes: float = 0.0, no: float = 0.0) -> None:
        """Add to what the answers of ``node`` cost."""
        self._arc(node, _SINK, yes)
        self._arc(_SOURCE, node, no)

    def apart(self, yes: int, no: int, cost: float) -> None:
        """``cost`` is paid when ``yes`` is chosen and ``no`` is not."""
        self._arc(yes, no, cost)

    def solve(self) -> set[int]:
        """The nodes chosen. Where both answers cost the same, the answer is yes."""
        status = self._flow.solve(_SOURCE, _SINK)
        if status != self._flow.OPTIMAL:
            raise ValueError(f"no minimum cut was found: solver status {status}")
        refused = set(self._flow.get_sink_side_min_cut())
        return {node for node in range(2, self._count) if node not in refused}

    def _arc(self, tail: int, head: int, cost: float) -> None:
        if cost < 0:
            raise ValueError(f"costs of choices are at least 0, got {cost}")
        if cost:
            units = _NEVER_UNITS if cost == NEVER else min(round(cost * _PER_US), _NEVER_UNITS)
            self._flow.add_arc_with_capacity(tail, head, units)
