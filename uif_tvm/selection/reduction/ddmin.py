"""Delta debugging: the smallest part of a list that still shows a fault.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of ``items``, in order, that ``fails`` and of which no single item can be left out.

    Args:
        items: known to fail as a whole.
        fails: must answer the same for the same list; never asked about an empty one.
    """
    kept = list(items)
    parts = 2
    while len(kept) >= 2:
        chunks = _split(kept, parts)
        smaller = next((chunk for chunk in chunks if fails(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        # With two parts, the rest of one is the other, which was just asked about.
        rests = (_without(chunks, index) for index in range(parts)) if parts > 2 else iter(())
        smaller = next((rest for rest in rests if fails(rest)), None)
        if smaller is not None:
            kept, parts = smaller, parts - 1
            continue
        if parts >= len(kept):
            break
        parts = min(len(kept), 2 * parts)
    return kept


def _split(items: list[T], parts: int) -> list[list[T]]:
    bounds = [len(items) * index // parts for index in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


def _without(chunks: list[list[T]], left_out: int) -> list[T]:
    return [item for index, chunk in enumerate(chunks) if index != left_out for item in chunk]
