"""Operators whose ONNX schema carries a function body are expanded into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uif_tvm.frontends.onnx.attributes import schema_of
from uif_tvm.frontends.onnx.values import Absent, Dynamic, Known, Symbolic, Value


def expand_schema_function(
    node: Any, domain: str, version: int, inputs: Sequence[Value | None]
) -> Any | None:
    """The body of an operator as a ``FunctionProto``; ``None`` when the schema has none."""
    import onnx

    schema = schema_of(domain, node.op_type, version)
    if schema is None:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = [type_proto(value).SerializeToString() for value in inputs]
    body = schema.get_context_dependent_function(node.SerializeToString(), types)
    if not body:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(body)
    return proto


def type_proto(value: Value | None) -> Any:
    """ONNX type of a value: element type, and dimensions where static."""
    import onnx
    from onnx import helper

    from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

    if not isinstance(value, (Known, Symbolic, Dynamic)) or isinstance(value, Absent):
        return onnx.TypeProto()
    element = helper.np_dtype_to_tensor_dtype(numpy_dtype_named(value.dtype))
    shape = [dim if isinstance(dim, int) else None for dim in value.shape]
    return helper.make_tensor_type_proto(element, shape)
