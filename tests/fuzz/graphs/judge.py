"""How far a result may lie from the unoptimised one, and whether it does.

The allowance of an element is what its own conditioning allows: the largest change that a few
noisy runs of the graph show there (:mod:`evaluate`), and at least the median change over the
tensor, times a factor for the unlucky case. So a sum of a thousand terms may differ more than a
product of two, a cancelled difference more than its operands, and a copy not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.fuzz.graphs.evaluate import EPS, Array, Refused, simulated
from tests.fuzz.graphs.generate import Graph, given

#: Noisy runs that the allowance is taken from, at first, and before anything is called wrong.
RUNS, CERTAIN_RUNS = 5, 60
#: An honest reordering of arithmetic stays below this many times the change seen.
FACTOR = 10.0
#: Level 3 may choose algorithms that round more, such as Winograd's.
FACTOR_LEVEL_3 = 40.0


@dataclass(frozen=True)
class Expected:
    """What an output should be.

    Args:
        name: of the output.
        array: by the independent evaluation; floats as float32.
        change: how far noise of a few roundings moves each element.
    """

    name: str
    array: Array
    change: Array


def expected(graph: Graph, feed: dict[str, Array], runs: int = RUNS) -> list[Expected]:
    """The outputs by node-wise evaluation, with what noise does to them."""
    maker = graph.maker
    known = given(maker, feed)
    clean = maker.evaluator.graph(maker.nodes, known, maker.dtypes)
    changes: dict[str, Array] = {}
    for seed in range(runs):
        noisy = maker.evaluator.graph(maker.nodes, known, maker.dtypes, seed)
        for value in graph.outputs:
            if value.is_float:
                with np.errstate(all="ignore"):
                    moved = np.abs(noisy[value.name] - clean[value.name]).astype(np.float64)
                changes[value.name] = np.fmax(changes.get(value.name, 0.0), np.nan_to_num(moved))
    found = []
    for value in graph.outputs:
        change = changes.get(value.name, np.zeros(clean[value.name].shape))
        if _only_float64(graph):
            change = change * (EPS["float64"] / EPS["float32"])
        found.append(Expected(value.name, clean[value.name], change))
    return found


def _only_float64(graph: Graph) -> bool:
    """Whether noise, simulated in float32, stands for that of float64 all through."""
    return {dtype for dtype in graph.maker.dtypes.values() if dtype in EPS} == {"float64"}


def allowance(want: Array, change: Array, level: int) -> Array:
    """Absolute difference that each element of a float result may show."""
    factor = FACTOR_LEVEL_3 if level == 3 else FACTOR
    typical = float(np.median(change)) if change.size else 0.0
    if not typical and change.size and change.any():
        typical = float(np.median(change[change > 0]))  # most elements are zeros or saturated
    allowed: Array = factor * np.maximum(change, typical)
    if typical:
        spacing = np.abs(np.nan_to_num(want.astype(np.float64), posinf=0, neginf=0))
        allowed = allowed + 2 * EPS[want.dtype.name] * spacing
    return allowed


def differs(have: Array, want: Array, change: Array, level: int) -> str:
    """What is wrong with ``have``; empty where nothing is."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype}{list(have.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.name not in EPS:
        wrong = have != want
        return f"{int(wrong.sum())} of {want.size} values differ" if wrong.any() else ""
    left, right = have.astype(np.float64), want.astype(np.float64)
    if (np.isnan(left) != np.isnan(right)).any():
        return f"{int(np.isnan(left).sum())} NaN instead of {int(np.isnan(right).sum())}"
    infinite = np.isinf(left) | np.isinf(right)
    if (left[infinite] != right[infinite]).any():
        return "infinities differ"
    with np.errstate(invalid="ignore"):
        apart = np.where(infinite | np.isnan(right), 0.0, np.abs(left - right))
    allowed = allowance(want, change, level)
    wrong = apart > allowed
    if not wrong.any():
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.unravel_index(np.argmax(np.where(wrong, apart / allowed, 0.0)), apart.shape)
    return (
        f"{int(wrong.sum())} of {want.size} values; at {[int(i) for i in worst]} "
        f"{left[worst]:.9g} instead of {right[worst]:.9g}, allowed {allowed[worst]:.3g}"
    )


def departs(have: Array, expectation: Expected) -> str:
    """Whether level 0 departs from the independent evaluation beyond conditioning."""
    if have.dtype.name not in EPS:
        return differs(have, expectation.array.astype(have.dtype), expectation.change, 0)
    want, got = expectation.array, simulated(have)
    dtype = have.dtype.name
    change = expectation.change
    if dtype == "float64":  # the evaluation itself has float32's roundings
        change = np.maximum(change, expectation.change * (EPS["float32"] / EPS["float64"]))
    unit = max(EPS[dtype], EPS["float32"])
    change = change + unit * np.abs(np.nan_to_num(want, posinf=0, neginf=0)) * (change > 0)
    return differs(got, want, 2 * change, 3)


__all__ = ["Expected", "Refused", "allowance", "departs", "differs", "expected"]
