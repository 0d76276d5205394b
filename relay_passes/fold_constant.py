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

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import calls, constant_array, make_constant, op_name, static_shape
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: A folded result may be this many times its operands' bytes, or this many bytes.
GROWTH, ALWAYS = 2, 1 << 16


@mutator
class _Fold(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._names = {call: str(var.name) for var, call in calls(mod)}
        #: (source name, operator, bytes of operands and result, operations) of each folded call.
        self.folded: list[tuple[str, str, float, float]] = []
        #: (source name, reason) of each call that only depends on constants and was left.
        self.left: list[tuple[str, str]] = []

    def visit_call_(self, call: Call) -> Any:
        name = self._names.get(call, "")
        call = self.visit_expr_post_order(call)
        value = self._evaluate(call, name)
        if value is None:
            return call
        given = [self._constant(field) for arg in call.args for field in _fields(arg)]
        read_bytes = sum(array.nbytes for array in given if array is not None)
        moved = float(read_bytes + value.nbytes)
        self.folded.append((name, op_name(call) or "", moved, float(value.size)))
        return make_constant(value)

    def _constant(self, expr: Any) -> np.ndarray[Any, Any] | None:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return constant_array(expr)

    def _evaluate(self, call: Any, name: str) -> np.ndarray[Any, Any] | None:
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
        size = int(np.prod(shape)) * dtype.itemsize
        if size > max(ALWAYS, GROWTH * known):
            self.left.append((name, f"{op_name(call)} makes {size} B of {known} B, more than "
                              f"{GROWTH} times as many: the file would grow"))  # fmt: skip
            return None
        try:
            value = spec.evaluate(arrays, attrs)
        except (ArithmeticError, TypeError, ValueError) as error:
            # Such as an integer to a negative power: run time decides what that means.
            self.left.append((name, f"{op_name(call)} has no value in NumPy: {error}"))
            return None
        # A reference that promotes differently from Relax must not change the graph's types.
        fits = isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape
        return value if fits else None


def _fields(arg: Any) -> list[Any]:
    return list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]


class FoldConstant(GraphPass):
    """Evaluate what depends on constants only."""

    name = "fold-constant"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        fold = _Fold(mod)
        main = fold.visit_expr(mod["main"])
        for name, reason in fold.left:
            ctx.report.decide(self.name, name, False, reason)
        for name, operator, moved, operations in fold.folded:
            gain = Gain(bytes=moved, launches=1, flops=operations)
            ctx.report.decide(
                self.name, name, True, f"{operator} of constants, {moved:.0f} B not moved",
                gain_us=gain.microseconds(ctx.target), **gain.figures(),
            )  # fmt: skip
        if fold.folded:
            mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
            mod["main"] = main
            mod = relax.transform.CanonicalizeBindings()(mod)
        return mod


PASS = FoldConstant()
