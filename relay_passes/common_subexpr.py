"""Common subexpressions: ``a = f(x); b = f(x)  ->  a = f(x); b = a``.

Value numbering, block by block: two calls are the same when operator, attributes and result type
are equal and their operands have the same numbers. Branches see the values in front of them, not
each other's. Constants are one value when they are one object, or equal and small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from uif_tvm.relay_passes.fusion_graph import result_bytes

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import constant_array, op_name

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext

#: Constants up to this many bytes are compared by their values.
_SMALL_BYTES = 256

_Scope = dict[Any, list[tuple[Any, Call]]]


class _Numbering:
    """Finds calls that repeat an earlier one, and binds them to its variable."""

    def __init__(self) -> None:
        self._same: dict[Any, Any] = {}
        #: (variable, the earlier one with its value, call)
        self.found: list[tuple[Any, Any, Call]] = []

    def sequence(self, seq: Any, outer: _Scope) -> Any:
        scope = {key: list(rows) for key, rows in outer.items()}
        blocks = [
            type(block)([self._binding(binding, scope) for binding in block.bindings])
            for block in seq.blocks
        ]
        made = relax.SeqExpr(blocks, seq.body)
        relax.expr._update_type(made, seq.ty)
        return made

    def _binding(self, binding: Any, scope: _Scope) -> Any:
        value: Any = getattr(binding, "value", None)
        if isinstance(value, relax.If):
            branches = [self.sequence(b, scope) for b in (value.true_branch, value.false_branch)]
            chosen = relax.If(value.cond, *branches)
            relax.expr._update_type(chosen, value.ty)
            return relax.VarBinding(binding.var, chosen)
        if isinstance(value, relax.Var) and isinstance(binding, relax.VarBinding):
            self._same[binding.var] = self._same.get(value, value)
        if not isinstance(binding, relax.VarBinding) or not _is_pure(value):
            return binding
        key = (value.op.name, tuple(self._number(arg) for arg in value.args),
               tvm_ffi.structural_hash(value.attrs) if value.attrs is not None else 0)  # fmt: skip
        rows = scope.setdefault(key, [])
        for var, call in rows:
            if _equal(var.ty, binding.var.ty) and self._equal_calls(call, value):
                self._same[binding.var] = var
                self.found.append((binding.var, var, value))
                return relax.VarBinding(binding.var, var)
        rows.append((binding.var, value))
        return binding

    def _number(self, arg: Any) -> Any:
        if isinstance(arg, relax.Var):
            return hash(self._same.get(arg, arg))
        if isinstance(arg, relax.Tuple):
            return tuple(self._number(field) for field in arg.fields)
        if isinstance(arg, GenericConst):
            array = constant_array(arg)
            if array is None or array.nbytes > _SMALL_BYTES:
                return hash(arg)
            return (str(array.dtype), array.shape, array.tobytes())
        return tvm_ffi.structural_hash(arg)

    def _equal_calls(self, a: Call, b: Call) -> bool:
        """Equality of what the numbers leave open: operands that are no tensors, attributes."""
        return _equal(a.attrs, b.attrs) and all(map(self._equal_args, a.args, b.args))

    def _equal_args(self, a: Any, b: Any) -> bool:
        if isinstance(a, relax.Tuple) and isinstance(b, relax.Tuple):
            return all(map(self._equal_args, a.fields, b.fields))
        if isinstance(a, relax.Var | GenericConst):
            return type(a) is type(b)  # their numbers are equal, and say all
        return _equal(a, b)


def _equal(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def _is_pure(value: Any) -> bool:
    return isinstance(value, Call) and isinstance(value.op, Op) and bool(
        value.op.get_attr("FPurity")
    )  # fmt: skip


class CommonSubexpr(GraphPass):
    """Compute each pure expression once."""

    name = "common-subexpr"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        numbering = _Numbering()
        main = mod["main"]
        body = numbering.sequence(main.body, {})
        for var, first, call in numbering.found:
            gain = Gain(bytes=result_bytes(var), launches=1)
            ctx.report.decide(
                self.name, str(var.name), True,
                f"{op_name(call)} of the same operands as {first.name}, which takes its place",
                gain_us=gain.microseconds(ctx.target), **gain.figures(),
            )  # fmt: skip
        if numbering.found:
            functions = dict(mod.functions)
            functions[mod.get_global_var("main")] = relax.Function(
                main.params, body, main.ret_ty, main.is_pure, main.attrs
            )
            mod = type(mod)(functions, attrs=mod.attrs)
        return relax.transform.CanonicalizeBindings()(mod)


PASS = CommonSubexpr()
