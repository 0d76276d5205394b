"""An order of steps with a lower peak of memory.

What is alive after a set of steps does not depend on their order, so an order is a path through
the sets that are closed under dependence, and its peak is the largest need on the way
(E. Liberis, N. D. Lane, "Neural networks on microcontrollers: saving memory at inference via
operator reordering", 2019; B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of
Irregularly Wired Neural Networks for Edge Devices", MLSys 2020).

1. Steps that depend on all before and are needed by all after stay where they are; what lies
   between two of them is a *segment* of its own. A chain has no segments and costs linear time.
2. The segment with the highest peak is searched: by best-first search over sets of steps, which is
   exact, within a number of sets; beyond it by a beam. A step that needs no more than the peak so
   far, and leaves no more behind than it found, is taken at once: it only becomes cheaper than
   later (its inputs may be freed by more of their readers), and nothing after it does worse.
3. Until no segment's peak is above what one step needs alone, or the highest cannot be lowered.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Steps that may be looked at in one segment by the exact search, and again by the beam: a second.
EFFORT = 400_000
#: Sets kept at each depth of the beam, as far as the effort allows.
_BEAM = 64


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Args:
        reads: values that it reads, by index.
        writes: values that it makes.
        workspace: bytes that it needs while it runs.
        after: steps that it must follow for other reasons than data: side effects.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    workspace: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Steps in an order that respects their dependences.

    Args:
        steps: in the order of the program.
        sizes: bytes of each value; 0 for what takes no memory of its own.
        kept: values that are needed after the last step.
    """

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Reordering:
    """An order and what it needs.

    Args:
        order: indices of the program's steps.
        peak_before, peak: bytes at the fullest step, in the program's order and in this one.
        bound: no order needs less: the most that one step needs alone.
        is_optimal: whether no order has a lower peak.
    """

    order: tuple[int, ...]
    peak_before: int
    peak: int
    bound: int
    is_optimal: bool


def needs(program: Program, order: Sequence[int]) -> list[int]:
    """Bytes alive while each step of ``order`` runs, its workspace included."""
    readers = [0] * len(program.sizes)
    for step in program.steps:
        for value in set(step.reads):
            readers[value] += 1
    made = {value for step in program.steps for value in step.writes}
    alive = sum(
        size
        for value, size in enumerate(program.sizes)
        if value not in made and (readers[value] or value in program.kept)
    )
    found = []
    for index in order:
        step = program.steps[index]
        alive += sum(program.sizes[value] for value in step.writes)
        found.append(alive + step.workspace)
        for value in set(step.reads):
            readers[value] -= 1
        gone = {v for v in (*step.reads, *step.writes) if not readers[v] and v not in program.kept}
        alive -= sum(program.sizes[value] for value in gone)
    return found


def reorder(program: Program, *, effort: int = EFFORT) -> Reordering:
    """An order of ``program``'s steps with the lowest peak found; its own if that is as low.

    Args:
        effort: limit of the search in one segment, see ``EFFORT``.
    """
    order = list(range(len(program.steps)))
    before = needs(program, order)
    peak_before = max(before, default=0)
    bound = max((_alone(program, step) for step in program.steps), default=0)
    depends = _dependences(program)
    peaks = before
    tried: dict[tuple[int, int], bool] = {}
    while max(peaks, default=0) > bound:
        at = peaks.index(max(peaks))
        segment = next(((a, b) for a, b in _segments(depends) if a <= at < b), None)
        if segment is None or segment in tried:
            break
        first, end = segment
        search = _Segment(program, depends, order[:first], order[first:end])
        found = search.best(max(peaks[first:end]), effort)
        tried[segment] = search.is_exact
        if found is None:
            break
        order[first:end] = found
        peaks = needs(program, order)
    peak = max(peaks, default=0)
    fullest = peaks.index(peak) if peaks else 0
    exact = [tried.get((a, b), False) for a, b in _segments(depends) if a <= fullest < b]
    is_optimal = peak == bound or (all(exact) if exact else True)
    return Reordering(tuple(order), peak_before, peak, bound, is_optimal)


def _alone(program: Program, step: Step) -> int:
    touched = {*step.reads, *step.writes}
    return step.workspace + sum(program.sizes[value] for value in touched)


def _dependences(program: Program) -> list[set[int]]:
    """For each step those that it must follow, as far as they follow no other of them."""
    maker: dict[int, int] = {}
    depends: list[set[int]] = []
    for index, step in enumerate(program.steps):
        depends.append({maker[value] for value in step.reads if value in maker} | set(step.after))
        maker.update((value, index) for value in step.writes)
    return depends


def _segments(depends: Sequence[set[int]]) -> list[tuple[int, int]]:
    """Ranges of steps between those that are fixed; ranges of one step are left out."""
    count = len(depends)
    followed: list[int | None] = [None] * count  # by whom first
    last_dependence = [max(items, default=-1) for items in depends]
    for index, items in enumerate(depends):
        for item in items:
            if followed[item] is None:
                followed[item] = index
    # A step is fixed if it is the only one without followers among those up to it, and the only
    # one without dependences among those from it on.
    ends: list[int] = [0] * (count + 1)
    for follower in followed:
        if follower is not None:
            ends[follower] += 1
    only_sink, open_ends = [False] * count, 0
    for index in range(count):
        open_ends += 1 - ends[index]
        only_sink[index] = open_ends == 1
    starts: list[int] = [0] * (count + 1)
    for item in last_dependence:
        starts[item] += item >= 0
    only_source, open_starts = [False] * count, 0
    for index in reversed(range(count)):
        open_starts += 1 - starts[index]
        only_source[index] = open_starts == 1
    fixed = [i for i in range(count) if only_sink[i] and only_source[i]]
    borders = [-1, *fixed, count]
    return [(low + 1, high) for low, high in pairwise(borders) if high - low > 2]


