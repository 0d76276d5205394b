"""Winograd's transforms as vector statements: ``L X L^T`` for tiles of vectors held in registers.

Points that come in pairs +-a share work: with ``e`` and ``o`` the parts of a row of ``B^T`` at
even and odd positions, the two rows are ``e + o`` and ``e - o``; the columns of ``A^T`` mirror
that. Coefficients are exact in float32, so one multiplication is one rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from uif_tvm.schedules.x86 import conv2d_tir as tir

from uif_tvm.kernels.winograd import Row, Transform

#: Element (row, column) of a tile, as a vector.
Element = Callable[[int, int], Any]


def input_rows(found: Transform, values: Sequence[Any], lanes: int) -> list[Any]:
    """``B^T x`` for a vector ``x`` of vectors."""
    out: list[Any] = [None] * found.size
    for first, second in pairs(found.points):
        row = found.bt[first]
        if second is None or not _mirrored(row, found.bt[second]):
            for index in (first,) if second is None else (first, second):
                out[index] = combine(found.bt[index], values, lanes)
            continue
        lead = next(factor for factor in reversed(row[1::2]) if factor)
        even = combine(row[::2], values[::2], lanes)
        odd = combine([factor / lead for factor in row[1::2]], values[1::2], lanes)
        out[first] = even + scaled(odd, lead, lanes)
        out[second] = even - scaled(odd, lead, lanes)
    out[found.size - 1] = combine(found.bt[-1], values, lanes)
    return out


def output_rows(found: Transform, values: Sequence[Any], lanes: int) -> list[Any]:
    """``A^T x`` for a vector ``x`` of vectors."""
    out = []
    for power, row in enumerate(found.at):
        terms, factors = [], []
        for first, second in pairs(found.points):
            if second is None:
                terms.append(values[first])
            elif power % 2 == 0:
                terms.append(values[first] + values[second])
            else:
                terms.append(values[first] - values[second])
            factors.append(row[first])
        out.append(combine((*factors, row[-1]), [*terms, values[-1]], lanes))
    return out


def _mirrored(row: Row, other: Row) -> bool:
    """Whether the rows differ by the sign of odd positions: so they do between points that all
    come in pairs, zero aside."""
    return all(
        a == (b if k % 2 == 0 else -b) for k, (a, b) in enumerate(zip(row, other, strict=True))
    )


def pairs(points: Row) -> list[tuple[int, int | None]]:
    """Indices of points and their negatives; a point without one stands alone."""
    found: list[tuple[int, int | None]] = []
    for index, point in enumerate(points):
        if point and -point in points[:index]:
            continue
        found.append((index, points.index(-point) if point and -point in points else None))
    return found


def combine(factors: Sequence[Fraction], values: Sequence[Any], lanes: int) -> Any:
    """``sum(factor * value)``, factors of 0 and 1 left out, terms with factor 1 first."""
    terms = [(f, v) for f, v in zip(factors, values, strict=True) if f]
    terms.sort(key=lambda term: term[0] != 1)
    (factor, value), *rest = terms
    total = scaled(value, factor, lanes)
    for factor, value in rest:
        total = total + scaled(value, factor, lanes)
    return total


def scaled(value: Any, factor: Fraction, lanes: int) -> Any:
    """``factor * value``."""
    from tvm import tirx

    if factor == 1:
        return value
    return value * tir.splat(tirx.const(float(factor), "float32"), lanes)


def both_sides(
    rows: Callable[[Transform, Sequence[Any], int], list[Any]],
    found: Transform,
    element: Element,
    store: Callable[[int, int, Any], Any],
    lanes: int,
) -> Any:
    """Statements for ``L X L^T``: ``L`` over the columns of ``X``, then over the rows of that.

    Args:
        rows: :func:`input_rows` or :func:`output_rows`.
        element: vectors of ``X``, ``n x n``.
        store: statement that takes element (row, column) of the result.
        lanes: elements of a vector.
    """
    size = found.size
    count = len(rows(found, [element(p, 0) for p in range(size)], lanes))
    half = tir.Registers("half", count * size, lanes, "float32")
    statements = half.alloc()
    for q in range(size):
        made = rows(found, [element(p, q) for p in range(size)], lanes)
        statements += [half.write(i * size + q, value) for i, value in enumerate(made)]
    for i in range(count):
        made = rows(found, [half.read(i * size + q) for q in range(size)], lanes)
        statements += [store(i, j, value) for j, value in enumerate(made)]
    return tir.seq(*statements)
