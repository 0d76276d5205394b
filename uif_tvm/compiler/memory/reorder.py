"""An order of steps with a lower peak of memory.

What is alive after a set of steps does not depend on their order, so an order is a path through
the sets that are closed under dependence, and its peak is the largest need on the way
(E. Liberis, N. D. Lane, "Neural networks on microcontrollers: saving memory at inference via
operator reordering", 2019; B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of
Irregularly Wired Neural Networks for Edge Devices", MLSys 2020).

1. Steps that depend on all before and are needed by all after stay where they are; what lies
   between two of them is a *segment* of its own. A chain has no segments and costs linear time.
2. The segments are searched, the highest peak first: by best-first search over sets of steps,
   which is exact, within a number of sets; beyond it by a beam. A step that needs no more than the
   peak so far, and leaves no more behind than it found, is taken at once: to take it later can
   free more of its inputs, but nothing before it would need less, nor anything after it.
3. Until the next segment's peak is not above what one step needs alone, what is needed outside of
   segments, or what another segment could not be lowered below.
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
    return [need for need, _ in _profile(program, order)]


def reorder(program: Program, *, effort: int = EFFORT) -> Reordering:
    """An order of ``program``'s steps with the lowest peak found; its own if that is as low.

    Args:
        effort: limit of the search in one segment, see ``EFFORT``.
    """
    order = list(range(len(program.steps)))
    profile = _profile(program, order)
    peaks = [need for need, _ in profile]
    bound = max((_alone(program, step) for step in program.steps), default=0)
    depends = _dependences(program)
    segments = _segments(depends)
    inside = {index for first, end in segments for index in range(first, end)}
    # What cannot be changed; then also what the segments so far could not be lowered below.
    peak = max((need for index, need in enumerate(peaks) if index not in inside), default=0)
    peak, is_optimal = max(peak, bound), True
    last_read = _last_read(program)
    for highest, first, end in sorted(((max(peaks[a:b]), a, b) for a, b in segments), reverse=True):
        if highest <= peak:
            break
        search = _Segment(program, depends, range(first, end), last_read, profile[first][1])
        found = search.best(highest, effort)
        lowered = highest if found is None else found[0]
        if lowered > peak:
            peak, is_optimal = lowered, search.is_exact
        if found is not None:
            order[first:end] = found[1]
    before = max(peaks, default=0)
    if peak >= before:
        order = list(range(len(program.steps)))
    return Reordering(tuple(order), before, peak, bound, is_optimal)


def _profile(program: Program, order: Sequence[int]) -> list[tuple[int, int]]:
    """For each step of ``order``, the bytes alive while it runs and just before it."""
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
        before = alive
        alive += sum(program.sizes[value] for value in step.writes)
        found.append((alive + step.workspace, before))
        for value in set(step.reads):
            readers[value] -= 1
        gone = {v for v in (*step.reads, *step.writes) if not readers[v] and v not in program.kept}
        alive -= sum(program.sizes[value] for value in gone)
    return found


def _last_read(program: Program) -> list[int]:
    """For each value the last step that reads it; after all of them if it is kept."""
    last = [-1] * len(program.sizes)
    for index, step in enumerate(program.steps):
        for value in step.reads:
            last[value] = index
    for value in program.kept:
        last[value] = len(program.steps)
    return last


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
        steps: range,
        last_read: Sequence[int],
        alive: int,
    ) -> None:
        self.is_exact = False
        self._steps = steps
        self._alive = alive
        self._needs = [
            sum(1 << (item - steps.start) for item in depends[step] if item >= steps.start)
            for step in steps
        ]
        self._workspace = [program.steps[step].workspace for step in steps]
        self._reads: list[list[_Item]] = []
        self._writes: list[list[_Item]] = []
        items: dict[int, _Item] = {}
        for index, step in enumerate(steps):
            reads, writes = set(program.steps[step].reads), program.steps[step].writes
            for value in (*reads, *writes):
                stays = last_read[value] >= steps.stop
                items.setdefault(value, _Item(program.sizes[value], 0, stays))
            for value in reads:
                items[value].readers |= 1 << index
            self._reads.append([items[value] for value in sorted(reads)])
            self._writes.append([items[value] for value in writes])

    def best(self, limit: int, effort: int) -> tuple[int, list[int]] | None:
        """A peak below ``limit``, and the steps in an order that has it; or ``None``."""
        start = _State(0, len(self._steps), self._alive, 0, (-1, None))
        count = len(self._steps)
        found, self.is_exact = self._exact(start, limit, max(1, effort // count))
        if not self.is_exact:
            width = max(1, min(_BEAM, effort // count**2))
            found = self._beam(start, limit, width)
        return None if found is None else (found.peak, self._order(found))

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
