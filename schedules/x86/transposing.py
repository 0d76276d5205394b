"""Squares of vectors transposed in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uif_tvm.schedules.x86.conv2d_tir import Registers, seq


def transposed(lanes: int, load: Callable[[int], Any], store: Callable[[int, Any], Any]) -> Any:
    """``store(j, column j)`` of the square whose row ``i`` is ``load(i)``, float32.

    Stage by stage, distance ``h`` = 1, 2, 4 ...: rows ``i`` and ``i + h`` exchange the blocks of
    ``h`` elements that lie off the diagonal: log2(lanes) shuffles an output vector.
    """
    current = Registers("row", lanes, lanes, "float32")
    statements = [*current.alloc(), *[current.write(i, load(i)) for i in range(lanes)]]
    distance = 1
    while distance < lanes:
        following = Registers("row", lanes, lanes, "float32")
        statements += following.alloc()
        for i in range(lanes):
            if i & distance:
                continue
            low, high = current.read(i), current.read(i + distance)
            first, second = exchange(lanes, distance)
            statements.append(following.write(i, shuffle(low, high, first)))
            statements.append(following.write(i + distance, shuffle(low, high, second)))
        current = following
        distance *= 2
    return seq(*statements, *[store(j, current.read(j)) for j in range(lanes)])


def exchange(lanes: int, distance: int) -> tuple[list[int], list[int]]:
    """Which of the ``2 lanes`` elements of two rows either row holds after the exchange."""
    off = [bool(lane & distance) for lane in range(lanes)]
    first = [lanes + lane - distance if moved else lane for lane, moved in enumerate(off)]
    second = [lanes + lane if moved else lane + distance for lane, moved in enumerate(off)]
    return first, second


def shuffle(low: Any, high: Any, order: list[int]) -> Any:
    """Elements of two vectors, numbered through, in the given order."""
    from tvm import tirx

    return tirx.Shuffle([low, high], [tirx.const(i, "int32") for i in order])
