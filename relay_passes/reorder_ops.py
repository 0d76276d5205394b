"""Op reordering: ``a = f(x); b = g(x); c = h(a); d = k(b)  ->  a; c; b; d`` for a lower peak.

Within one dataflow block the kernels are put into an order in which less memory is alive at the
fullest step (``compiler.memory.reorder``). What calls back to the host, changes memory in place or
is no plain kernel stays where it is: nothing moves across it. Blocks keep their order.

Counted are tensors that kernels of the block make. A result of ``main`` is written to the caller's
memory and a view lies in its tensor's, so neither takes any of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, PrimType

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.compiler.memory.reorder import Program, Reordering, Step, reorder
from uif_tvm.relax_util import op_name
from uif_tvm.target.spec import dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

_KERNEL = "relax.call_tir"
#: Another shape over the same bytes.
_VIEWS = frozenset({"relax.reshape", "relax.memory.ensure_zero_offset"})


class ReorderOps(GraphPass):
    """Order kernels for a lower peak of memory."""

    name = "reorder-ops"
    requires = frozenset({"kernels-only"})

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        main = mod["main"]
        returned = _returned(main)
        blocks, changed = [], False
        for index, block in enumerate(main.body.blocks):
            subject = f"main, block {index}"
            order = self._order(block, returned, subject, ctx)
            if order is not None:
                block = relax.DataflowBlock([block.bindings[place] for place in order])
                changed = True
            blocks.append(block)
        if not changed:
            return mod
        body = relax.SeqExpr(blocks, main.body.body)
        relax.expr._update_type(body, main.body.ty)
        new = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        new["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return new

    def _order(
        self, block: Any, returned: list[Any], subject: str, ctx: CompileContext
    ) -> tuple[int, ...] | None:
        """A better order of the block's bindings, or ``None``; the report says why."""
        if not isinstance(block, relax.DataflowBlock) or len(block.bindings) < 2:
            return None
        reading = _Reading(returned)
        for binding in block.bindings:
            reading.add(binding)
        if reading.unknown:
            reason = f"the size of {reading.unknown} is known in a run only"
            ctx.report.decide(self.name, subject, False, reason, 0.0)
            return None
        found = reorder(reading.program())
        fired = found.peak < found.peak_before
        ctx.report.decide(self.name, subject, fired, _reason(found), 0.0)
        return found.order if fired else None


def _reason(found: Reordering) -> str:
    if found.peak < found.peak_before:
        proof = ", the lowest of all orders" if found.is_optimal else ""
        return f"peak of tensors alive from {found.peak_before} to {found.peak} bytes{proof}"
    if found.is_optimal:
        return f"no order has a lower peak than this one, {found.peak} bytes"
    return f"no order with a peak below {found.peak} bytes found (no order is below {found.bound})"


def _returned(main: relax.Function) -> list[Any]:
    """Variables that ``main`` returns, as fields or alone."""
    body = main.body.body
    fields = [body]
    if isinstance(body, relax.Tuple):
        fields = list(body.fields)
    for block in main.body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if binding.var.same_as(body) and isinstance(value, relax.Tuple):
                fields = list(value.fields)
    return [item for item in fields if isinstance(item, relax.Var)]


@dataclass
class _Reading:
    """Reads a block's bindings as steps of a :class:`Program`.

    ``owners`` tells for each variable the tensors whose memory it is in, per field of a tuple.
    """

    returned: list[Any]
    unknown: str = ""
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    _values: dict[Any, int] = field(default_factory=dict)
    _owners: dict[Any, list[frozenset[int]]] = field(default_factory=dict)
    _barrier: int = 0  # steps before this one must stay before all that follow

    def add(self, binding: Any) -> None:
        """The next binding."""
        var, value = binding.var, getattr(binding, "value", None)
        reads = self._reads(value)
        owners, made = self._bound(var, value)
        # The name itself: what reads it must follow, though it may take no memory of its own.
        self._values[var] = len(self.sizes)
        self.sizes.append(0)
        self._owners[var] = owners
        movable = isinstance(binding, relax.VarBinding) and _is_movable(value)
        index = len(self.steps)
        after: tuple[int, ...] = (self._barrier - 1,) if self._barrier else ()
        if not movable:
            after = tuple(range(max(0, self._barrier - 1), index))
            self._barrier = index + 1
        writes = (*made, self._values[var])
        self.steps.append(Step(tuple(sorted(reads)), writes, 0, after))
        if not isinstance(var, relax.DataflowVar):
            self.kept |= {self._values[var], *frozenset().union(*owners)}

    def program(self) -> Program:
        """All that was added."""
        for var in self.returned:
            for owners in self._owners.get(var, []):
                if len(owners) == 1:
                    self.sizes[next(iter(owners))] = 0
        return Program(tuple(self.steps), tuple(self.sizes), frozenset(self.kept))

    def _reads(self, value: Any) -> set[int]:
        found: set[int] = set()
        for var in relax.analysis.free_vars(value) if value is not None else ():
            if var in self._values:
                found.add(self._values[var])
                found.update(*self._owners[var])
        return found

    def _bound(self, var: Any, value: Any) -> tuple[list[frozenset[int]], list[int]]:
        """Owners of the variable's fields, and the tensors that are new."""
        if isinstance(value, relax.Var):
            return self._of(value), []
        if isinstance(value, relax.Tuple):
            return [frozenset().union(*self._of(item)) for item in value.fields], []
        if isinstance(value, relax.TupleGetItem):
            return [self._of(value.tuple_value)[value.index]], []
        if isinstance(value, GenericConst | relax.ShapeExpr):
            return [frozenset()], []
        if isinstance(value, Call) and op_name(value) in _VIEWS:
            return self._of(value.args[0]), []
        fields = list(var.ty.fields) if isinstance(var.ty, relax.TupleType) else [var.ty]
        made = []
        for ty in fields:
            size = _bytes(ty)
            if size is None:
                self.unknown = self.unknown or str(var.name)
            made.append(len(self.sizes))
            self.sizes.append(size or 0)
        return [frozenset({item}) for item in made], made

    def _of(self, value: Any) -> list[frozenset[int]]:
        """Owners of an operand's fields; what comes from elsewhere has none."""
        if isinstance(value, relax.Var) and value in self._owners:
            return self._owners[value]
        count = len(value.ty.fields) if isinstance(value.ty, relax.TupleType) else 1
        return [frozenset()] * count


def _is_movable(value: Any) -> bool:
    """Whether evaluating ``value`` does nothing but to make its result."""
    if isinstance(value, Call):
        return op_name(value) == _KERNEL or op_name(value) in _VIEWS
    return isinstance(
        value, relax.Var | relax.Tuple | relax.TupleGetItem | GenericConst | relax.ShapeExpr
    )


def _bytes(ty: Any) -> int | None:
    """Bytes of a tensor, 0 of what is none, ``None`` when the extents are not known."""
    if isinstance(ty, relax.ShapeType | PrimType):
        return 0
    shape = getattr(getattr(ty, "shape", None), "values", None)
    if shape is None or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        return None
    return prod(int(extent.value) for extent in shape) * dtype_bytes(str(ty.dtype.dtype))


PASS = ReorderOps()
