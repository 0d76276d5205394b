"""What becomes of an operator that the target does not run: composed, or evaluated on the host.

    y = op(x)  ->  y = f(g(x))                                       by the OpSpec's decomposition
    y = op(x)  ->  y = call_dps_packed("uif.host.reference", (...))  by the OpSpec's reference

A decomposition is rehearsed on types before anything is emitted: either every operator it would
leave has a kernel on the target, or the operator is not composed at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import ir, relax
from tvm.ir import Call

from uif_tvm import ops
from uif_tvm.errors import UifError
from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.ops.spec import OpSpec, TensorType
from uif_tvm.relax_util import make_constant
from uif_tvm.standard_ops import RelaxBuilder, read, tensor_type, type_of
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    import tvm

#: Evaluates an OpSpec's NumPy reference; see ``runtime/reference_ops.py``.
HOST_CALL = "uif.host.reference"
#: Where an operator runs.
NATIVE, COMPOSED, HOST = "native", "composed", "host"
#: (operator, attributes, operand dtypes) -> why the target does not run it, ``None`` if it does.
Ask = Callable[[str, Mapping[str, Any], tuple[str, ...]], "Refusal | None"]


class Rehearsal:
    """Runs a decomposition on types alone and collects what the target would refuse of it.

    Args:
        ask: what the target says to one operator.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.refused: list[str] = []

    def op(self, name: str, *operands: TensorType | None, **attrs: Any) -> Any:
        """See ``ops.build.Builder.op``."""
        spec = ops.find(name)
        values = spec.resolve(attrs)
        results = spec.result_types(operands, values)
        dtypes = tuple(item.dtype for item in operands if item is not None)
        refusal = graph_refusal(spec, values, dtypes, self._ask)
        if refusal is not None and not composable(spec, operands, values, self._ask):
            self.refused.append(f"{name} ({refusal.code})")
        return results[0] if spec.results == 1 and len(results) == 1 else results

    def const(self, value: Any, dtype: str) -> TensorType:
        """See ``ops.build.Builder.const``."""
        return TensorType(np.shape(value), dtype)

    def shape(self, value: TensorType) -> tuple[Any, ...]:
        """See ``ops.build.Builder.shape``."""
        return value.shape

    def dtype(self, value: TensorType) -> str:
        """See ``ops.build.Builder.dtype``."""
        return value.dtype


class ComposingBuilder(RelaxBuilder):
    """Emits a decomposition, taking apart further what the target refuses of it."""

    def __init__(self, bb: relax.BlockBuilder, name: str, ask: Ask) -> None:
        super().__init__(bb, name)
        self._ask = ask

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        """See ``ops.build.Builder.op``."""
        spec = ops.find(name)
        values = spec.resolve(attrs)
        dtypes = tuple(self.dtype(item) for item in operands if item is not None)
        if spec.decompose and graph_refusal(spec, values, dtypes, self._ask) is not None:
            return spec.decompose(self, operands, values)
        return super().op(name, *operands, **attrs)


def graph_refusal(
    spec: OpSpec, attrs: Mapping[str, Any], dtypes: tuple[str, ...], ask: Ask
) -> Refusal | None:
    """Why an operator has no native kernel on the target, ``None`` if it has one."""
    if spec.relax is None and spec.graph_name not in LEGALIZE:
        return Refusal("no-kernel", f"no kernel is registered for {spec.graph_name}")
    return ask(spec.name, attrs, dtypes)


def composable(
    spec: OpSpec, types: Sequence[TensorType | None], attrs: Mapping[str, Any], ask: Ask
) -> bool:
    """Whether the target runs everything that the operator's decomposition consists of."""
    if spec.decompose is None:
        return False
    rehearsal = Rehearsal(ask)
    try:
        spec.decompose(rehearsal, types, attrs)
    except UifError:
        return False  # it does not apply to these operands, such as ones of symbolic extent
    return not rehearsal.refused


def host_fault(node: Call) -> str | None:
    """Why the reference cannot stand in for a call, ``None`` if it can."""
    found = read(node)
    if found is None:
        return "no OpSpec says what it means"
    spec, operands, attrs = found
    if spec.data_dependent:
        return "its result's extents depend on the data"
    try:
        _result_types(spec, operands, attrs, node)
    except UifError as error:
        return str(error)
    return None


def host_call(bb: relax.BlockBuilder, node: Call, name: str) -> Any:
    """Emit the call's evaluation on the host; see :func:`host_fault`."""
    found = read(node)
    assert found is not None
    spec, operands, attrs = found
    payload = {
        "op": spec.name,
        "version": spec.version,
        "attrs": attrs,
        "given": [operand is not None for operand in operands],
    }
    text = np.frombuffer(json.dumps(payload, sort_keys=True).encode(), np.uint8)
    results = _result_types(spec, operands, attrs, node)
    types = [relax.TensorType(relax.ShapeExpr(list(item.shape)), item.dtype) for item in results]
    given = [operand for operand in operands if operand is not None]
    return bb.emit(
        relax.op.call_dps_packed(
            HOST_CALL,
            relax.Tuple([ir.StringImm(spec.name), make_constant(text.copy()), *given]),
            types,
        ),
        name,
    )


def compose(bb: relax.BlockBuilder, node: Call, name: str, ask: Ask) -> Any:
    """Emit the call's decomposition; see :func:`composable`."""
    found = read(node)
    assert found is not None
    spec, operands, attrs = found
    assert spec.decompose is not None
    value = spec.decompose(ComposingBuilder(bb, name, ask), operands, attrs)
    return relax.Tuple(list(value)) if isinstance(value, tuple) else value


def _result_types(
    spec: OpSpec, operands: Sequence[Any], attrs: Mapping[str, Any], node: Call
) -> tuple[TensorType, ...]:
    if spec.infer is None:
        fields = node.ty.fields if isinstance(node.ty, relax.TupleType) else [node.ty]
        return tuple(tensor_type(field) for field in fields)
    return spec.result_types(
        [None if operand is None else type_of(operand) for operand in operands], attrs
    )


def rewrite(mod: tvm.IRModule, ways: Mapping[relax.Var, str], ask: Ask) -> tvm.IRModule:
    """``mod`` with the calls bound to the variables of ``ways`` composed or run on the host."""
    from tvm.relax.expr_functor import PyExprMutator, mutator

    @mutator
    class Rewrite(PyExprMutator):  # type: ignore[misc]
        bound: Any = None

        def visit_var_binding_(self, binding: relax.VarBinding) -> None:
            self.bound = binding.var
            super().visit_var_binding_(binding)

        def visit_call_(self, node: Call) -> Any:
            bound, way = self.bound, ways.get(self.bound)
            new = self.visit_expr_post_order(node)
            if way == COMPOSED:
                return compose(self.builder_, new, bound.name, ask)
            return host_call(self.builder_, new, bound.name) if way == HOST else new

    work = Rewrite(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            work.builder_.update_func(var, work.visit_expr(func))
    return work.builder_.get()
