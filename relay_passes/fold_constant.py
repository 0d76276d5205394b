"""Constant folding: ``f(c1, c2)  ->  c`` where every operand is a constant.

Values come from the operator's NumPy reference, so folding neither compiles anything nor depends
on the target. Results much larger than their operands (a broadcast) are left to run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import constant_array, make_constant, op_name, static_shape
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: A folded result may be this many times its operands' bytes, or this many bytes.
GROWTH, ALWAYS = 2, 1 << 16


@mutator
class _Fold(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.folded = 0

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        value = self._evaluate(call)
        if value is None:
            return call
        self.folded += 1
        return make_constant(value)

    def _constant(self, expr: Any) -> np.ndarray[Any, Any] | None:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return constant_array(expr)

    def _evaluate(self, call: Any) -> np.ndarray[Any, Any] | None:
        """The call's value, or ``None`` when it is not constant, not known, or not worth it."""
        shape = static_shape(call) if isinstance(call, Call) else None
        if shape is None or op_name(call) is None:
            return None
        if op_name(call) == "relax.reshape":
            array = self._constant(call.args[0])
            return None if array is None else np.reshape(array, shape)
        if not call.args or self._constant(call.args[0]) is None:
            return None
        found = read(call)
        if found is None or found[0].results != 1:
            return None
        spec, operands, attrs = found
        arrays = [None if operand is None else self._constant(operand) for operand in operands]
        if any((a is None) != (o is None) for a, o in zip(arrays, operands, strict=True)):
            return None
        dtype = numpy_dtype(str(call.ty.dtype.dtype))
        known = sum(array.nbytes for array in arrays if array is not None)
        if int(np.prod(shape)) * dtype.itemsize > max(ALWAYS, GROWTH * known):
            return None
        try:
            value = spec.evaluate(arrays, attrs)
        except (ArithmeticError, TypeError, ValueError):
            return None  # such as an integer to a negative power: run time decides what that means
        # A reference that promotes differently from Relax must not change the graph's types.
        fits = isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape
        return value if fits else None


class FoldConstant(GraphPass):
    """Evaluate what depends on constants only."""

    name = "fold-constant"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        fold = _Fold(mod)
        main = fold.visit_expr(mod["main"])
        if fold.folded:
            mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
            mod["main"] = main
            mod = relax.transform.CanonicalizeBindings()(mod)
            ctx.report.decide(self.name, "main", True, f"{fold.folded} calls folded")
        return mod


PASS = FoldConstant()
