"""Scaled dot-product attention from two matmuls around a softmax.

    softmax(q k^T s + m) v                  ->  attention(q, k, v, m, scale=s)
    softmax(where(m, q k^T s, -inf)) v      ->  attention(q, k, v, m, scale=s)
    softmax(c tanh(q k^T s / c) + m) v      ->  attention(q, k, v, m, scale=s, softcap=c)

The scale may stand on the queries, the keys, the scores, or on several of them; a constant mask
that hides what comes later becomes ``causal``. Around the softmax, or its product with ``v``, may
stand the guard of queries that see no key (``where(isnan(p), 0, p)``): the operator gives zeros
there. Without a guard, such queries are NaN in the graph, so the mask must be known to leave
every query a key. Repeated keys and values are left to who lowers the operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm import relax
from uif_tvm.relay_passes.recover_algebra import product
from uif_tvm.relay_passes.recover_graph import Emit, Found, Graph, Near, RecoverPass, widened
from uif_tvm.relay_passes.recover_mask import Mask, added, blind, chosen, tells_blind

from uif_tvm.ops import infer
from uif_tvm.relax_util import op_name
from uif_tvm.standard_ops import type_of

if TYPE_CHECKING:
    from tvm.ir import Call

_DEEPEST = 8


@dataclass(frozen=True)
class Scores:
    """``scale query keys + mask``, softcapped before the mask; ``keys`` are transposed."""

    query: Any
    keys: Any
    scale: float
    nodes: frozenset[Any]
    softcap: float = 0.0
    mask: Mask | None = None


class RecoverAttention(RecoverPass):
    """Form attention."""

    name = "recover-attention"
    roots = frozenset({"relax.matmul"})

    def match(self, graph: Graph, var: Any, call: Call) -> Found | Near | None:
        """See the module text."""
        weights, nodes = _uncast(graph, call.args[0])
        weights, guard = _unguarded(graph, weights)
        softmax = graph.call(weights, "relax.nn.softmax")
        if softmax is None or int(softmax.attrs.axis) not in (-1, weights.ty.ndim - 1):
            return None
        inner, more = _uncast(graph, softmax.args[0])
        scores = _scores(graph, inner, _DEEPEST)
        if not isinstance(scores, Scores):
            return scores
        nodes = nodes | guard | more | scores.nodes | {var, weights}
        scores = replace(scores, nodes=frozenset(nodes))
        return _attention(graph, var, call.args[1], scores, bool(guard))


def _uncast(graph: Graph, expr: Any) -> tuple[Any, set[Any]]:
    """``expr`` before casts between floats; the operator's sums are wide whatever its type."""
    nodes: set[Any] = set()
    expr = graph.resolve(expr)
    while (call := graph.call(expr, "relax.astype")) is not None:
        if "float" not in str(call.args[0].ty.dtype):
            break
        nodes.add(expr)
        expr = graph.resolve(call.args[0])
    return expr, nodes


def _unguarded(graph: Graph, expr: Any) -> tuple[Any, set[Any]]:
    """``p`` of ``where(isnan(p), 0, p)`` and the guard's variables."""
    call = graph.call(expr, "relax.where")
    if call is None or graph.scalar(call.args[1]) != 0.0:
        return expr, set()
    test = graph.call(call.args[0], "relax.isnan")
    value = graph.resolve(call.args[2])
    if test is None or graph.resolve(test.args[0]) != value:
        return expr, set()
    return value, {graph.resolve(expr), graph.resolve(call.args[0])}


def _scores(graph: Graph, expr: Any, depth: int) -> Scores | Near | None:
    """What the softmax is taken of."""
    call = graph.call(expr)
    if call is None or not depth:
        return None
    name, expr = op_name(call), graph.resolve(expr)
    if name == "relax.matmul":
        query, keys = product(graph, call.args[0]), product(graph, call.args[1])
        left, right = query.one(1.0), keys.one(1.0)
        if left is None or right is None:
            left, right, scale = call.args[0], call.args[1], 1.0
            return Scores(left, right, scale, frozenset({expr}))
        nodes = frozenset(query.nodes | keys.nodes | {expr})
        return Scores(left, right, query.coefficient * keys.coefficient, nodes)
    if name == "relax.astype":
        inner, casts = _uncast(graph, expr)
        return _with(_scores(graph, inner, depth - 1), casts) if casts else None
    if name in ("relax.multiply", "relax.divide"):
        return _scaled(graph, expr, depth)
    if name == "relax.add":
        for at in (0, 1):
            found = _scores(graph, call.args[at], depth - 1)
            if found is not None:
                mask = added(graph, call.args[1 - at])
                return _masked(found, mask, {expr})
        return None
    if name == "relax.where":
        for at in (1, 2):
            found = _scores(graph, call.args[at], depth - 1)
            if found is not None:
                return _masked(found, chosen(graph, call, at == 1), {expr})
    return None


def _with(found: Scores | Near | None, nodes: set[Any]) -> Scores | Near | None:
    return replace(found, nodes=found.nodes | nodes) if isinstance(found, Scores) else found