@dataclass
class _Item:
    """A value that steps of a segment read or write; ``readers`` is a set of steps as bits."""

    size: int
    readers: int = 0
    stays: bool = False


@dataclass(order=True)
class _State:
    """A set of steps that were done, best first."""

    peak: int
    left: int  # steps to do
    alive: int
    done: int = field(compare=False)
    path: tuple[int, _State | None] = field(compare=False)


class _Segment:
    """The search in one segment. Steps are bits, in the program's order."""

    def __init__(
        self,
        program: Program,
        depends: Sequence[set[int]],
        before: Sequence[int],
        steps: Sequence[int],
    ) -> None:
        self.is_exact = False
        self._steps = steps
        place = {step: index for index, step in enumerate(steps)}
        self._needs = [
            sum(1 << place[item] for item in depends[step] if item in place) for step in steps
        ]
        self._workspace = [program.steps[step].workspace for step in steps]
        self._reads: list[list[_Item]] = []
        self._writes: list[list[_Item]] = []
        self._alive = 0
        self._link(program, before)

    def _link(self, program: Program, before: Sequence[int]) -> None:
        items: dict[int, _Item] = {}
        inside = set(self._steps)
        done = inside | set(before)
        later = {
            value
            for index, step in enumerate(program.steps)
            if index not in done
            for value in step.reads
        }
        for index, step in enumerate(self._steps):
            reads, writes = program.steps[step].reads, program.steps[step].writes
            for value in {*reads, *writes}:
                item = items.setdefault(value, _Item(program.sizes[value]))
                item.stays = value in later or value in program.kept
            for value in set(reads):
                items[value].readers |= 1 << index
            self._reads.append([items[value] for value in sorted(set(reads))])
            self._writes.append([items[value] for value in writes])
        made = {value for step in program.steps for value in step.writes}
        sources = {v for v in range(len(program.sizes)) if v not in made}
        written = {value for step in before for value in program.steps[step].writes}
        needed = later | program.kept | {v for s in self._steps for v in program.steps[s].reads}
        self._alive = sum(program.sizes[v] for v in (sources | written) & needed)

    def best(self, limit: int, effort: int) -> list[int] | None:
        """The steps in an order with a peak below ``limit``, or ``None``."""
        start = _State(0, len(self._steps), self._alive, 0, (-1, None))
        count = len(self._steps)
        found, self.is_exact = self._exact(start, limit, max(1, effort // count))
        if not self.is_exact:
            width = max(1, min(_BEAM, effort // count**2))
            found = self._beam(start, limit, width)
        return None if found is None else self._order(found)

    def _exact(self, start: _State, limit: int, states: int) -> tuple[_State | None, bool]:
        """Best-first: the first complete order has the lowest peak. False: too many states."""
        heap, visited = [start], set[int]()
        lowest = {0: 0}  # of a set of steps, the lowest peak on the way to it so far
        while heap:
            state = heapq.heappop(heap)
            if state.left == 0:
                return state, True
            if state.done in visited:
                continue
            if len(visited) >= states:
                return None, False
            visited.add(state.done)
            for after in self._next(state, limit):
                if after.peak < lowest.get(after.done, limit):
                    lowest[after.done] = after.peak
                    heapq.heappush(heap, after)
        return None, True

    def _beam(self, start: _State, limit: int, width: int) -> _State | None:
        """Depth by depth, with the sets that keep least alive."""
        layer = [start]
        for _ in self._steps:
            after: dict[int, _State] = {}
            for state in layer:
                for item in self._next(state, limit):
                    known = after.get(item.done)
                    if known is None or item.peak < known.peak:
                        after[item.done] = item
            layer = heapq.nsmallest(width, after.values(), key=lambda s: (s.alive, s.peak, s.done))
        return min(layer, default=None)

    def _next(self, state: _State, limit: int) -> list[_State]:
        """States one step on; one alone where a step can be taken without loss."""
        found = []
        for index, need in enumerate(self._needs):
            bit = 1 << index
            if state.done & bit or need & ~state.done:
                continue
            alive = state.alive + sum(item.size for item in self._writes[index])
            peak = max(state.peak, alive + self._workspace[index])
            done = state.done | bit
            for item in (*self._reads[index], *self._writes[index]):
                if not item.stays and not item.readers & ~done:
                    alive -= item.size
            if peak >= limit:
                continue
            after = _State(peak, state.left - 1, alive, done, (index, state))
            if peak <= state.peak and alive <= state.alive:
                return [after]
            found.append(after)
        return found

    def _order(self, state: _State | None) -> list[int]:
        order: list[int] = []
        while state is not None and state.path[1] is not None:
            order.append(self._steps[state.path[0]])
            state = state.path[1]
        return order[::-1]
