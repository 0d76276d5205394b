"""For passes that replace one call at a time: what stands behind it, and who else reads it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator

from uif_tvm.compiler.gain import Gain
from uif_tvm.relax_util import bindings, constant_array, op_name

if TYPE_CHECKING:
    import numpy as np

    from uif_tvm.compiler.context import CompileContext


class LocalRewrite(PyExprMutator):  # type: ignore[misc]
    """A mutator whose subclasses (decorated with ``mutator``) rewrite calls in ``visit_call_``."""

    def __init__(self, mod: tvm.IRModule, ctx: CompileContext, name: str) -> None:
        super().__init__(mod)
        self.ctx, self.name = ctx, name
        #: Source name of the value whose call is visited.
        self.subject = "main"
        self._uses = _use_counts(mod)
        self._readers: dict[Any, int] = {}
        self._local: set[Any] = set()

    def visit_dataflow_block_(self, block: Any) -> Any:
        """Variables of one dataflow block are not visible in another."""
        outer, self._local = self._local, set()
        result = super().visit_dataflow_block_(block)
        self._local = outer
        return result

    def visit_var_binding_(self, binding: Any) -> None:
        """Remember the name, and how often the value is read."""
        self.subject = str(binding.var.name)
        super().visit_var_binding_(binding)
        made = self.visit_expr(binding.var)
        self._readers[made] = self._uses[binding.var]
        self._local.add(made)

    def emit(self, expr: Any) -> Any:
        """Bind ``expr`` to a variable named after the current call."""
        var = self.builder_.emit(self.builder_.normalize(expr), self.subject)
        self._local.add(var)
        return var

    def visible(self, expr: Any) -> bool:
        """Whether ``expr`` may be read by the current call."""
        if isinstance(expr, relax.Tuple):
            return all(map(self.visible, expr.fields))
        return not isinstance(expr, relax.DataflowVar) or expr in self._local

    def bound(self, expr: Any) -> Any:
        """What a variable stands for, through aliases; else the expression itself."""
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr

    def made_by(self, expr: Any) -> Call | None:
        """The call behind ``expr`` when the current call may read all that it reads."""
        value = self.bound(expr)
        if not isinstance(value, Call) or not all(map(self.visible, value.args)):
            return None
        return value

    def constant(self, expr: Any) -> np.ndarray[Any, Any] | None:
        """Value of a constant expression."""
        return constant_array(self.bound(expr))

    def alone(self, expr: Any) -> bool:
        """Whether nobody but the current call reads ``expr``."""
        return self._readers.get(expr, 1) <= 1

    def fired(self, reason: str, gain: Gain) -> None:
        """Record that the current call was rewritten."""
        saved = gain.microseconds(self.ctx.target)
        self.ctx.report.decide(self.name, self.subject, True, reason, saved, **gain.figures())

    def declined(self, reason: str) -> None:
        """Record why the current call stays as it is."""
        self.ctx.report.decide(self.name, self.subject, False, reason)

    def run(self) -> tvm.IRModule:
        """Every Relax function rewritten, without what nobody reads any more."""
        for var, func in list(self.builder_.get().functions.items()):
            if isinstance(func, relax.Function):
                self.builder_.update_func(var, self.visit_expr(func))
        mod = relax.transform.CanonicalizeBindings()(self.builder_.get())
        return relax.transform.DeadCodeElimination(["main"])(mod)


def operator(expr: Any) -> str | None:
    """The operator that ``expr`` applies, ``None`` for anything but a call of one."""
    return op_name(expr) if isinstance(expr, Call) else None


def _use_counts(mod: tvm.IRModule) -> Counter[Any]:
    """How often each variable is read, results included."""
    counts: Counter[Any] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            counts[expr] += 1

    for func in mod.functions.values():
        if not isinstance(func, relax.Function):
            continue
        for binding in bindings(func):
            value = getattr(binding, "value", None)
            if isinstance(value, relax.If):
                for part in (value.cond, value.true_branch.body, value.false_branch.body):
                    relax.analysis.post_order_visit(part, visit)
            elif value is not None:
                relax.analysis.post_order_visit(value, visit)
        relax.analysis.post_order_visit(func.body.body, visit)
    return counts
