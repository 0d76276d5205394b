"""Attributes of a node as Python values, defaults of its schema filled in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.onnx.sparse import dense
from uif_tvm.frontends.onnx.tensors import to_numpy
from uif_tvm.frontends.onnx.validate import fail


@lru_cache(maxsize=4096)
def schema_of(domain: str, op_type: str, version: int) -> Any | None:
    """ONNX's schema of an operator, ``None`` for operators it does not define."""
    import onnx

    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def decode(attribute: Any, folder: Path | None) -> Any:
    """One attribute's value: number, string, array, graph, or a list of those."""
    from onnx import AttributeProto

    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return float(attribute.f)
    if kind == AttributeProto.INT:
        return int(attribute.i)
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.TENSOR:
        return to_numpy(attribute.t, folder)
    if kind == AttributeProto.SPARSE_TENSOR:
        return dense(attribute.sparse_tensor, folder)
    if kind == AttributeProto.GRAPH:
        return attribute.g
    if kind == AttributeProto.FLOATS:
        return [float(value) for value in attribute.floats]
    if kind == AttributeProto.INTS:
        return [int(value) for value in attribute.ints]
    if kind == AttributeProto.STRINGS:
        return [value.decode("utf-8", "replace") for value in attribute.strings]
    if kind == AttributeProto.TENSORS:
        return [to_numpy(tensor, folder) for tensor in attribute.tensors]
    if kind == AttributeProto.GRAPHS:
        return list(attribute.graphs)
    if kind == AttributeProto.TYPE_PROTO:
        return attribute.tp
    raise ImportModelError(
        f"attribute {attribute.name!r} has a type that cannot be read ({kind})",
        code="UIF-IMPORT-ATTRIBUTE",
    )


def resolved(node: Any, references: Mapping[str, Any]) -> Any:
    """The node with attribute references of a function body replaced by the caller's values."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.add().CopyFrom(attribute)
        elif attribute.ref_attr_name in references:
            given = copy.attribute.add()
            given.CopyFrom(references[attribute.ref_attr_name])
            given.name = attribute.name
    return copy


def read_attributes(node: Any, domain: str, version: int, folder: Path | None) -> dict[str, Any]:
    """All attributes of a node.

    Raises:
        ImportModelError: a required attribute is missing, given twice or of the wrong type.
    """
    given: dict[str, Any] = {}
    schema = schema_of(domain, node.op_type, version)
    for attribute in node.attribute:
        if attribute.name in given:
            fail("ATTRIBUTE", f"attribute {attribute.name!r} is given twice", node)
        rule = schema.attributes.get(attribute.name) if schema is not None else None
        if rule is not None and int(rule.type.value) != int(attribute.type):
            fail("ATTRIBUTE", f"attribute {attribute.name!r} has the wrong type", node)
        given[attribute.name] = decode(attribute, folder)
    if schema is None:
        return given
    for name, rule in schema.attributes.items():
        if name in given:
            continue
        if rule.required:
            fail("ATTRIBUTE", f"attribute {name!r} is missing", node)
        if rule.default_value.name:
            given[name] = decode(rule.default_value, None)
    return given


def schema_defaults(node: Any, domain: str, versions: Mapping[str, int]) -> dict[str, Any]:
    """``AttributeProto`` defaults of an operator that its schema defines by a body."""
    schema = schema_of(domain, node.op_type, versions.get(domain, 1))
    if schema is None:
        return {}
    return {
        name: rule.default_value
        for name, rule in schema.attributes.items()
        if rule.default_value.name
    }
