"""Loops whose number of rounds is known at run time only.

The virtual machine has calls and branches but no loops, and recursion of one call a round would
overflow its stack. So a loop is a chain of functions over (round, going, state), each of which
runs the one before it twice:

    run_0(s) = if going: body(s) else s        run_k+1(s) = if going: run_k(run_k(s)) else s

``run_31`` runs two thousand million rounds at a depth of 32 calls, and a loop that has ended
passes up through at most 31 further branches. The state keeps its shapes from round to round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, runtime
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.onnx.values import (
    Dynamic,
    Known,
    Poison,
    Symbolic,
    Value,
    is_static,
    same_dim,
    shape_of,
)

DOUBLINGS = 31
"""Rounds that can be run are 2 to this power."""
INLINE = 64
"""Elements of a constant of the body up to which it stays in the function."""


def run_time_loop(ctx: NodeContext, body: Any, state: Sequence[Value]) -> list[Value]:
    """The node as a chain of functions; results are the state's last values.

    Raises:
        Unsupported: the loop collects outputs, or its state changes shape or is no tensor.
    """
    if len(body.output) != 1 + len(state):
        raise Unsupported("outputs collected over rounds counted at run time")
    if any(isinstance(value, Poison) for value in state):
        return [Poison()] * len(state)
    exprs, types, elements = [], [], []
    for value in state:
        if not isinstance(value, (Known, Symbolic, Dynamic)) or not is_static(value.shape):
            raise Unsupported("a loop counted at run time whose state is of no fixed shape")
        expr = ctx.as_expr(value)
        stored = str(expr.ty.dtype)
        exprs.append(expr)
        types.append(relax.TensorType([int(d) for d in value.shape if isinstance(d, int)], stored))
        elements.append(value.dtype if value.dtype != stored else None)
    limit = _limit(ctx)
    step, captured = _round(ctx, body, types, elements)
    if step is None:
        return [Poison()] * len(state)
    function = ctx.bb.add_func(step, "loop_round")
    for _ in range(DOUBLINGS):
        function = ctx.bb.add_func(_twice(ctx, function, step), "loop_rounds")
    zero = ctx.const(0, "int64")
    going = ctx.emit(relax.op.less(zero, limit))
    if ctx.has(1):
        given = ctx.cast(ctx.reshape(ctx.expr(1), ()), "bool")
        going = ctx.emit(relax.op.logical_and(going, given))
    out = ctx.bb.emit(relax.Call(function, [zero, going, limit, *exprs, *captured]))
    return [
        Dynamic(ctx.emit(relax.TupleGetItem(out, 2 + place)), element=element)
        for place, element in enumerate(elements)
    ]


def _limit(ctx: NodeContext) -> relax.Expr:
    if not ctx.has(0):
        return ctx.const(np.iinfo(np.int64).max, "int64")
    return ctx.cast(ctx.reshape(ctx.expr(0), ()), "int64")


def _parameters(types: Sequence[Any]) -> list[relax.Var]:
    scalar = relax.TensorType([], "int64")
    head = [("round", scalar), ("going", relax.TensorType([], "bool")), ("limit", scalar)]
    named = [*head, *[(f"state_{place}", kind) for place, kind in enumerate(types)]]
    return [relax.Var(name, kind) for name, kind in named]


def _round(
    ctx: NodeContext, body: Any, types: Sequence[Any], elements: Sequence[str | None]
) -> tuple[relax.Function | None, list[relax.Expr]]:
    """One guarded round as a function, and the outer values it takes after the state.

    ``None`` for a body with refused operators.
    """
    importer, bb = ctx.importer, ctx.bb
    params = _parameters(types)
    number, going, limit, *state = params
    given: list[Value] = [Dynamic(number), Known(np.array(True))]
    given += [Dynamic(v, element=element) for v, element in zip(state, elements, strict=True)]
    names = [value.name for value in body.input]
    importer.open_block()
    try:
        results = importer.run_subgraph(body, dict(zip(names, given, strict=True)))
        refused = any(isinstance(value, Poison) for value in results)
        after = [] if refused else _next_state(ctx, results, given, number, limit)
    finally:
        block = importer.close_block()
    if refused:
        return None, []
    taken = relax.SeqExpr([block], relax.Tuple(after))
    left = relax.SeqExpr([], relax.Tuple([number, going, *state]))
    importer.open_block()
    try:
        out = bb.emit(relax.If(going, taken, left))
    finally:
        outer = importer.close_block()
    returned = relax.TupleType([params[0].ty, params[1].ty, *types])
    function = relax.Function(params, relax.SeqExpr([outer], out), returned, True)
    return _closed(function, returned)


def _next_state(
    ctx: NodeContext,
    results: Sequence[Value],
    given: Sequence[Value],
    number: relax.Expr,
    limit: relax.Expr,
) -> list[relax.Expr]:
    """(round, going, state) after a round.

    Raises:
        Unsupported: the state does not keep its shapes and dtypes.
    """
    state = []
    for value, before in zip(results[1:], given[2:], strict=True):
        if not isinstance(value, (Known, Symbolic, Dynamic)):
            raise Unsupported("a loop counted at run time whose state is no tensor")
        kept = len(value.shape) == len(before.shape) and all(  # type: ignore[union-attr]
            map(same_dim, value.shape, before.shape)  # type: ignore[union-attr]
        )
        if not kept or value.dtype != before.dtype:  # type: ignore[union-attr]
            raise Unsupported("a loop counted at run time whose state changes shape")
        state.append(ctx.as_expr(value))
    following = ctx.emit(relax.op.add(number, ctx.const(1, "int64")))
    going = ctx.emit(relax.op.less(following, limit))
    condition = results[0]
    if not isinstance(condition, (Known, Symbolic, Dynamic)):
        raise Unsupported("a loop whose condition is no tensor")
    if not (isinstance(condition, Known) and condition.array.all()):
        truth = ctx.cast(ctx.reshape(ctx.as_expr(condition), ()), "bool")
        going = ctx.emit(relax.op.logical_and(going, truth))
    return [following, going, *state]


def _closed(function: relax.Function, returned: Any) -> tuple[relax.Function, list[relax.Expr]]:
    """The function with outer variables and large constants as further parameters.

    Raises:
        Unsupported: it depends on dimensions of outer values.
    """
    lift = _LiftConstants()
    body = lift.visit_expr(function.body)
    params = [*function.params, *lift.parameters]
    free = list(relax.analysis.free_vars(relax.Function(params, body, returned, True)))
    closed = relax.Function([*params, *free], body, returned, True)
    if list(relax.analysis.free_symbolic_vars(closed)) or not all(map(_is_fixed, free)):
        raise Unsupported("a loop counted at run time over symbolic dimensions")
    return relax.utils.copy_with_new_vars(closed), [*lift.constants, *free]


def _is_fixed(variable: relax.Var) -> bool:
    kind = variable.ty
    if not isinstance(kind, relax.TensorType):
        return isinstance(kind, relax.ObjectType)
    return kind.shape is not None and is_static(shape_of(variable))


@mutator
class _LiftConstants(PyExprMutator):  # type: ignore[misc]
    """Large constants become parameters, so that they stay among the model's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.constants: list[relax.Expr] = []
        self.parameters: list[relax.Var] = []
        self._known: dict[Any, relax.Var] = {}

    def visit_generic_const_(self, const: Any) -> relax.Expr:
        """Replace one constant."""
        if not isinstance(const.value, runtime.Tensor) or const.value.numel() <= INLINE:
            return const
        if const not in self._known:
            parameter = relax.Var(f"constant_{len(self.constants)}", const.ty)
            self._known[const] = parameter
            self.constants.append(const)
            self.parameters.append(parameter)
        return self._known[const]


def _twice(ctx: NodeContext, inner: Any, round_: relax.Function) -> relax.Function:
    """A function like ``round_`` that runs ``inner`` two times, while the loop is going."""
    params = [relax.Var(variable.name, variable.ty) for variable in round_.params]
    count = len(round_.ret_ty.fields)
    bb = ctx.bb
    ctx.importer.open_block()
    try:
        once = bb.emit(relax.Call(inner, params))
        carried = [bb.emit(relax.TupleGetItem(once, place)) for place in range(count)]
        fixed = [params[2], *params[count + 1 :]]
        again = bb.emit(relax.Call(inner, [*carried[:2], fixed[0], *carried[2:], *fixed[1:]]))
    finally:
        block = ctx.importer.close_block()
    state = [params[0], params[1], *params[3 : count + 1]]
    branch = relax.If(
        params[1], relax.SeqExpr([block], again), relax.SeqExpr([], relax.Tuple(state))
    )
    ctx.importer.open_block()
    try:
        out = bb.emit(branch)
    finally:
        outer = ctx.importer.close_block()
    return relax.Function(params, relax.SeqExpr([outer], out), round_.ret_ty, True)