def _scaled(graph: Graph, expr: Any, depth: int) -> Scores | Near | None:
    parts = product(graph, expr)
    inner = parts.one(1.0)
    if inner is None:
        return None
    curve = graph.call(inner, "relax.tanh")
    found = _scores(graph, inner if curve is None else curve.args[0], depth - 1)
    if not isinstance(found, Scores):
        return found
    if found.mask is not None:
        return Near("scores are scaled after the mask")
    found = replace(found, nodes=found.nodes | parts.nodes | {graph.resolve(expr)})
    if curve is None:
        return replace(
            found, scale=found.scale * parts.coefficient, softcap=found.softcap * parts.coefficient
        )
    if found.softcap or parts.coefficient <= 0:
        return Near("scores are limited twice")
    cap = parts.coefficient
    return replace(
        found, scale=found.scale * cap, softcap=cap, nodes=found.nodes | {graph.resolve(inner)}
    )


def _masked(found: Scores | Near, mask: Mask | Near, nodes: set[Any]) -> Scores | Near:
    if isinstance(found, Near):
        return found
    if isinstance(mask, Near):
        return mask
    if found.mask is not None:
        return Near("two masks are applied one after the other")
    return replace(found, mask=mask, nodes=found.nodes | nodes | mask.nodes)


def _attention(graph: Graph, var: Any, value: Any, scores: Scores, guarded: bool) -> Found | Near:
    """The operator, its operands brought to ``[batch, heads, positions, features]``."""
    keys, factor, nodes = _transposed(graph, scores.keys)
    scale = scores.scale * factor
    if not math.isfinite(scale) or scale == 0:
        return Near(f"scale {scale:g} is no finite number other than 0")
    last, inner = var, scores.nodes | nodes
    mask = scores.mask
    hidden = _hidden_guard(graph, last, mask)
    if hidden is not None:
        last, inner = hidden[0], inner | hidden[1]
    elif not guarded and mask is not None:
        reason = blind(graph, mask)
        if reason:
            return Near(reason)
    query, keys, value = (graph.typed(item) for item in (scores.query, keys, value))
    narrow = _narrow(graph, last, (query, keys, value))
    if narrow is not None:
        last, (query, keys, value), more = narrow
        inner = inner | more
    kinds = [type_of(item) for item in (query, keys, value)]
    ranks = {kind.rank for kind in kinds}
    if ranks - {3, 4} or len(ranks) > 1 or len({kind.dtype for kind in kinds}) > 1:
        return Near(f"operands {', '.join(map(str, kinds))} are not alike, or not of rank 3 or 4")
    if not all(map(infer.equal, kinds[1].shape[:-1], kinds[2].shape[:-1])) or not all(
        map(infer.equal, kinds[0].shape[:-2], kinds[1].shape[:-2])
    ):
        return Near("heads are broadcast")
    flat = ranks == {3}
    operands = [_spread(item) if flat else item for item in (query, keys, value)]
    attrs: dict[str, Any] = {"scale": scale, "softcap": scores.softcap}
    if mask is not None:
        shown, extra = mask.shown(kinds[0].shape[-2], kinds[1].shape[-2])
        attrs |= extra
        if shown is not None:
            operands.append(_spread(graph.typed(shown)) if flat and shown.ty.ndim == 3 else shown)

    def squeeze(emit: Emit, result: Any) -> Any:
        return relax.op.squeeze(result, 0)

    return Found(
        last,
        frozenset(inner | {last}),
        "attention",
        tuple(operands),
        attrs,
        squeeze if flat else None,
    )


def _spread(expr: Any) -> Any:
    return relax.op.expand_dims(expr, 0)


def _transposed(graph: Graph, keys: Any) -> tuple[Any, float, set[Any]]:
    """(keys as ``[..., positions, features]``, their factor, nodes).

    Two transpositions are one or none.
    """
    call = graph.call(keys, "relax.permute_dims")
    rank = keys.ty.ndim
    swap = [*range(rank - 2), rank - 1, rank - 2]
    if call is None:
        return relax.op.permute_dims(keys, swap), 1.0, set()
    given = call.attrs.axes
    axes = [int(a) % rank for a in given] if given is not None else list(range(rank))[::-1]
    axes = [axes[at] for at in swap]
    source, nodes = graph.resolve(call.args[0]), {graph.resolve(keys)}
    factor, scaled = 1.0, product(graph, source)
    inside = scaled.one(1.0)
    if inside is not None and graph.single(source):
        source, factor, nodes = inside, scaled.coefficient, nodes | scaled.nodes
    if axes == list(range(rank)):
        return source, factor, nodes
    return relax.op.permute_dims(source, axes), factor, nodes


def _hidden_guard(graph: Graph, var: Any, mask: Mask | None) -> tuple[Any, set[Any]] | None:
    """``where(query sees no key, 0, y)`` behind the product."""
    user = graph.user(var)
    if user is None or mask is None or op_name(user[1]) != "relax.where":
        return None
    test, zero, value = user[1].args
    if graph.scalar(zero) != 0.0 or graph.resolve(value) != var:
        return None
    # What tells it follows from the mask alone, and may serve many layers.
    return (user[0], {user[0]}) if tells_blind(graph, test, mask) else None


def _narrow(
    graph: Graph, last: Any, operands: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], set[Any]] | None:
    """The operands in the 16-bit type that all were cast from, if the result is cast back."""
    sources = [widened(graph, item) if isinstance(item, relax.Var) else None for item in operands]
    user = graph.user(last)
    narrow = tuple(item for item in sources if item is not None)
    if len(narrow) < len(sources) or user is None or op_name(user[1]) != "relax.astype":
        return None
    if {str(item.ty.dtype) for item in narrow} != {str(user[0].ty.dtype)}:
        return None
    return user[0], narrow, {user[0], *map(graph.resolve, operands)}


PASS = RecoverAttention()
