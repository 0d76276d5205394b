"""Rotary positions from their formulas, tables ``cos`` and ``sin`` over ``r`` angles.

    x C + concat(-x[r:], x[:r]) S,                  C = concat(cos, cos)  ->  rope(x, cos, sin)
    x C + pairs(-x[1::2], x[0::2]) S,               C = pairs(cos, cos)   ->  rope(x, cos, sin), *
    concat(x[:r] cos - x[r:] sin, x[r:] cos + x[:r] sin)                  ->  rope(x, cos, sin)
    pairs(x[0::2] cos - x[1::2] sin, x[1::2] cos + x[0::2] sin)           ->  rope(x, cos, sin), *
    concat(rope(x[:2 r]), x[2 r:])                                        ->  rope(x, cos, sin)

Slices are of the features, the last axis; ``pairs(a, b)`` sets neighbours, ``a[0], b[0], a[1] ..``,
and ``*`` stands for ``interleaved``. Tables of twice the width are halved, which asks for a proof
that their halves are equal: their values, or how they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from uif_tvm.relay_passes import common_subexpr, recover_algebra
from uif_tvm.relay_passes.recover_graph import Found, Graph, Near, RecoverPass
from uif_tvm.relay_passes.recover_lanes import Lanes, extents, features, lanes, paired
from uif_tvm.relay_passes.recover_table import Made, halved, placed, shaped

from uif_tvm.ops import infer
from uif_tvm.relax_util import op_name

if TYPE_CHECKING:
    from tvm.ir import Call

    from uif_tvm.compiler.context import CompileContext


@dataclass(frozen=True)
class Turn:
    """Pairs of features turned by an angle each.

    Args:
        first, second: the features of a pair, in ``x``.
        interleaved: pairs are neighbours, in ``x`` and in the result.
        tables: cosine and sine, as the graph has them.
        wide: the tables have both features of a pair.
        nodes: variables that were taken apart.
    """

    first: Lanes
    second: Lanes
    interleaved: bool
    tables: tuple[Any, Any]
    wide: bool
    nodes: frozenset[Any]


class RecoverRope(RecoverPass):
    """Form rotary positions."""

    name = "recover-rope"
    roots = frozenset({"relax.add", "relax.subtract", "relax.concat", "relax.reshape"})

    def match(self, graph: Graph, var: Any, call: Call) -> Found | Near | None:
        """See the module text."""
        if "float" not in str(getattr(var.ty, "dtype", "")) or features(var) is None:
            return None
        summed = op_name(call) in ("relax.add", "relax.subtract")
        near: Near | None = None
        for turn in (_summed if summed else _joined)(graph, var):
            answer = turn if isinstance(turn, Near) else _whole(graph, var, turn)
            if isinstance(answer, Found):
                return answer
            near = near or answer
        return near

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text; tables that were halved for several readers are computed once."""
        after = super().apply(mod, ctx)
        return after if after is mod else common_subexpr.PASS.apply(after, ctx)


def _terms(graph: Graph, expr: Any) -> tuple[list[tuple[float, Any, Any]], set[Any]] | None:
    """([(sign, factor, factor)], variables) of a sum of two products."""
    parts = recover_algebra.total(graph, expr)
    calls = [(sign, term, graph.call(term, "relax.multiply")) for sign, term in parts.terms]
    if parts.constant or len(calls) != 2:
        return None
    found = [
        (sign, graph.resolve(call.args[0]), graph.resolve(call.args[1]))
        for sign, _, call in calls
        if call is not None
    ]
    return (found, parts.nodes | {term for _, term, _ in calls}) if len(found) == 2 else None


def _orders(terms: list[tuple[float, Any, Any]]) -> Iterator[list[tuple[float, Any, Any]]]:
    """The same terms, in any order of terms and of factors."""
    for chosen in permutations(terms):
        for swaps in product((False, True), repeat=2):
            yield [(s, b, a) if swap else (s, a, b)
                   for (s, a, b), swap in zip(chosen, swaps, strict=True)]  # fmt: skip


def _summed(graph: Graph, var: Any) -> Iterator[Turn | Near]:
    """Readings of ``x C + turned(x) S``."""
    found = _terms(graph, var)
    if found is None:
        return
    terms, nodes = found
    for (plus, x, cos), (sign, turned, sin) in _orders(terms):
        pair = paired(graph, turned)
        if pair is None:
            continue
        left, right = (_signed(graph, part) for part in pair.parts)
        if left is None or right is None:
            continue
        whole, second, first = lanes(graph, x), left[1], right[1]
        span = _span(first, second, pair.interleaved)
        if span is None or whole is None or not span.same(whole):
            continue
        signs = plus, sign * left[0], sign * right[0]
        if signs != (1.0, -1.0, 1.0):
            yield Near(f"signs {_spelled(signs)} of x, and of the features that change places, "
                       "where rope has + - +")  # fmt: skip
            continue
        inner = nodes | pair.nodes | left[2] | right[2] | {turned}
        yield Turn(first, second, pair.interleaved, (cos, sin), True, frozenset(inner))


def _signed(graph: Graph, expr: Any) -> tuple[float, Lanes, set[Any]] | None:
    """(sign, features, variables) of ``+-x[features]``."""
    found = recover_algebra.product(graph, expr)
    part = found.one(1.0)
    if part is None or abs(found.coefficient) != 1.0:
        return None
    read = lanes(graph, part)
    return None if read is None else (found.coefficient, read, found.nodes)


