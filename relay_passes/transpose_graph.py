"""A graph without its transposes: who reads which tensor in which order.

Transposes are no operators here. A tensor behind some is the tensor itself, read in the order
that they make of it together; so chains of them merge, and inverse pairs vanish.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import relax
from tvm.ir import Call
from uif_tvm.relay_passes.transpose_rules import (
    Order,
    Product,
    Rule,
    compose,
    find_rule,
    identity,
    shape_of,
)

from uif_tvm.relax_util import constant_array, op_name

#: Elements assumed along axes whose extent is only known at run time.
_UNKNOWN = 64


@dataclass(eq=False)
class Value:
    """A tensor that exists: an input, or what an operator other than a transpose makes.

    Args:
        var: its variable.
        shape: extents, ints where known.
        size: bytes, with extents of run time guessed.
        maker: the operator, when it may compute in several orders.
        uses: everything that reads it.
    """

    var: Any
    shape: tuple[Any, ...]
    size: int
    maker: Node | None = None
    uses: list[Use] = field(default_factory=list)


@dataclass(eq=False)
class Node:
    """An operator with a rule."""

    var: Any
    rule: Rule
    uses: list[Use] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class Use:
    """One operand: ``value`` behind transposes that make ``order`` of it.

    Args:
        value: what is read.
        order: as the graph's transposes have it.
        reader: the operator, ``None`` for one without a rule.
        index: which operand of the reader's rule.
        name: of the reader, for reports.
        swaps: the reader takes the last two axes exchanged just as well.
    """

    value: Value
    order: Order
    reader: Node | None
    index: int = 0
    name: str = ""
    swaps: bool = False

    def wanted(self, label: Order | None) -> Order | None:
        """The order of the value that is read under the reader's label."""
        if self.reader is None or label is None:
            return self.order
        asked = self.reader.rule.needs(label)[self.index]
        if asked is None:
            return self.order
        lead = len(asked) - len(self.order)
        own = tuple(axis - lead for axis in asked if axis >= lead)
        return compose(self.order, own)


