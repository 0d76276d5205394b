"""Reshapes that only regroup rows move up, past the operators that do not care.

With ``S'`` a shape that keeps the last extent of ``y``:

    reshape(matmul(x, W), S')      ->  matmul(reshape(x, S'[:-1] + [K]), W)      W: [K, N]
    reshape(f(y), S')              ->  f(reshape(y, S'))                         f unary
    reshape(g(y, c), S')           ->  g(reshape(y, S'), c)                      c: [N] or scalar
    reshape(reshape(y, T), S')     ->  reshape(y, S')
    reshape(y, shape of y)         ->  y

Exported models flatten ``[batch, tokens, features]`` to rows before every linear layer and
restore it afterwards. Moved up, the two meet and cancel, and the bias, the activation and the
residual addition after the layer stand next to the matmul and fuse into its kernel. Only values
with a single use are moved past, so nothing is computed twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import bindings, calls, op_name, static_shape

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

_UNARY = frozenset(
    f"relax.{name}"
    for name in (
        "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "nn.softplus",
        "tanh", "sigmoid", "erf", "exp", "negative", "abs", "sqrt", "rsqrt", "square", "clip",
    )
)  # fmt: skip
_BINARY = frozenset(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide"))


@mutator
class _Hoist(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule, uses: Counter[Any]) -> None:
        super().__init__(mod)
        self.uses = uses
        self._names = {call: str(var.name) for var, call in calls(mod)}
        #: (source name, what happened) of each reshape that moved or went.
        self.fired: list[tuple[str, str]] = []

    def visit_call_(self, call: Call) -> Any:
        if op_name(call) != "relax.reshape":
            return self.visit_expr_post_order(call)
        source, name = call.args[0], self._names.get(call, "")
        call = self.visit_expr_post_order(call)
        shape = static_shape(call)
        if shape is None:
            return call
        if static_shape(call.args[0]) == shape:
            self.fired.append((name, "a reshape to the shape that the value has: dropped"))
            return call.args[0]
        if not self._movable(source, call.args[0], shape):
            return call
        passed = op_name(self._producer(call.args[0], shape))
        self.fired.append((name, f"moved up past {passed}"))
        return self._push(call.args[0], shape)

    def _movable(self, source: Any, value: Any, shape: tuple[int, ...]) -> bool:
        """Whether moving up gains anything: the value is used once and made by a known operator."""
        return self.uses[source] == 1 and self._producer(value, shape) is not None

    def _producer(self, value: Any, shape: tuple[int, ...]) -> Call | None:
        """The call that makes ``value``, when a reshape to ``shape`` can pass it."""
        call = value
        while isinstance(call, relax.Var):
            call = self.lookup_binding(call)
        if not isinstance(call, Call):
            return None
        name = op_name(call)
        if name == "relax.reshape":
            return call
        old = static_shape(value)
        if not old or not shape or old[-1] != shape[-1]:
            return None
        if name == "relax.matmul":
            plain = len(static_shape(call.args[1]) or ()) == 2
            return call if plain and len(static_shape(call.args[0]) or ()) >= 2 else None
        if name in _UNARY:
            return call
        if name in _BINARY and self._moving_side(call, old) is not None:
            return call
        return None

    def _moving_side(self, call: Call, shape: tuple[int, ...]) -> int | None:
        """Which operand of a binary operator has the full shape, the other being a row at most."""
        for side in (0, 1):
            other = static_shape(call.args[1 - side])
            if static_shape(call.args[side]) == shape and other is not None and len(other) <= 1:
                return side
        return None

    def _push(self, value: Any, shape: tuple[int, ...]) -> Any:
        """``reshape(value, shape)`` with the reshape as far up as it goes."""
        if static_shape(value) == shape:
            return value
        call = self._producer(value, shape)
        if call is None or (op_name(call) != "relax.reshape" and self._shared(value)):
            return self._emit(relax.op.reshape(value, shape), value)
        name = op_name(call)
        args = list(call.args)
        if name == "relax.reshape":
            return self._push(args[0], shape)
        if name == "relax.matmul":
            depth = (static_shape(args[0]) or (0,))[-1]
            args[0] = self._push(args[0], (*shape[:-1], depth))
        elif name in _BINARY:
            side = self._moving_side(call, static_shape(value) or ())
            args[side or 0] = self._push(args[side or 0], shape)
        else:
            args[0] = self._push(args[0], shape)
        return self._emit(Call(call.op, args, call.attrs, call.ty_args), value)

    def _shared(self, value: Any) -> bool:
        # Values made by this pass are new variables without a count: they have one use.
        return self.uses.get(value, 1) > 1

    def _emit(self, expr: Any, like: Any) -> Any:
        """``expr`` bound to a variable with the name of what it takes the place of."""
        return self.builder_.emit(self.builder_.normalize(expr), getattr(like, "name", None))


def use_counts(func: relax.Function) -> Counter[Any]:
    """How often each variable of ``func`` is read, the result included."""
    counts: Counter[Any] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            counts[expr] += 1

    for binding in bindings(func):
        value = getattr(binding, "value", None)
        if value is not None:
            relax.analysis.post_order_visit(value, visit)
    relax.analysis.post_order_visit(func.body.body, visit)
    return counts


class HoistReshape(GraphPass):
    """Move row-regrouping reshapes up until they cancel."""

    name = "hoist-reshape"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        hoist = _Hoist(mod, use_counts(mod["main"]))
        main = hoist.visit_expr(mod["main"])
        out = hoist.builder_.get()
        out.update_func(out.get_global_var("main"), main)
        for name, reason in hoist.fired:
            ctx.report.decide(self.name, name, True, reason)
        return relax.transform.DeadCodeElimination(["main"])(out)


PASS = HoistReshape()