def _spelled(signs: tuple[float, ...]) -> str:
    return " ".join({1.0: "+", -1.0: "-"}.get(sign, f"{sign:.7g}") for sign in signs)


def _joined(graph: Graph, var: Any) -> Iterator[Turn | Near]:
    """Readings of ``concat(x1 c - x2 s, x2 c + x1 s)``."""
    pair = paired(graph, var)
    sums = None if pair is None else [_terms(graph, part) for part in pair.parts]
    if pair is None or sums is None or sums[0] is None or sums[1] is None:
        return
    (one, nodes), (two, more) = sums[0], sums[1]
    inner = nodes | more | pair.nodes | {graph.resolve(part) for part in pair.parts}
    for (plus, x1, cos), (minus, x2, sin) in _orders(one):
        first, second = lanes(graph, x1), lanes(graph, x2)
        if first is None or second is None or (plus, minus) != (1.0, -1.0):
            continue
        spans = [_span(first, second, interleaved) for interleaved in (False, True)]
        wanted = [(1.0, x2, cos), (1.0, x1, sin)]
        if spans == [None, None] or not any(_alike(terms, wanted) for terms in _orders(two)):
            continue
        if spans[pair.interleaved] is None:
            have, want = ("neighbours", "halves") if spans[1] else ("halves", "neighbours")
            yield Near(f"pairs are {have} in x and {want} in the result")
            continue
        yield Turn(first, second, pair.interleaved, (cos, sin), False, frozenset(inner))


def _alike(terms: list[tuple[float, Any, Any]], wanted: list[tuple[float, Any, Any]]) -> bool:
    return all(
        sign == other and a.same_as(x) and b.same_as(y)
        for (sign, a, b), (other, x, y) in zip(terms, wanted, strict=True)
    )


def _span(first: Lanes, second: Lanes, interleaved: bool) -> Lanes | None:
    """The features that are pairs of ``first`` and ``second``."""
    step, apart = (2, 1) if interleaved else (1, first.count)
    wanted = replace(first, first=first.first + apart)
    if first.step != step or not second.same(wanted):
        return None
    return replace(first, step=1, count=2 * first.count)


def _whole(graph: Graph, var: Any, turn: Turn) -> Found | Near | None:
    """The operator, over all features where the others pass."""
    span = _span(turn.first, turn.second, turn.interleaved)
    if span is None:
        return None
    root, x, nodes = var, _operand(graph, span), set(turn.nodes)
    passed = _passing(graph, var, span)
    if passed is not None:
        root, x, rest = passed
        nodes |= rest.above(x)
    nodes |= turn.first.above(x) | turn.second.above(x) | {root, var}
    if x.ty.ndim != 4:
        return Near(f"x has {x.ty.ndim} axes, where rope has batch, heads, positions, features")
    made = Made(graph)
    tables = _tables(graph, turn, x, made)
    if isinstance(tables, Near):
        return tables
    attrs = {"interleaved": turn.interleaved}
    return Found(
        root, frozenset(nodes - {x}), "rope", (x, *tables), attrs, before=tuple(made.bindings)
    )


def _tables(graph: Graph, turn: Turn, x: Any, made: Made) -> tuple[Any, Any] | Near:
    """Cosine and sine as the operator takes them, or what is in the way."""
    angles = turn.first.count
    found, rows = [], []
    for name, table in zip(("cos", "sin"), turn.tables, strict=True):
        place = placed(table, extents(x), 2 * angles if turn.wide else angles)
        if isinstance(place, str):
            return Near(f"{name} {place}")
        half = halved(graph, table, turn.interleaved, made) if turn.wide else graph.resolve(table)
        if isinstance(half, str):
            return Near(f"{name} {half}")
        rows.append(place[0])
        found.append(shaped(graph, half, [*place, angles], made))
    if not infer.equal(*rows):
        return Near(f"cos has {rows[0]} samples, sin has {rows[1]}")
    return found[0], found[1]


def _operand(graph: Graph, span: Lanes) -> Any:
    """The tensor that has these features and no others: one of the graph, or a new slice."""
    for at in span.chain:
        own = lanes(graph, at)
        if own is not None and own.same(span):
            return at
    end = span.first + span.count
    last = span.tensor.ty.ndim - 1
    return graph.typed(relax.op.strided_slice(span.tensor, [last], [span.first], [end]))


def _passing(graph: Graph, var: Any, span: Lanes) -> tuple[Any, Any, Lanes] | None:
    """(result, x, other features) where the features after those that turn are set behind them."""
    user = graph.user(var)
    if user is None or op_name(user[1]) != "relax.concat" or span.first:
        return None
    parts = list(getattr(user[1].args[0], "fields", ()))
    axis = int(user[1].attrs.axis)
    if len(parts) != 2 or axis not in (-1, var.ty.ndim - 1) or graph.resolve(parts[0]) != var:
        return None
    rest = lanes(graph, parts[1])
    width = features(span.tensor)
    if rest is None or width is None:
        return None
    wanted = replace(span, first=span.count, count=width - span.count)
    return (user[0], span.tensor, rest) if rest.same(wanted) else None


PASS = RecoverRope()
