"""Tables of angles that have each of them twice, as tables that have it once.

concat(f, f), pairs(f, f), repeat(f, 2)          ->  f
cos(t), sin(t), s t, views and casts of such     ->  the same of what ``t`` becomes
a constant with equal halves                     ->  its first half
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call
from uif_tvm.relay_passes.recover_graph import Graph
from uif_tvm.relay_passes.recover_lanes import extents, features, paired

from uif_tvm.ops import infer
from uif_tvm.relax_util import make_constant, op_name
from uif_tvm.standard_ops import read

#: Operators that work on each element alone.
_UNARY = ("relax.cos", "relax.sin", "relax.negative", "relax.astype")
_BINARY = ("relax.multiply", "relax.divide", "relax.add", "relax.subtract")
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")


def placed(table: Any, x: Sequence[Any], width: int) -> list[Any] | str:
    """[batch or 1, positions] of a table that stands against ``x``, or why it does not.

    Args:
        table: of any rank up to 4.
        x: extents of batch, heads, positions, features.
        width: features that the table should have.
    """
    values = extents(table)
    if len(values) not in (1, 2, 3, 4):
        return f"is {table.ty}, whose extents do not match x"
    batch, heads, positions, features_ = [1] * (4 - len(values)) + values
    if not infer.equal(features_, width):
        return f"has {features_} features, where {width} turn"
    if not infer.is_one(heads):
        if infer.is_one(positions):
            return "runs over axis 1 of x: positions stand before heads"
        return f"differs per head: {heads} of them"
    if not infer.equal(positions, x[2]):
        return f"has {positions} positions, x has {x[2]}"
    if not infer.is_one(batch) and not infer.equal(batch, x[0]):
        return f"has {batch} samples, x has {x[0]}"
    return [batch, positions]


class Made:
    """Values computed for a rewrite: bindings that are not in the graph yet."""

    def __init__(self, graph: Graph) -> None:
        self.bindings: list[Any] = []
        self._graph = graph

    def emit(self, call: Call, source: Any) -> Any:
        """A variable that ``call`` computes, with the name of the value it stands for."""
        call = self._graph.typed(call)
        name = source.name if isinstance(source, relax.Var) else "table"
        var = relax.DataflowVar(name, call.ty)
        self.bindings.append(relax.VarBinding(var, call))
        return var


def halved(graph: Graph, table: Any, interleaved: bool, made: Made) -> Any:
    """The table with each angle once, or as text why it is not known to have each twice."""
    expr = graph.resolve(table)
    array = graph.constant(expr)
    if array is not None:
        return _constant(array, interleaved)
    call = graph.call(expr)
    name = op_name(call) if call is not None else None
    if call is not None:
        pair = paired(graph, expr)
        if pair is not None and pair.interleaved == interleaved:
            if pair.parts[0].same_as(pair.parts[1]):
                return pair.parts[0]
            return f"has two different halves, {_name(pair.parts[0])} and {_name(pair.parts[1])}"
        repeated = _repeated(graph, expr, call) if interleaved else None
        if repeated is not None:
            return repeated
        found = _through(graph, expr, call, interleaved, made)
        if found is not None:
            return found
    made_by = f"made by {name}" if name is not None else "an input"
    return f"is not known to have equal halves: {_name(expr)} is {made_by}"


def shaped(graph: Graph, table: Any, shape: list[Any], made: Made) -> Any:
    """The table in the operator's shape; constants at once."""
    array = graph.constant(table)
    if array is not None:
        return make_constant(np.ascontiguousarray(array.reshape(shape)))
    own = extents(table)
    alike = len(own) == len(shape) and all(map(infer.equal, own, shape))
    return table if alike else made.emit(relax.op.reshape(table, shape), table)


def _name(expr: Any) -> str:
    return expr.name if isinstance(expr, relax.Var) else "a constant"


def _constant(array: Any, interleaved: bool) -> Any:
    if not array.ndim or array.shape[-1] % 2:
        return f"has {array.shape[-1] if array.ndim else 'no'} features, an odd number"
    half = array.shape[-1] // 2
    if interleaved:
        one, two = array[..., 0::2], array[..., 1::2]
    else:
        one, two = array[..., :half], array[..., half:]
    if not np.array_equal(one, two):
        apart = float(np.abs(one.astype("float64") - two.astype("float64")).max())
        return f"has halves that differ by up to {apart:.3g}"
    return make_constant(np.ascontiguousarray(one))


def _repeated(graph: Graph, expr: Any, call: Call) -> Any:
    """``f`` of ``repeat(f, 2)`` along the last axis, also spelled by views."""
    found = read(call)
    if op_name(call) in ("uif.repeat", "relax.repeat"):
        if found is None or found[2].get("repeats") != 2 or found[2].get("axis") is None:
            return None
        last = found[2]["axis"] % expr.ty.ndim == expr.ty.ndim - 1
        return graph.resolve(call.args[0]) if last else None
    if op_name(call) != "relax.reshape":
        return None
    spread = graph.call(call.args[0], "relax.broadcast_to")
    apart = None if spread is None else graph.call(spread.args[0], *_VIEWS)
    if spread is None or apart is None:
        return None
    f = graph.resolve(apart.args[0])
    spread_value = graph.resolve(call.args[0])
    spread_from = graph.resolve(spread.args[0])
    own, one, two, flat = map(extents, (f, spread_from, spread_value, expr))
    *lead, width = own
    shapes = (one, [*own, 1]), (two, [*own, 2]), (flat, [*lead, 2 * width])
    return f if all(_same(have, want) for have, want in shapes) else None


def _same(have: Sequence[Any], want: Sequence[Any]) -> bool:
    return len(have) == len(want) and all(map(infer.equal, have, want))


def _through(graph: Graph, expr: Any, call: Call, interleaved: bool, made: Made) -> Any:
    """The call on a halved operand, the reason why that one is not, or ``None`` for others."""
    name = op_name(call)
    if name in _UNARY:
        inner = halved(graph, call.args[0], interleaved, made)
        if isinstance(inner, str):
            return inner
        return made.emit(Call(call.op, [inner], call.attrs), expr)
    if name in _BINARY:
        for at in (0, 1):
            if graph.scalar(call.args[1 - at]) is None:
                continue
            inner = halved(graph, call.args[at], interleaved, made)
            if isinstance(inner, str):
                return inner
            args = list(call.args)
            args[at] = inner
            return made.emit(Call(call.op, args, call.attrs), expr)
    width = features(expr)
    if name in _VIEWS and width is not None and features(call.args[0]) == width:
        # The operator's tables get their shape at the end, and so do these.
        return halved(graph, call.args[0], interleaved, made)
    return None
