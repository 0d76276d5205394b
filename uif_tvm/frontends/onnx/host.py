"""Host fallback: an operator without converter, evaluated at run time by ONNX's reference.

    y = op(x)  ->  y = call_dps_packed("uif.host.onnx", ("op", model bytes, x))

The one-node model travels as a byte tensor among the weights, so a ``.uif`` file needs nothing
beside it but the ``onnx`` package where it runs. Result shapes must be settled at import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.frontends.onnx.tensors import numpy_dtype
from uif_tvm.frontends.onnx.values import Dynamic, Known, Value, is_static

if TYPE_CHECKING:
    from tvm import relax

HOST_CALL = "uif.host.onnx"

_NUMPY_TYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def host_call(
    bb: relax.BlockBuilder, node: Any, domain: str, version: int, inputs: Sequence[Value | None]
) -> list[Value] | None:
    """The node as a call back to the host, or ``None`` where that cannot be done.

    It can for plain nodes on tensors of static shape whose results' shapes follow from those and
    which the reference evaluates without error on example data.
    """
    from tvm import ir, relax

    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return None
    given = [value for value in inputs if isinstance(value, (Known, Dynamic))]
    if len(given) != sum(value is not None for value in inputs):
        return None
    if not all(is_static(value.shape) and _exchangeable(value.dtype) for value in given):
        return None
    model = one_node_model(node, domain, version, inputs)
    results = _declared_results(model)
    if results is None or not all(_exchangeable(str(dtype)) for _, dtype in results):
        return None
    if not _evaluates(model, results):
        return None
    payload = relax.const(np.frombuffer(model.SerializeToString(), np.uint8).copy(), "uint8")
    args = [_expr(value) for value in given]
    types = [relax.TensorType(shape, str(dtype)) for shape, dtype in results]
    label = ir.StringImm(f"{domain}::{node.op_type}" if domain else str(node.op_type))
    call = relax.op.call_dps_packed(HOST_CALL, relax.Tuple([label, payload, *args]), types)
    out = bb.emit(call, name_hint=node.name or node.op_type)
    if len(types) == 1:
        return [Dynamic(out)]
    return [
        Dynamic(bb.emit(relax.TupleGetItem(out, index), name_hint=name or "unused"))
        for index, name in enumerate(node.output)
    ]


def one_node_model(node: Any, domain: str, version: int, inputs: Sequence[Value | None]) -> Any:
    """A model of ``node`` alone, its inputs named ``i0, i1 ...`` and typed."""
    from onnx import TensorProto, helper

    copy = type(node)()
    copy.CopyFrom(node)
    names = [f"i{number}" if value is not None else "" for number, value in enumerate(inputs)]
    del copy.input[:], copy.output[:]
    copy.input.extend(names)
    copy.output.extend(f"o{number}" for number in range(len(node.output)))
    declared = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), list(value.shape)
        )
        for name, value in zip(names, inputs, strict=True)
        if isinstance(value, (Known, Dynamic))
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in copy.output]
    graph = helper.make_graph([copy], "host", declared, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)])


def _declared_results(model: Any) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
    """Shapes and dtypes by ONNX's shape inference, ``None`` unless all are static."""
    from onnx import shape_inference

    try:
        graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    except Exception:
        return None  # not inferable is not an error: the operator is refused as unsupported
    results = []
    for output in graph.output:
        tensor = output.type.tensor_type
        dims = tensor.shape.dim
        if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in dims):
            return None
        shape = tuple(int(dim.dim_value) for dim in dims)
        results.append((shape, numpy_dtype(tensor.elem_type, f"result {output.name!r}")))
    return results


def _evaluates(model: Any, results: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> bool:
    """Whether the reference gives the declared results on example data."""
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    feeds = {}
    for declared in model.graph.input:
        tensor = declared.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = numpy_dtype(tensor.elem_type, f"input {declared.name!r}")
        values = rng.standard_normal(shape) if dtype.kind == "f" else np.zeros(shape)
        feeds[declared.name] = np.asarray(values).astype(dtype)
    try:
        with np.errstate(all="ignore"):
            have = ReferenceEvaluator(model).run(None, feeds)
    except Exception:
        return False
    return all(
        tuple(np.shape(value)) == shape and np.asarray(value).dtype == dtype
        for value, (shape, dtype) in zip(have, results, strict=True)
    )


def _exchangeable(dtype: str) -> bool:
    """Whether NumPy itself has the type, so that the evaluator can work on shared memory."""
    return dtype in _NUMPY_TYPES


def _expr(value: Known | Dynamic) -> relax.Expr:
    from tvm import relax

    if isinstance(value, Dynamic):
        return value.expr
    return relax.const(np.asarray(value.array, order="C"), str(value.array.dtype))
