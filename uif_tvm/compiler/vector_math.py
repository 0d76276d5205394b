"""Elementary functions in kernels become vector arithmetic: the last step before code generation.

    y[i:i+16] = f(exp(g(x[i:i+16])))
    ->  a = g(x[i:i+16]);  b = ...;  c = ...;  y[i:i+16] = f(c)

The formulas are in ``uif_tvm.kernels.math``. Named values live in stack slots of scope ``local``,
which LLVM turns into registers. Calls below ``if_then_else`` stay as they are: what guards their
arguments must not be moved past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import Stmt

#: Annotation that keeps TVM from replacing a stack slot by a call of the workspace allocator.
KEEP_ON_STACK = "disable_lower_builtin"
#: Functions with a formula that TVM's loop vectoriser would take apart although it need not.
_ALSO_VECTORISABLE = ("tirx.erf", "tirx.log1p")
_WIDENED = "float16"


def allow_vectors() -> None:
    """Tell TVM's vectoriser that the functions of our formulas take vectors (once is enough)."""
    from tvm.ir import Op

    for name in _ALSO_VECTORISABLE:
        op = Op.get(name)
        if not op.get_attr("TVectorizable"):
            op.set_attr("TVectorizable", True)


def expand_math() -> Any:
    """The pass of the module text, over lowered kernels."""
    import tvm_ffi
    from tvm import tirx

    def visit(store: Any) -> Any:
        expansion = _Expansion()
        value = expansion.expand(store.value)
        if not expansion.statements:
            return store
        final = tirx.BufferStore(store.buffer, value, store.indices)
        return tirx.SeqStmt([*expansion.statements, final])

    @tirx.transform.prim_func_pass(opt_level=0, name="uif.ExpandMath")
    def run(func: Any, _mod: Any, _ctx: Any) -> Any:
        return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.BufferStore, visit)]))

    return run


class _Expansion:
    """Expands one stored value; collects the statements that must come before the store."""

    def __init__(self) -> None:
        self.statements: list[Stmt] = []

    def expand(self, value: Any) -> Any:
        import tvm_ffi
        from tvm.ir import Call

        return tvm_ffi.structural_mutate(value, [(Call, self._call)])

    def _call(self, call: Any, mutator: Any) -> Any:
        from uif_tvm.kernels.math import FORMULAS

        name = str(getattr(call.op, "name", ""))
        if name.endswith("if_then_else"):
            return call
        call = mutator.default_mutate(call)
        formula = FORMULAS.get(name)
        dtype = str(call.ty.dtype)
        element = dtype.split("x")[0]
        if name in _ALSO_VECTORISABLE and element == "float64" and dtype != element:
            return self._lane_by_lane(call)
        if formula is None or element not in ("float32", _WIDENED):
            return call
        lanes = dtype.removeprefix(element)
        argument = call.args[0]
        if element == _WIDENED:
            argument = argument.astype(f"float32{lanes}")
        result = formula(self._keep, self._keep(argument))
        return self._keep(result if element == "float32" else result.astype(dtype))

    def _lane_by_lane(self, call: Any) -> Any:
        """Scalar library calls for a vector of a type that has no formula."""
        from tvm import tirx
        from tvm.ir import Call

        source, _ = self._slot(call.args[0])
        result, at = self._slot(call.args[0])
        lane = tirx.Var("lane", "int32")
        element = str(call.ty.dtype).split("x")[0]
        scalar = Call(call.op, [tirx.BufferLoad(source, [lane])], ret_ty=element)
        body = tirx.BufferStore(result, scalar, [lane])
        self.statements.append(
            tirx.For(lane, tirx.const(0, "int32"), source.shape[0], tirx.ForKind.SERIAL, body)
        )
        return tirx.BufferLoad(result, [at])

    def _keep(self, value: Any) -> Any:
        """Store ``value`` into a new stack slot; returns an expression that reads it."""
        from tvm import tirx

        buffer, at = self._slot(value)
        return tirx.BufferLoad(buffer, [at])

    def _slot(self, value: Any) -> tuple[Any, Any]:
        """(stack slot that holds ``value``, the index of all its lanes)."""
        from tvm import tirx
        from tvm.runtime import DataType

        dtype = DataType(str(value.ty.dtype))
        element = str(value.ty.dtype).split("x")[0]
        buffer = tirx.decl_buffer((dtype.lanes,), element, "value", scope="local")
        at: Any = tirx.const(0, "int32")
        if dtype.lanes > 1:
            at = tirx.Ramp(at, tirx.const(1, "int32"), dtype.lanes)
        keep = {KEEP_ON_STACK: tirx.IntImm("int32", 1)}
        self.statements.append(tirx.AllocBuffer(buffer, keep))
        self.statements.append(tirx.BufferStore(buffer, value, [at]))
        return buffer, at
