"""Activations from their formulas.

    x (1 + erf(x / sqrt(2))) / 2                            ->  gelu(x)
    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2       ->  gelu_tanh(x)
    x / (1 + e^-x),  x sigmoid(x)                           ->  silu(x)
    x sigmoid(a x),  x (1 + tanh(a x / 2)) / 2              ->  quick_gelu(x, a)
    1 / (1 + e^-x)                                          ->  sigmoid(x)
    x tanh(log(1 + e^x))                                    ->  mish(x)
    min(max(x + 3, 0), 6) x / 6                             ->  hard_swish(x)
    min(max(a x + b, 0), 1)                                 ->  hard_sigmoid(x, a, b)

Further factors follow the operator unchanged: ``gelu(gate) * up`` is found in any grouping.
Softplus alone stays as it is: its formula overflows where the operator does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from uif_tvm.relay_passes.recover_algebra import Product, close, polynomial, product, total
from uif_tvm.relay_passes.recover_graph import Emit, Found, Graph, Near, RecoverPass, widened

from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import make_constant, op_name
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from tvm.ir import Call

_CLIPS = ("relax.clip", "relax.minimum", "relax.maximum", "relax.nn.relu", "relax.nn.relu6")
_TANH = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}


@dataclass(frozen=True)
class Gate:
    """What an activation multiplies ``x`` with.

    Args:
        op: standard name of the whole.
        attrs: its attributes.
        factor: what the gate's own normal form is multiplied by, ``gate = factor * formula``.
        nodes: variables that were taken apart.
    """

    op: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    factor: float = 1.0
    nodes: frozenset[Any] = frozenset()


class RecoverActivation(RecoverPass):
    """Form activations."""

    name = "recover-activation"
    roots = frozenset(("relax.multiply", "relax.divide", *_CLIPS))

    def match(self, graph: Graph, var: Any, call: Call) -> Found | Near | None:
        """See the module text."""
        if "float" not in str(getattr(var.ty, "dtype", "")):
            return None
        found = product(graph, var)
        near: Near | None = None
        for gate, power in found.factors.items():
            for x, other in found.factors.items():
                if other != 1.0 or x == gate:
                    continue
                answer = _gated(graph, gate, power, x)
                if isinstance(answer, Gate):
                    whole = _whole(graph, var, found, answer, (gate, x))
                    if whole is not None:
                        return whole
                near = near or (answer if isinstance(answer, Near) else None)
        return _alone(graph, var, found) or near


def _whole(
    graph: Graph, var: Any, found: Product, gate: Gate, used: tuple[Any, Any]
) -> Found | None:
    """The activation with the product's other factors behind it."""
    x, dtype = used[1], str(var.ty.dtype)
    scale = found.coefficient * gate.factor
    rest = [(key, power) for key, power in found.factors.items() if key not in used]
    rest += found.constants
    exact = close(scale, 1.0, dtype)
    user = graph.user(var)
    if not (exact and not rest):
        if user is not None and op_name(user[1]) in ("relax.multiply", "relax.divide"):
            return None  # more factors follow: the whole product is looked at then
        if not all(power in (1.0, -1.0) for _, power in rest) or not math.isfinite(scale):
            return None
    inner = found.nodes | gate.nodes | {var, graph.resolve(used[0])}

    def finish(emit: Emit, value: Any) -> Any:
        if not exact:
            number = make_constant(np.asarray(scale, numpy_dtype(dtype)))
            value = emit(relax.op.multiply(value, number))
        for factor, power in rest:
            value = emit((relax.op.multiply if power > 0 else relax.op.divide)(value, factor))
        return value

    if rest or not exact:
        return Found(var, frozenset(inner), gate.op, (x,), gate.attrs, finish)
    return narrowed(graph, Found(var, frozenset(inner), gate.op, (x,), gate.attrs))


def narrowed(graph: Graph, found: Found) -> Found:
    """The operator in the 16-bit type that ``x`` was cast from, if the result is cast back."""
    source, user = widened(graph, found.operands[0]), graph.user(found.root)
    if source is None or user is None or op_name(user[1]) != "relax.astype":
        return found
    if str(user[0].ty.dtype) != str(source.ty.dtype):
        return found
    inner = found.inner | {user[0], graph.resolve(found.operands[0])}
    return Found(user[0], inner, found.op, (source,), found.attrs)


