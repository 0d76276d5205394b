"""Arithmetic in normal form, so that one matcher covers every spelling of a formula.

    product     x * 0.5 * y / sqrt(v)        ->  0.5, {x: 1, y: 1, v: -0.5}
    total       1 - (x + 3) * 2 - y          ->  -5, [(-2, x), (-1, y)]
    polynomial  (x + 0.04 x^3) * 0.8, in x   ->  {1: 0.8, 3: 0.032}

Order, grouping, ``pow``, ``square``, ``rsqrt``, reciprocals and scalar constants of any shape make
no difference. A form stops at values that are read more than once: these are others' operands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.ir import Call
from uif_tvm.relay_passes.recover_graph import Graph

from uif_tvm.relax_util import op_name

_PRODUCT = ("relax.multiply", "relax.divide", "relax.negative")
_ROOTS = {"relax.sqrt": 0.5, "relax.rsqrt": -0.5, "relax.square": 2.0}
_TOTAL = ("relax.add", "relax.subtract", "relax.negative", "relax.multiply", "relax.divide")
_DEEPEST = 12
#: Relative distance at which a constant still is the formula's: what its type rounds away.
_CLOSE = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass
class Product:
    """``coefficient * prod(factor ^ exponent)``, and the variables that were taken apart."""

    coefficient: float = 1.0
    factors: dict[Any, float] = field(default_factory=dict)
    constants: list[tuple[Any, float]] = field(default_factory=list)
    nodes: set[Any] = field(default_factory=set)

    def one(self, exponent: float) -> Any:
        """The only factor, when it has this exponent and nothing else varies."""
        if len(self.factors) != 1 or self.constants:
            return None
        factor, found = next(iter(self.factors.items()))
        return factor if found == exponent else None


@dataclass
class Total:
    """``constant + sum(coefficient * term)``, and the variables that were taken apart."""

    constant: float = 0.0
    terms: list[tuple[float, Any]] = field(default_factory=list)
    nodes: set[Any] = field(default_factory=set)


def close(value: float, wanted: float, dtype: str, slack: float = 1.0) -> bool:
    """Whether a constant of ``dtype`` is ``wanted``, up to rounding (``slack`` times that)."""
    return abs(value - wanted) <= slack * _CLOSE.get(dtype, 0.0) * abs(wanted)


def product(graph: Graph, expr: Any) -> Product:
    """``expr`` as a product; see the module text."""
    found = Product()
    _multiply(graph, expr, 1.0, found, True)
    found.factors = {key: power for key, power in found.factors.items() if power}
    return found


def _multiply(graph: Graph, expr: Any, power: float, found: Product, top: bool) -> None:
    expr = graph.resolve(expr)
    number = graph.scalar(expr)
    if number is not None and (number or power > 0):
        found.coefficient *= number**power if number > 0 or power == int(power) else float("nan")
        return
    if not isinstance(expr, relax.Var):
        found.constants.append((expr, power))
        return
    call = graph.call(expr)
    name = op_name(call) if call is not None else None
    whole = power == int(power)
    if call is not None and name in _PRODUCT and whole and (top or graph.single(expr)):
        found.nodes.add(expr)
        if name == "relax.negative":
            found.coefficient *= (-1.0) ** int(power)
            _multiply(graph, call.args[0], power, found, False)
            return
        _multiply(graph, call.args[0], power, found, False)
        _multiply(graph, call.args[1], -power if name == "relax.divide" else power, found, False)
        return
    raised = None if call is None else _raised(graph, call)
    if call is not None and raised is not None and whole:
        found.nodes.add(expr)
        if raised == int(raised):
            _multiply(graph, call.args[0], power * raised, found, False)
            return
        expr, power = graph.resolve(call.args[0]), power * raised
    found.factors[expr] = found.factors.get(expr, 0.0) + power


def _raised(graph: Graph, call: Call) -> float | None:
    """The exponent of a power with a constant one."""
    name = op_name(call)
    if name in _ROOTS:
        return _ROOTS[name]
    return graph.scalar(call.args[1]) if name == "relax.power" else None


def total(graph: Graph, expr: Any) -> Total:
    """``expr`` as a sum; see the module text."""
    found = Total()
    _add(graph, expr, 1.0, found, True)
    return found


def _add(graph: Graph, expr: Any, factor: float, found: Total, top: bool) -> None:
    expr = graph.resolve(expr)
    number = graph.scalar(expr)
    if number is not None:
        found.constant += factor * number
        return
    call = graph.call(expr, *_TOTAL) if top or graph.single(expr) else None
    name = op_name(call) if call is not None else None
    if call is not None and name in ("relax.add", "relax.subtract", "relax.negative"):
        found.nodes.add(expr)
        left = -factor if name == "relax.negative" else factor
        _add(graph, call.args[0], left, found, False)
        if name != "relax.negative":
            _add(graph, call.args[1], factor if name == "relax.add" else -factor, found, False)
        return
    if call is not None:
        scale, rest = _scaled(graph, call)
        if rest is not None:
            found.nodes.add(expr)
            _add(graph, rest, factor * scale, found, False)
            return
    found.terms.append((factor, expr))


def _scaled(graph: Graph, call: Call) -> tuple[float, Any]:
    """(number, other operand) of a product with a number, else (0, None)."""
    left, right = call.args
    number = graph.scalar(right)
    if op_name(call) == "relax.divide":
        return (1.0 / number, left) if number else (0.0, None)
    if number is not None:
        return number, left
    number = graph.scalar(left)
    return (0.0, None) if number is None else (number, right)


def polynomial(graph: Graph, expr: Any, x: Any) -> tuple[dict[int, float], set[Any]] | None:
    """(power -> coefficient, variables taken apart) of a polynomial in ``x`` alone, or ``None``."""
    nodes: set[Any] = set()
    found = _expand(graph, expr, x, nodes, _DEEPEST)
    if found is None:
        return None
    return {power: value for power, value in found.items() if value}, nodes


def _expand(
    graph: Graph, expr: Any, x: Any, nodes: set[Any], depth: int
) -> dict[int, float] | None:
    expr = graph.resolve(expr)
    if isinstance(expr, relax.Var) and expr.same_as(x):
        return {1: 1.0}
    number = graph.scalar(expr)
    if number is not None:
        return {0: number}
    call = graph.call(expr)
    name = op_name(call) if call is not None else None
    if call is None or not depth:
        return None
    raised = _raised(graph, call)
    if raised is not None and (raised not in (2.0, 3.0)):
        return None
    if raised is None and name not in _TOTAL:
        return None
    operands = call.args[:1] if raised is not None or name == "relax.negative" else call.args
    parts = [_expand(graph, operand, x, nodes, depth - 1) for operand in operands]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    nodes.add(expr)
    if raised is not None:
        value = known[0]
        for _ in range(int(raised) - 1):
            value = _times(value, known[0])
        return value
    if name == "relax.negative":
        return {power: -value for power, value in known[0].items()}
    left, right = known
    if name == "relax.multiply":
        return _times(left, right)
    if name == "relax.divide":
        return _times(left, {0: 1 / right[0]}) if set(right) == {0} and right[0] else None
    sign = 1 if name == "relax.add" else -1
    powers = left.keys() | right.keys()
    return {power: left.get(power, 0.0) + sign * right.get(power, 0.0) for power in powers}


def _times(left: dict[int, float], right: dict[int, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for power, value in left.items():
        for other, factor in right.items():
            result[power + other] = result.get(power + other, 0.0) + value * factor
    return result
