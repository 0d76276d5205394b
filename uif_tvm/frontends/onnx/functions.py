"""Operators whose ONNX schema carries a function body are expanded into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uif_tvm.frontends.onnx.attributes import schema_of
from uif_tvm.frontends.onnx.values import (
    Dim,
    Dynamic,
    HostSequence,
    Known,
    SequenceValue,
    Symbolic,
    Value,
)
from uif_tvm.runtime.strings import TEXT


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
    """ONNX type of a value: element type, and dimensions where static.

    An empty sequence does not tell its element type; float32 stands in.
    """
    import onnx
    from onnx import helper

    if isinstance(value, SequenceValue):
        if not value.items:
            return helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
        return helper.make_sequence_type_proto(type_proto(value.items[0]))
    if isinstance(value, HostSequence):
        return value.type_proto
    if not isinstance(value, (Known, Symbolic, Dynamic)):
        return onnx.TypeProto()
    return tensor_type(value, None)


def tensor_type(value: Known | Symbolic | Dynamic, names: dict[str, Dim] | None) -> Any:
    """ONNX type of a tensor.

    Args:
        names: where given, symbolic dimensions are named, and their names collected here.
    """
    from onnx import helper

    if isinstance(value, Dynamic) and value.expr.ty.shape is None:
        return helper.make_tensor_type_proto(element_code(value.dtype), None)
    shape: list[int | str | None] = []
    for dim in value.shape:
        if isinstance(dim, int) or names is None:
            shape.append(dim if isinstance(dim, int) else None)
        else:
            names[str(dim)] = dim
            shape.append(str(dim))
    return helper.make_tensor_type_proto(element_code(value.dtype), shape)


def element_code(dtype: str) -> int:
    """ONNX's number of an element type."""
    from onnx import TensorProto, helper

    from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

    if dtype == TEXT:
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype_named(dtype)))