class Graph:
    """One binding block: operators with a rule, tensors, and who reads them in which order."""

    def __init__(self, block: Any, outside: set[Any]) -> None:
        """``outside``: variables that are read outside of the block too."""
        self.values: dict[Any, Value] = {}
        #: Variable of a transpose -> the tensor behind it and the order it makes of that.
        self.views: dict[Any, tuple[Value, Order]] = {}
        self.nodes: dict[Any, Node] = {}
        self._tuples: dict[Any, list[Any]] = {}
        self._splits: dict[Any, Node] = {}
        #: Variable of a transpose -> its order, and the shape that it permutes.
        self.transposes: dict[Any, tuple[Order, tuple[Any, ...]]] = {}
        whole = _whole_tuples(block.bindings, outside)
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                self._add(binding.var, binding.value, whole)
            else:
                self._fixed(binding.var, binding.value, "match_cast")
        for var in outside:
            self._use(var, None, 0, "the result")

    def _add(self, var: Any, value: Any, whole: set[Any]) -> None:
        """One binding: a view of a tensor, an operator with a rule, or something fixed."""
        name = op_name(value) if isinstance(value, Call) else None
        if name == "relax.permute_dims":
            axes = _axes(value)
            source = self.view(value.args[0]) if axes is not None else None
            if source is not None and axes is not None:
                self.transposes[var] = (axes, shape_of(value.args[0]) or ())
                self.views[var] = (source[0], compose(source[1], axes))
                return
        if isinstance(value, relax.Var) and self.view(value) is not None:
            self.views[var] = self.view(value)  # type: ignore[assignment]
            return
        if isinstance(value, relax.Tuple):
            self._tuples[var] = list(value.fields)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._splits:
            self._result(var, self._splits[value.tuple_value])
            return
        rule = find_rule(value) if isinstance(value, Call) else None
        if rule is None or (isinstance(var.ty, relax.TupleType) and var in whole):
            self._fixed(var, value, name)
            return
        node = Node(var, rule)
        self.nodes[var] = node
        for index, operand in enumerate(rule.operands):
            self._use(operand, node, index, str(var.name))
        for extra in _leaves(value, self._tuples):
            if not any(extra.same_as(operand) for operand in rule.operands):
                self._use(extra, None, 0, f"{var.name} ({name})")
        if isinstance(var.ty, relax.TupleType):
            self._splits[var] = node
        else:
            self._result(var, node)

    def _fixed(self, var: Any, value: Any, name: str | None) -> None:
        """An operator that takes orders as they were written."""
        for index, operand in enumerate(_leaves(value, self._tuples)):
            absorbs = name == "relax.matmul" and index == 1
            what = f"{var.name} ({name})" if name else str(var.name)
            self._use(operand, None, 0, what, swaps=absorbs)
        self.value(var)

    def _result(self, var: Any, node: Node) -> None:
        made = self.value(var)
        if made is None:
            return
        made.maker = node
        node.results.append(made)

    def _use(
        self, expr: Any, reader: Node | None, index: int, name: str, swaps: bool = False
    ) -> None:
        found = self.view(expr)
        if found is None:
            return
        swaps = swaps or (reader is not None and isinstance(reader.rule, Product) and index == 1)
        use = Use(found[0], found[1], reader, index, name, swaps)
        found[0].uses.append(use)
        if reader is not None:
            reader.uses.append(use)

    def value(self, var: Any) -> Value | None:
        """The tensor of a variable; ``None`` where it is none, or its rank is unknown."""
        if var not in self.values:
            shape = shape_of(var)
            if shape is None:
                return None
            extents = [extent if isinstance(extent, int) else _UNKNOWN for extent in shape]
            size = prod(extents) * max(1, int(var.ty.dtype.dtype.bits) // 8)
            self.values[var] = Value(var, shape, size)
        return self.values[var]

    def view(self, expr: Any) -> tuple[Value, Order] | None:
        """The tensor behind ``expr`` and the order it has there; ``None`` for constants."""
        if expr in self.views:
            return self.views[expr]
        if not isinstance(expr, relax.Var):
            return None
        found = self.value(expr)
        return None if found is None else (found, identity(len(found.shape)))


def _axes(call: Call) -> Order | None:
    """The order that a ``permute_dims`` makes."""
    shape = shape_of(call.args[0])
    if shape is None:
        return None
    if call.attrs.axes is None:
        return identity(len(shape))[::-1]
    return tuple(int(axis) % len(shape) for axis in call.attrs.axes)


def _leaves(expr: Any, tuples: dict[Any, list[Any]]) -> list[Any]:
    """The variables that an expression reads, tuples opened; inner scopes included."""
    if isinstance(expr, Call):
        return [leaf for arg in expr.args for leaf in _leaves(arg, tuples)]
    if isinstance(expr, relax.Tuple):
        return [leaf for item in expr.fields for leaf in _leaves(item, tuples)]
    if isinstance(expr, relax.TupleGetItem):
        return _leaves(expr.tuple_value, tuples)
    if isinstance(expr, relax.Var):
        return [leaf for item in tuples[expr] for leaf in _leaves(item, tuples)] if (
            expr in tuples
        ) else [expr]  # fmt: skip
    found: list[Any] = []
    if constant_array(expr) is None:
        relax.analysis.post_order_visit(
            expr, lambda e: found.append(e) if isinstance(e, relax.Var) else None
        )
    return found


def _whole_tuples(bound: list[Any], outside: set[Any]) -> set[Any]:
    """Tuples that something reads in other ways than item by item."""
    found = set(outside)
    for binding in bound:
        value = binding.value
        if isinstance(value, Call):
            found |= {arg for arg in value.args if isinstance(arg, relax.Var)}
        elif isinstance(value, relax.Var):
            found.add(value)
        elif isinstance(value, relax.Tuple):
            found |= {item for item in value.fields if isinstance(item, relax.Var)}
    return found
