"""When a parallel region pays, and how to cut loops for vectors.

Opening and closing a parallel region costs a few microseconds on a warm thread pool; a kernel
shorter than that runs faster on the calling thread. Work is counted in *vector steps*: one vector
load, store or arithmetic instruction each, roughly a third of a nanosecond on current cores.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

#: Vector steps below which a parallel region costs more than it saves (about 5 microseconds).
PARALLEL_MIN_STEPS = 16384


def parallel_pays(steps: float, cores: int) -> bool:
    """Whether ``steps`` vector steps are worth a parallel region on ``cores`` cores."""
    return cores > 1 and steps >= PARALLEL_MIN_STEPS


def fuse_all(sch: Schedule, loops: list[Any]) -> Any:
    """Fuse adjacent ``loops`` (at least one) into one."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def fuse_until(extents: list[int], wanted: int) -> int:
    """How many leading loops to fuse so that the product of extents reaches ``wanted``.

    Returns:
        a count between 0 (no loop at all) and ``len(extents)``; the smallest that suffices.
    """
    for count in range(1, len(extents) + 1):
        if prod(extents[:count]) >= wanted:
            return count
    return len(extents)


def vector_factor(extent: int, lanes: int, at_most: int | None = None) -> int:
    """The best vector length for a loop of ``extent``: divides it, and is lane-friendly.

    Prefers ``lanes``, then halves of it down to 4, each only when it divides ``extent``; 1 when
    nothing does (the code generator's own loop vectoriser takes the loop then).
    """
    width = min(lanes, at_most or lanes)
    while width >= 4:
        if extent % width == 0:
            return width
        width //= 2
    return 1
