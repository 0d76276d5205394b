"""Estimated times of operators: from OpSpec costs and the target's roofline numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import relax

from uif_tvm.errors import UifError
from uif_tvm.ops.spec import TensorType, nbytes
from uif_tvm.standard_ops import read, type_of

if TYPE_CHECKING:
    from tvm.ir import Call

    from uif_tvm.target.spec import TargetSpec

#: What a call back to the host costs before any work, in microseconds; measured on a server CPU.
HOST_CALL_US = 50.0
#: Rates of NumPy references, operations and bytes per second: scalar code, temporaries in memory.
HOST_FLOPS, HOST_BYTES = 1e9, 2e9


def microseconds(node: Call, target: TargetSpec, on_host: bool = False) -> float:
    """Lower bound of one call's time; bytes alone count where no spec tells the arithmetic."""
    flops, moved, dtype = _work(node)
    if on_host:
        return HOST_CALL_US + 1e6 * max(flops / HOST_FLOPS, moved / HOST_BYTES)
    return target.roofline.seconds(flops, moved, dtype) * 1e6


def _work(node: Call) -> tuple[float, float, str]:
    """(operations, bytes, dtype) of one call."""
    results = _tensor_types(node)
    found = None
    try:
        found = read(node)
        if found is not None:
            spec, operands, attrs = found
            types = [None if operand is None else type_of(operand) for operand in operands]
            cost = spec.cost(types, results, attrs)
            return cost.flops, cost.bytes, results[0].dtype if results else "float32"
    except UifError:
        pass  # a form that the spec does not describe: what it moves is still known
    given = [field for arg in node.args for field in _fields(arg)]
    read_types = [item for operand in given for item in _tensor_types(operand)]
    moved = float(sum(nbytes(item) for item in (*read_types, *results)))
    return 0.0, moved, results[0].dtype if results else "float32"


def _fields(arg: Any) -> list[Any]:
    return list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]


def _tensor_types(expr: Any) -> list[TensorType]:
    ty = getattr(expr, "ty", None)
    fields = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    found = []
    for field in fields:
        values = getattr(getattr(field, "shape", None), "values", None)
        if isinstance(field, relax.TensorType) and values is not None:
            shape = tuple(getattr(extent, "value", extent) for extent in values)
            found.append(TensorType(shape, str(field.dtype)))
    return found
