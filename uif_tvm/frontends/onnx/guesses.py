"""Branches that symbolic dimensions decide, taken one way at import and checked at run time.

``If(dim == 1)`` around a Squeeze, as exporters write ``x.squeeze(axis)``, yields tensors of
different rank, so that one way has to be taken. The example's extents say which; where what
follows then does not fit (it did not run on that example), the other way is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from uif_tvm.errors import ImportModelError

T = TypeVar("T")

MAX_ATTEMPTS = 32
"""Ways through one graph that are tried."""


@dataclass(frozen=True)
class _Taken:
    way: bool
    flipped: bool


@dataclass
class Guesses:
    """Which way the undecided branches of the graph under conversion go.

    Args:
        extents: variable of a dimension -> its extent in the example.
    """

    extents: Mapping[Any, int] = field(default_factory=dict)
    _plan: list[_Taken] = field(default_factory=list)
    _taken: list[_Taken] = field(default_factory=list)

    def choose(self, condition: Any) -> bool:
        """The way to take where the dimensions decide ``condition``."""
        at = len(self._taken)
        taken = (
            self._plan[at] if at < len(self._plan) else _Taken(self._by_example(condition), False)
        )
        self._taken.append(taken)
        return taken.way

    def _by_example(self, condition: Any) -> bool:
        from tvm import sym, tirx

        analyzer = sym.Analyzer()
        for variable, extent in self.extents.items():
            analyzer.bind(variable, tirx.const(extent, "int64"))
        return bool(analyzer.can_prove(condition))

    def retrying(self, attempt: Callable[[], T]) -> T:
        """The first result of ``attempt`` over the ways that its branches can go.

        Raises:
            ImportModelError: of the first try, when none succeeds.
        """
        plan: list[_Taken] = []
        faults: list[ImportModelError] = []
        outer = self._plan, self._taken
        while True:
            self._plan, self._taken = plan, []
            try:
                return attempt()
            except ImportModelError as error:
                faults.append(error)
                following = _next(self._taken)
            finally:
                self._plan, self._taken = outer
            if following is None or len(faults) == MAX_ATTEMPTS:
                raise faults[0]
            plan = following


def _next(taken: list[_Taken]) -> list[_Taken] | None:
    """The same ways with the last one that was not tried the other way turned; ``None`` if none."""
    for at in range(len(taken) - 1, -1, -1):
        if not taken[at].flipped:
            return [*taken[:at], _Taken(not taken[at].way, True)]
    return None
