"""Softmax and its logarithm from their formulas, along any axis.

    e / sum(e),  e = exp(x - max(x))          ->  softmax(x)
    u - log(sum(exp(u))),  u = x - max(x)     ->  log_softmax(x)
    x - (log(sum(exp(x - max(x)))) + max(x))  ->  log_softmax(x)

Formulas that are not shifted by the maximum overflow where the operator does not, and the
logarithm of a softmax underflows; they are left alone. 16-bit values cast to a wider type and back
are taken in their own type: the operator's sums are wide anyway.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm import relax
from uif_tvm.relay_passes.recover_activation import narrowed
from uif_tvm.relay_passes.recover_algebra import product, total
from uif_tvm.relay_passes.recover_graph import Found, Graph, Near, RecoverPass
from uif_tvm.relay_passes.recover_norm_core import reduced_axes, stands_against, stripped

from uif_tvm.relax_util import op_name

if TYPE_CHECKING:
    from tvm.ir import Call


class RecoverSoftmax(RecoverPass):
    """Form softmax and log_softmax."""

    name = "recover-softmax"
    roots = frozenset({"relax.multiply", "relax.divide", "relax.subtract"})

    def match(self, graph: Graph, var: Any, call: Call) -> Found | Near | None:
        """See the module text."""
        if "float" not in str(getattr(var.ty, "dtype", "")):
            return None
        found = _log(graph, var) if op_name(call) == "relax.subtract" else _plain(graph, var)
        return narrowed(graph, found) if isinstance(found, Found) else found


def _plain(graph: Graph, var: Any) -> Found | Near | None:
    parts = product(graph, var)
    powers = [key for key, power in parts.factors.items() if power == 1.0]
    sums = [key for key, power in parts.factors.items() if power == -1.0]
    if (len(powers), len(sums), len(parts.factors)) != (1, 1, 2) or parts.constants:
        # The reciprocal of the sum may stand behind a view.
        return None
    exponential = graph.call(powers[0], "relax.exp")
    summed = _sum_of(graph, sums[0], powers[0])
    if exponential is None or summed is None or parts.coefficient != 1.0:
        return None
    axis, nodes = summed
    shifted = _shifted(graph, exponential.args[0], axis)
    if shifted is None:
        return Near("the exponent is not shifted by its maximum, overflow would differ")
    x, more = shifted
    inner = parts.nodes | nodes | more | {powers[0], var}
    return Found(var, frozenset(inner), "softmax", (x,), {"axis": axis})


def _sum_of(graph: Graph, expr: Any, powers: Any) -> tuple[int, set[Any]] | None:
    """(axis, nodes) of ``sum(powers)`` over one axis that stays or is given back."""
    source, views = stripped(graph, expr)
    call = graph.call(source, "relax.sum")
    if call is None or graph.resolve(call.args[0]) != powers:
        return None
    axes = reduced_axes(call)
    if len(axes) != 1 or not stands_against(expr, powers, axes):
        return None
    return axes[0], views | {source}


def _shifted(graph: Graph, expr: Any, axis: int) -> tuple[Any, set[Any]] | None:
    """(x, nodes) of ``x - max(x)`` along an axis."""
    call = graph.call(expr, "relax.subtract")
    if call is None:
        return None
    x = graph.resolve(call.args[0])
    peak = _peak_of(graph, call.args[1], x, axis)
    return None if peak is None else (x, peak | {graph.resolve(expr)})


def _peak_of(graph: Graph, expr: Any, x: Any, axis: int) -> set[Any] | None:
    """Variables of ``max(x)`` along an axis."""
    source, views = stripped(graph, expr)
    call = graph.call(source, "relax.max")
    if call is None or graph.resolve(call.args[0]) != x or reduced_axes(call) != (axis,):
        return None
    return views | {source} if stands_against(expr, x, (axis,)) else None


def _log(graph: Graph, var: Any) -> Found | Near | None:
    parts = total(graph, var)
    found_logs = [
        (term, graph.call(stripped(graph, term)[0], "relax.log"))
        for sign, term in parts.terms
        if sign == -1.0
    ]
    logs = [(term, call) for term, call in found_logs if call is not None]
    plus = [term for sign, term in parts.terms if sign == 1.0]
    if len(logs) != 1 or len(plus) != 1 or parts.constant or not isinstance(plus[0], relax.Var):
        return None
    term, log = logs[0]
    source, views = stripped(graph, log.args[0])
    summed = graph.call(source, "relax.sum")
    powers = graph.resolve(summed.args[0]) if summed is not None else None
    exponential = graph.call(powers, "relax.exp") if powers is not None else None
    if summed is None or exponential is None or len(reduced_axes(summed)) != 1:
        return None
    (axis,) = reduced_axes(summed)
    shifted = _shifted(graph, exponential.args[0], axis)
    if shifted is None:
        return Near("the exponent is not shifted by its maximum, overflow would differ")
    x, nodes = shifted
    log_at, more = stripped(graph, term)
    nodes = parts.nodes | nodes | views | more | {source, powers, log_at, var}
    minus = [item for sign, item in parts.terms if sign == -1.0 and item != term]
    found = Found(var, frozenset(nodes), "log_softmax", (x,), {"axis": axis})
    if not stands_against(term, powers, (axis,)):
        return None
    if plus[0] == graph.resolve(exponential.args[0]) and not minus:
        return found
    peak = _peak_of(graph, minus[0], x, axis) if len(minus) == 1 and plus[0] == x else None
    return None if peak is None else replace(found, inner=found.inner | peak)


PASS = RecoverSoftmax()
