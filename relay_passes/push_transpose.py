"""Transposes moved through a region until they cancel, where that transposes fewer bytes.

With ``T_p x = permute_dims(x, p)``:

    T_q T_p x                     ->  T_(p q) x, nothing when p q changes no order
    f(T_p x, y)                   ->  T_p f(x, T_p^-1 y)      f element-wise, constants folded
    concat, split, pad, slice, softmax, sum ...  ->  the same along the axes where they are then
    reshape(T_p x)                ->  T_p' reshape(x)         p moves groups of axes as they are
    matmul(T_p x, W)              ->  T_p matmul(x, W)        p moves axes of batches
    T_p x, p moves axes of 1      ->  reshape(x)

Whole regions are decided at once (:mod:`.transpose_plan`): operators compute in the orders for
which the transposes that remain cost least by the target's roofline. Models exported from
channels-last frameworks have one around every convolution. What a transpose that stays is for is
in the report. A transpose of the last two axes before the right-hand side of a matmul costs
nothing: the kernel reads it so (:mod:`.pack_matmul`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from uif_tvm.relay_passes.transpose_graph import Node, Use, Value
from uif_tvm.relay_passes.transpose_plan import Plan
from uif_tvm.relay_passes.transpose_rules import Order, compose, essential, identity, inverse

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import calls, constant_array, make_constant, op_name

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext


@mutator
class _Rewrite(PyExprMutator):  # type: ignore[misc]
    """Emits every operator under its label, and transposes where the plan has them."""

    def __init__(self, mod: tvm.IRModule, plans: dict[Any, Plan]) -> None:
        super().__init__(mod)
        #: First variable of a block -> its plan.
        self._plans = plans
        self._plan: Plan | None = None
        self._made: dict[tuple[Value, Order], Any] = {}
        self._subject = "transpose"

    def visit_dataflow_block_(self, block: Any) -> Any:
        """Plans and what was made for them are of one block."""
        return self._within(block, super().visit_dataflow_block_)

    def visit_binding_block_(self, block: Any) -> Any:
        """As for dataflow blocks."""
        return self._within(block, super().visit_binding_block_)

    def _within(self, block: Any, visit: Any) -> Any:
        outer = self._plan, self._made
        first = block.bindings[0].var if block.bindings else None
        self._plan, self._made = self._plans.get(first), {}
        result = visit(block)
        self._plan, self._made = outer
        return result

    def visit_var_binding_(self, binding: Any) -> None:
        """Emit a planned operator under its label; its plain form is there for whoever asks."""
        plan, var = self._plan, binding.var
        if plan is None:
            super().visit_var_binding_(binding)
            return
        self._subject = str(var.name)
        node = plan.nodes.get(var)
        if node is not None and plan.moved(node):
            self._emit_moved(node)
            if isinstance(var.ty, relax.TupleType):
                return
        made = plan.values.get(var)
        if made is not None and made.maker is not None and plan.moved(made.maker):
            if plan.nodes.get(var) is not made.maker:
                part = relax.TupleGetItem(self._made_tuple(made.maker), binding.value.index)
                self._made[made, plan.stored(made, plan.labels)] = self._emit(part)
            rank = identity(len(made.shape))
            super().visit_var_binding_(relax.VarBinding(var, self._fetch(made, rank)))
            return
        if var in plan.views:
            value, order = plan.views[var]
            super().visit_var_binding_(relax.VarBinding(var, self._fetch(value, order)))
            return
        super().visit_var_binding_(binding)

    def visit_var_(self, var: Any) -> Any:
        """A reader of a tensor gets the order that it was written for."""
        return self._read(var, super().visit_var_)

    def visit_dataflow_var_(self, var: Any) -> Any:
        """As for variables."""
        return self._read(var, super().visit_dataflow_var_)

    def _read(self, var: Any, plain: Any) -> Any:
        if self._plan is None or var not in self._plan.views:
            return plain(var)
        value, order = self._plan.views[var]
        return self._fetch(value, order)

    def _emit_moved(self, node: Node) -> None:
        plan = self._plan
        assert plan is not None
        label = plan.labels[node]
        needs = node.rule.needs(label)
        operands = [
            self._operand(operand, index, order, node)
            for index, (operand, order) in enumerate(zip(node.rule.operands, needs, strict=True))
        ]
        made = self._emit(node.rule.rebuild(label, operands))
        if isinstance(node.var.ty, relax.TupleType):
            self._made[node, ()] = made  # type: ignore[index]
        else:
            self._made[node.results[0], node.rule.gives(label)] = made

    def _made_tuple(self, node: Node) -> Any:
        return self._made[node, ()]  # type: ignore[index]

    def _operand(self, operand: Any, index: int, order: Order | None, node: Node) -> Any:
        """Operand ``index`` of a moved operator, in the order that its label needs."""
        array = constant_array(operand)
        if array is not None:
            if order is None:
                return operand
            lead = (1,) * (len(order) - array.ndim)
            return make_constant(np.transpose(array.reshape(lead + array.shape), order))
        use = next((u for u in node.uses if u.index == index), None)
        if order is None or use is None:
            return self.visit_expr(operand)
        wanted = use.wanted(self._plan.labels.get(node) if self._plan else None)
        own = self._fetch(use.value, wanted or use.order)
        lead_axes = len(order) - len(use.order)
        if not lead_axes:
            return own
        shape = [1 if axis < lead_axes else None for axis in order]
        extents = iter(use.value.shape[axis] for axis in wanted or ())
        full = [next(extents) if extent is None else extent for extent in shape]
        return self._emit(relax.op.reshape(own, relax.ShapeExpr(full)))

    def _fetch(self, value: Value, order: Order) -> Any:
        """``value`` in ``order``; made once."""
        plan = self._plan
        assert plan is not None
        key = (value, order)
        if key in self._made:
            return self._made[key]
        stored = plan.stored(value, plan.labels)
        base = self._made.get((value, stored))
        if base is None:
            # Made outside of this block, or an operator whose order was not moved.
            base = super().visit_expr(value.var) if value.var not in plan.views else None
        if order == stored:
            return base
        if essential(order, value.shape) == essential(stored, value.shape):
            shape = relax.ShapeExpr([value.shape[axis] for axis in order])
            made = self._emit(relax.op.reshape(base, shape))
        else:
            move = compose(inverse(stored), order)
            made = self._emit(relax.op.permute_dims(base, list(move)))
        self._made[key] = made
        return made

    def _emit(self, expr: Any) -> Any:
        return self.builder_.emit(self.builder_.normalize(expr), self._subject)


class PushTranspose(GraphPass):
    """Move transposes until fewest bytes are transposed."""

    name = "push-transpose"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if not any(op_name(call) == "relax.permute_dims" for _, call in calls(mod)):
            return mod
        plans: dict[Any, Plan] = {}
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                for block, outside in _blocks(func):
                    plan = Plan(block, outside, ctx.target)
                    if plan.views:
                        self._improve(plan, ctx)
                        plans[block.bindings[0].var] = plan
        if not plans:
            return mod
        rewrite = _Rewrite(mod, plans)
        for var, func in list(mod.functions.items()):
            if isinstance(func, relax.Function):
                rewrite.builder_.update_func(var, rewrite.visit_expr(func))
        mod = relax.transform.CanonicalizeBindings()(rewrite.builder_.get())
        return relax.transform.DeadCodeElimination(["main"])(mod)

    def _improve(self, plan: Plan, ctx: CompileContext) -> None:
        """Choose the labels, and report what moved and what stays."""
        start = sum((plan.gain(value, {}) for value in plan.values.values()), Gain())
        written = plan.written()
        merged = Gain(start.bytes - written.bytes, start.launches - written.launches)
        if merged.microseconds(ctx.target) > 0:
            ctx.report.decide(
                self.name,
                "main",
                True,
                "chains of transposes became one, and pairs that undo each other none",
                merged.microseconds(ctx.target),
                **merged.figures(),
            )
        for use, nodes, gain in plan.improve():
            ctx.report.decide(
                self.name,
                str(use.value.var.name),
                True,
                f"{len(nodes)} operators, {_first(plan, nodes)} first, compute in the order of "
                f"their neighbours: {gain.bytes:.0f} bytes and {gain.launches:.0f} launches of "
                "transposes saved",
                gain.microseconds(ctx.target),
                **gain.figures(),
            )
        for value in plan.values.values():
            for uses in plan.changes(value, plan.labels).values():
                ctx.report.decide(
                    self.name, str(value.var.name), False, _why(plan, value, uses), 0.0
                )


def _blocks(func: relax.Function) -> list[tuple[Any, set[Any]]]:
    """Binding blocks of a function, with the variables of each that are read outside of it."""
    found: list[Any] = []

    def walk(seq: Any) -> None:
        for block in seq.blocks:
            found.append(block)
            for binding in block.bindings:
                value = getattr(binding, "value", None)
                if isinstance(value, relax.If):
                    walk(value.true_branch)
                    walk(value.false_branch)

    walk(func.body)
    owner = {binding.var: block for block in found for binding in block.bindings}
    outside: dict[Any, set[Any]] = {block: set() for block in found}

    def read(expr: Any, block: Any) -> None:
        def visit(node: Any) -> None:
            if isinstance(node, relax.Var) and owner.get(node, block) is not block:
                outside[owner[node]].add(node)

        relax.analysis.post_order_visit(expr, visit)

    for block in found:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if value is not None and not isinstance(value, relax.If):
                read(value, block)
            elif isinstance(value, relax.If):
                for part in (value.cond, value.true_branch.body, value.false_branch.body):
                    read(part, None)
    read(func.body.body, None)
    return [(block, outside[block]) for block in found]


def _first(plan: Plan, nodes: set[Node]) -> str:
    return next(str(node.var.name) for node in plan.nodes.values() if node in nodes)


def _why(plan: Plan, value: Value, uses: list[Use]) -> str:
    """Who needs a transpose that stays, and why the order there cannot change."""
    readers = []
    for use in uses:
        reason = "needs the order it was written for"
        if use.reader is not None:
            wanted = plan.stored(value, plan.labels)
            label = use.reader.rule.from_operand(use.index, compose(inverse(use.order), wanted))
            refused = None if label is None else use.reader.rule.refuses(label)
            reason = refused or "would force larger transposes elsewhere"
            if label is None:
                reason = "cannot take that order"
        readers.append(f"{use.name} {reason}")
    total = 2 * value.size
    return f"a transpose of {value.size} bytes stays ({total} moved): {'; '.join(readers)}"


PASS = PushTranspose()