def _gated(graph: Graph, gate: Any, power: float, x: Any) -> Gate | Near | None:
    """What ``x gate^power`` is."""
    call = graph.call(gate)
    if call is None:
        return None
    dtype, name = str(gate.ty.dtype), op_name(call)
    if power == 1.0 and name == "relax.tanh":
        return _mish(graph, gate, call, x)
    if power == 1.0 and name == "uif.hard_sigmoid":
        return _hard_swish_of(graph, gate, call, x)
    if power == 1.0 and name in _CLIPS:
        return _hard_swish(graph, gate, x)
    sigmoid = _sigmoid_of(graph, gate, power)
    if sigmoid is not None:
        return _silu(graph, sigmoid, x, dtype)
    return _gelu(graph, gate, x, dtype) if power == 1.0 else None


def _silu(graph: Graph, gate: tuple[Any, float, set[Any]], x: Any, dtype: str) -> Gate | None:
    argument, sign, nodes = gate
    inside = polynomial(graph, argument, x)
    if inside is None or set(inside[0]) != {1}:
        return None
    alpha = sign * inside[0][1]
    nodes = nodes | inside[1]
    if close(alpha, 1.0, dtype):
        return Gate("silu", nodes=frozenset(nodes))
    return Gate("quick_gelu", {"alpha": alpha}, nodes=frozenset(nodes))


def _sigmoid_of(graph: Graph, gate: Any, power: float) -> tuple[Any, float, set[Any]] | None:
    """(u, sign, nodes) with ``gate ^ power = sigmoid(sign u)``."""
    call = graph.call(gate, "relax.sigmoid")
    if power == 1.0 and call is not None:
        return call.args[0], 1.0, {graph.resolve(gate)}
    if power != -1.0:
        return None
    added = total(graph, gate)
    if added.constant != 1.0 or len(added.terms) != 1 or added.terms[0][0] != 1.0:
        return None
    power_of_e = graph.call(added.terms[0][1], "relax.exp")
    if power_of_e is None:
        return None
    return power_of_e.args[0], -1.0, added.nodes | {graph.resolve(added.terms[0][1])}


def _gelu(graph: Graph, gate: Any, x: Any, dtype: str) -> Gate | Near | None:
    """``1 + erf(u)`` or ``1 + tanh(u)`` up to a factor."""
    added = total(graph, gate)
    if len(added.terms) != 1 or not close(added.terms[0][0], added.constant, dtype):
        return None
    factor, curve = added.terms[0]
    call = graph.call(curve, "relax.erf", "relax.tanh")
    inside = polynomial(graph, call.args[0], x) if call is not None else None
    if call is None or inside is None:
        return None
    name, found = (op_name(call) or "").removeprefix("relax."), inside[0]
    nodes = frozenset(added.nodes | inside[1] | {graph.resolve(curve)})
    wanted = {1: math.sqrt(0.5)} if name == "erf" else _TANH
    if _alike(found, wanted, dtype):
        return Gate("gelu" if name == "erf" else "gelu_tanh", factor=2 * factor, nodes=nodes)
    if name == "tanh" and set(found) == {1}:
        alpha = 2 * found[1]
        if close(alpha, 1.0, dtype):
            return Gate("silu", factor=2 * factor, nodes=nodes)
        return Gate("quick_gelu", {"alpha": alpha}, 2 * factor, nodes)
    return Near(f"{name} of {_spelled(found)}, where gelu has {_spelled(wanted)}")


def _alike(found: Mapping[int, float], wanted: Mapping[int, float], dtype: str) -> bool:
    # A product of rounded constants is as far off as all of them together.
    return found.keys() == wanted.keys() and all(
        close(found[key], wanted[key], dtype, slack=2.0) for key in wanted
    )


def _spelled(found: Mapping[int, float]) -> str:
    powers = {0: "", 1: " x"}
    return " + ".join(f"{found[p]:.7g}{powers.get(p, f' x^{p}')}" for p in sorted(found)) or "0"


def _mish(graph: Graph, gate: Any, call: Call, x: Any) -> Gate | None:
    """``tanh(softplus(x))``."""
    nodes = {graph.resolve(gate), graph.resolve(call.args[0])}
    soft = graph.call(call.args[0], "relax.nn.softplus")
    if soft is not None:
        own = float(soft.attrs.beta) == 1.0 and graph.resolve(soft.args[0]) == x
        return Gate("mish", nodes=frozenset(nodes)) if own else None
    log = graph.call(call.args[0], "relax.log")
    added = total(graph, log.args[0]) if log is not None else None
    if added is None or added.constant != 1.0 or len(added.terms) != 1:
        return None
    factor, power = added.terms[0]
    exp = graph.call(power, "relax.exp")
    if exp is None or factor != 1.0 or graph.resolve(exp.args[0]) != x:
        return None
    return Gate("mish", nodes=frozenset(nodes | added.nodes | {graph.resolve(power)}))


