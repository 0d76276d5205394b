"""Exact search: do the buffers fit into a capacity? Depth first, over canonical solutions.

After M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
Learning", ASPLOS 2023 (google/minimalloc). Every placement can be pushed down until each buffer
rests on another or on the ground, and its buffers then be put in one by one in order of their
offsets. So it is enough to try, at each node, to put down a buffer at its *floor*: the lowest place
above all that it meets and that is placed already. Nodes are cut off where

- some section's floor and the sizes still to place there exceed the capacity. The floor of a
  section is the lowest floor of its buffers, and no lower than the last offset, as later offsets
  are higher (*section inference*, *monotonic floor*);
- another buffer would fit entirely below this one (*dominance*);
- this buffer has nothing left to go on top of it, and it failed: others cannot do better
  (*hatless*);
- an equal buffer (size and lifetime) is still to come: they are put down in order;
- the same state has failed before.

Buffers that end up independent of each other, as nothing that is still to place spans both, are
solved apart (*decomposition*). All candidates of a node are evaluated at once, in NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from uif_tvm.compiler.memory.scaled import Scaled

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Floor of what is placed already.
_PLACED = 1 << 60
#: Failed states kept, at 16 bytes and a set's overhead each.
_MOST_STATES = 200_000

#: Orders in which buffers of equal floor are tried: criteria by falling importance. W: length of
#: life, A: size times length, T: units alive in the fullest of its sections, Z: size.
ORDERS = ("TWA", "TAW", "WAT")


class Outcome(Enum):
    """How a search ended."""

    FITS = "fits"
    IMPOSSIBLE = "impossible"
    STOPPED = "stopped"  # by the limit of nodes or of time


@dataclass(frozen=True)
class Found:
    """Result of :func:`fit`.

    Args:
        outcome: see :class:`Outcome`.
        offsets: units, when it fits.
        order: of ``ORDERS``, which decided.
        nodes: visited by all orders together.
    """

    outcome: Outcome
    offsets: tuple[int, ...] = ()
    order: str = ""
    nodes: int = 0


def fit(
    problem: Scaled, capacity: int, *, nodes: int, deadline: float, orders: Sequence[str] = ORDERS
) -> Found:
    """Search for offsets within ``capacity`` units.

    Orders take turns with a growing share of nodes: which of them is lucky differs widely, and a
    search that is not lucky early seldom becomes so.

    Args:
        nodes: limit for all orders together; below it the result depends on nothing but the
            problem.
        deadline: of ``time.monotonic()``.
    """
    if capacity < problem.bound:
        return Found(Outcome.IMPOSSIBLE)
    # What a search has found to fail it need not visit again in its next turn.
    searches = {order: _Search(problem, capacity, order, deadline) for order in orders}
    spent, share = 0, 2 * len(problem) + 64
    while True:
        for order, search in searches.items():
            try:
                offsets = search.run(min(share, nodes - spent))
            except _Stop as stop:
                spent += search.nodes
                if stop.final or spent >= nodes:
                    return Found(Outcome.STOPPED, (), order, spent)
                continue
            spent += search.nodes
            if offsets is None:
                return Found(Outcome.IMPOSSIBLE, (), order, spent)
            return Found(Outcome.FITS, offsets, order, spent)
        share *= 2


class _Stop(Exception):
    """A limit was reached; ``final`` for that of time."""

    def __init__(self, final: bool) -> None:
        super().__init__()
        self.final = final


@dataclass(frozen=True)
class _Part:
    """Buffers to be solved apart from all others, in the order in which they are tried.

    The indices of ``members`` from ``starts[s]`` up to ``starts[s + 1]`` are section ``s``'s.
    """

    key: int
    ids: Array
    size: Array
    alignment: Array
    twin: Array  # index of the equal buffer before this one, or -1
    meets: Flags  # buffers x buffers: whether both are alive together
    spans: Flags  # buffers x sections: whether the buffer is alive
    bridges: Flags  # the same, in the next section too
    members: Array
    starts: Array
    totals: Array  # units still to place, per section
    cuts: Array  # buffers still to place that live in sections s and s + 1


@dataclass(frozen=True)
class _State:
    """What is still to do in a part: see the module text for ``floor``; ``_PLACED`` is done.

    ``lowest`` and ``last`` are the offset and index of what was placed last.
    """

    floor: Array
    totals: Array
    cuts: Array
    lowest: int
    last: int

    def key(self, part: _Part) -> bytes:
        """Distinguishes states that have different futures."""
        text = b"%d,%d,%d," % (part.key, self.lowest, self.last)
        return blake2b(text + self.floor.tobytes(), digest_size=16).digest()


#: A search in progress: yields searches that it depends on, gets their results, returns its own.
_Task = Generator[Any, bool, bool]


class _Search:
    """One depth-first search with one order."""

    def __init__(self, problem: Scaled, capacity: int, order: str, deadline: float) -> None:
        self.nodes = self._limit = 0
        self._deadline = deadline
        self._capacity = capacity
        self._order = order
        self._is_aligned = problem.is_aligned
        self._size = np.array(problem.size, np.int64)
        self._alignment = np.array(problem.alignment, np.int64)
        self._life = np.array(problem.life, np.int64)
        self._low = np.array(problem.low, np.int64)
        self._high = np.array(problem.high, np.int64)
        self._floor = np.zeros(len(problem), np.int64)
        self._offsets = np.zeros(len(problem), np.int64)
        self._failed: set[bytes] = set()
        self._parts: dict[bytes, _Part] = {}

    def run(self, nodes: int) -> tuple[int, ...] | None:
        """Offsets, or ``None`` when there are none. Raises _Stop at a limit; can be run again."""
        self.nodes, self._limit = 0, nodes
        self._floor[:] = 0
        everything = np.arange(len(self._size))
        # Generators on a stack of our own: they nest as deep as there are buffers.
        stack: list[_Task] = [self._all(self._separate(everything), 0)]
        result: bool | None = None
        while stack:
            try:
                child = stack[-1].send(result)  # type: ignore[arg-type]
            except StopIteration as done:
                stack.pop()
                result = bool(done.value)
                continue
            stack.append(child)
            result = None
        return tuple(int(offset) for offset in self._offsets) if result else None

    def _all(self, parts: list[_Part], lowest: int) -> _Task:
        """Solve all parts, from their floors in ``_floor``."""
        floors = [self._floor[part.ids] for part in parts]  # the search changes _floor
        for part, floor in zip(parts, floors, strict=True):
            fits = yield self._node(part, _State(floor, part.totals, part.cuts, lowest, -1))
            if not fits:
                return False
        return True

    def _node(self, part: _Part, state: _State) -> _Task:
        self._count()
        floor, totals = state.floor, state.totals
        if int(floor.min()) >= _PLACED:
            return True
        key = state.key(part)
        if key in self._failed:
            return False
        chosen = self._candidates(part, state)
        if len(chosen):
            tops = floor[chosen] + part.size[chosen]
            meets = part.meets[chosen]
            floors = np.maximum(floor, np.where(meets, tops[:, None], 0))
            if not self._is_aligned:
                floors = -(-floors // part.alignment) * part.alignment
            floors[np.arange(len(chosen)), chosen] = _PLACED
            left = totals - part.spans[chosen] * part.size[chosen][:, None]
            fits = self._may_fit(part, floor[chosen], floors, left)
            hats: Any = ((floors < _PLACED) & meets).any(axis=1)
            for row, index in enumerate(chosen.tolist()):
                if fits[row]:
                    offset = int(floor[index])
                    cuts = state.cuts - part.bridges[index]
                    after = _State(floors[row], left[row], cuts, offset, index)
                    found = yield self._descend(part, after)
                    if found:
                        self._offsets[part.ids[index]] = offset
                        return True
                if not hats[row]:
                    break
        if len(self._failed) < _MOST_STATES:
            self._failed.add(key)
        return False

    def _count(self) -> None:
        self.nodes += 1
        if self.nodes > self._limit:
            raise _Stop(final=False)
        if time.monotonic() > self._deadline:
            raise _Stop(final=True)

    def _candidates(self, part: _Part, state: _State) -> Array:
        """Indices of what may come next, in the order to try."""
        floor = state.floor
        # What sections still have to take goes on top of this offset or higher.
        highest = self._capacity - int(state.totals.max())
        dominated = int((floor + part.size).min())
        usable: Flags = (floor >= state.lowest) & (floor < min(highest + 1, dominated))
        if state.last >= 0:
            usable[: state.last + 1] &= floor[: state.last + 1] > state.lowest
        usable &= (part.twin < 0) | (floor[part.twin] >= _PLACED)
        chosen = np.nonzero(usable)[0]
        return chosen[np.argsort(floor[chosen], kind="stable")]

    def _may_fit(self, part: _Part, offset: Array, floors: Array, left: Array) -> Any:
        """Whether each section can still take what is left, for each candidate."""
        lowest = np.minimum.reduceat(floors[:, part.members], part.starts, axis=1)
        lowest = np.maximum(lowest, offset[:, None])
        return ((lowest + left <= self._capacity) | (left == 0)).all(axis=1)

    def _descend(self, part: _Part, state: _State) -> _Task:
        if len(state.cuts) == 0 or int(state.cuts.min()) > 0:
            return self._node(part, state)
        self._floor[part.ids] = state.floor
        parts = self._separate(part.ids[state.floor < _PLACED])
        return self._all(parts, state.lowest)

    def _separate(self, ids: Array) -> list[_Part]:
        """Independent parts of the buffers ``ids``, the fullest first."""
        ids = ids[np.lexsort((ids, self._low[ids]))]
        ends = np.maximum.accumulate(self._high[ids])
        borders = np.nonzero(self._low[ids][1:] >= ends[:-1])[0] + 1
        parts = [self._part(np.sort(item)) for item in np.split(ids, borders) if len(item)]
        return sorted(parts, key=lambda item: (-int(item.totals.max()), int(item.ids[0])))

    def _part(self, ids: Array) -> _Part:
        known = self._parts.get(ids.tobytes())
        if known is None:
            known = self._parts[ids.tobytes()] = self._built(ids, len(self._parts))
        return known

    def _built(self, ids: Array, key: int) -> _Part:
        start = int(self._low[ids].min())
        sections = np.arange(start, int(self._high[ids].max()))
        alive = (self._low[ids][:, None] <= sections) & (sections < self._high[ids][:, None])
        totals = self._size[ids] @ alive
        ids = ids[self._rank(ids, np.where(alive, totals, 0).max(axis=1))]
        low, high, size = self._low[ids], self._high[ids], self._size[ids]
        alive = (low[:, None] <= sections) & (sections < high[:, None])
        bridges = np.logical_and(alive[:, :-1], alive[:, 1:])
        rows, members = np.nonzero(alive.T)
        meets = (low[:, None] < high) & (low < high[:, None])
        np.fill_diagonal(meets, False)
        twin = np.full(len(ids), -1, np.int64)
        seen: dict[tuple[int, ...], int] = {}
        for index, kind in enumerate(zip(low, high, size, self._alignment[ids], strict=True)):
            twin[index] = seen.get(kind, -1)
            seen[kind] = index
        return _Part(
            key=key,
            ids=ids,
            size=size,
            alignment=self._alignment[ids],
            twin=twin,
            meets=meets,
            spans=alive,
            bridges=bridges,
            members=members,
            starts=np.searchsorted(rows, np.arange(len(sections))),
            totals=totals,
            cuts=bridges.sum(axis=0),
        )

    def _rank(self, ids: Array, fullest: Array) -> Array:
        criteria = {
            "A": self._size[ids] * self._life[ids],
            "T": fullest,
            "W": self._life[ids],
            "Z": self._size[ids],
        }
        return np.lexsort((ids, *(-criteria[letter] for letter in reversed(self._order))))