def limits(graph: Graph, expr: Any) -> tuple[float, float, Any, set[Any]]:
    """(low, high, inner, nodes) of ``min(max(inner, low), high)`` in any spelling."""
    low, high, nodes = -math.inf, math.inf, set()
    while (call := graph.call(expr, *_CLIPS)) is not None:
        bounds = _bounds(graph, call)
        if bounds is None:
            break
        least, most, inner = bounds
        if low > most or high < least:
            break  # bounds that cross: which of them wins depends on the order
        low, high = max(low, least), min(high, most)
        nodes.add(graph.resolve(expr))
        expr = inner
    return low, high, graph.resolve(expr), nodes


def _bounds(graph: Graph, call: Call) -> tuple[float, float, Any] | None:
    name = op_name(call)
    if name == "relax.nn.relu":
        return 0.0, math.inf, call.args[0]
    if name == "relax.nn.relu6":
        return 0.0, 6.0, call.args[0]
    if name == "relax.clip":
        found = read(call)
        if found is None:
            return None
        low, high = found[2].get("min"), found[2].get("max")
        return (
            (-math.inf if low is None else float(low)),
            (math.inf if high is None else float(high)),
            call.args[0],
        )
    for at in (0, 1):
        number = graph.scalar(call.args[at])
        if number is not None:
            inner = call.args[1 - at]
            return (
                (number, math.inf, inner) if name == "relax.maximum" else (-math.inf, number, inner)
            )
    return None


def _hard_swish(graph: Graph, gate: Any, x: Any) -> Gate | None:
    """``factor * clip(x / 6 + 1 / 2, 0, 1)``."""
    low, high, inner, nodes = limits(graph, gate)
    inside = polynomial(graph, inner, x)
    dtype = str(gate.ty.dtype)
    if inside is None or low != 0.0 or not 0 < high < math.inf:
        return None
    line = {power: value / high for power, value in inside[0].items()}
    if not _alike(line, {1: 1 / 6, 0: 0.5}, dtype):
        return None
    return Gate("hard_swish", factor=high, nodes=frozenset(nodes | inside[1]))


def _hard_swish_of(graph: Graph, gate: Any, call: Call, x: Any) -> Gate | None:
    """The same by the operator."""
    found = read(call)
    if found is None or graph.resolve(call.args[0]) != x:
        return None
    line = {1: float(found[2]["alpha"]), 0: float(found[2]["beta"])}
    if not _alike(line, {1: 1 / 6, 0: 0.5}, str(gate.ty.dtype)):
        return None
    return Gate("hard_swish", nodes=frozenset({graph.resolve(gate)}))


def _alone(graph: Graph, var: Any, found: Product) -> Found | None:
    """Activations that are no product with their operand: sigmoid, hard_sigmoid."""
    if len(found.factors) != 1 or found.constants:
        return None
    gate, power = next(iter(found.factors.items()))
    dtype = str(var.ty.dtype)
    if power == -1.0 and found.coefficient == 1.0:
        answer = _sigmoid_of(graph, gate, power)
        if answer is None:
            return None
        u, _, nodes = answer
        inverted = product(graph, u)
        x = inverted.one(1.0) if inverted.coefficient == -1.0 else None
        nodes = nodes | (inverted.nodes if x is not None else set())
        operand = relax.op.negative(u) if x is None else x
        inner = frozenset(found.nodes | nodes | {var})
        return _only(graph, Found(var, inner, "sigmoid", (operand,)))
    if power != 1.0 or graph.call(gate, *_CLIPS) is None:
        return None
    low, high, inner, nodes = limits(graph, gate)
    high *= found.coefficient
    line = total(graph, inner)
    if low != 0.0 or not close(high, 1.0, dtype) or len(line.terms) != 1:
        return None
    alpha, beta = (found.coefficient * value for value in (line.terms[0][0], line.constant))
    if alpha == 1.0 and beta == 0.0:
        return None  # that is a clip, and no more
    attrs = {"alpha": alpha, "beta": beta}
    everything = frozenset(found.nodes | nodes | line.nodes | {var})
    return Found(var, everything, "hard_sigmoid", (line.terms[0][1],), attrs)


def _only(graph: Graph, found: Found) -> Found:
    operand = found.operands[0]
    return narrowed(graph, found) if isinstance(operand, relax.Var) else found


PASS = RecoverActivation()
