"""Small questions about nodes: which are needed, do they fit their schema, what are they given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uif_tvm.frontends.onnx.validate import fail, nodes_below
from uif_tvm.frontends.onnx.values import Dynamic, Known, Symbolic, Value


def check_arity(node: Any, schema: Any | None) -> None:
    """Check the numbers of inputs and outputs.

    Raises:
        ImportModelError: the schema allows other numbers.
    """
    if schema is None:
        return
    given = len(node.input)
    if given < schema.min_input or given > schema.max_input:
        fail("ARITY", f"has {given} inputs; {schema.min_input} to {schema.max_input} fit", node)
    if len(node.output) > schema.max_output:
        fail("ARITY", f"has {len(node.output)} outputs; at most {schema.max_output} fit", node)


def check_types(node: Any, schema: Any | None, inputs: Sequence[Value | None]) -> None:
    """Check element types against the operator's schema, and against each other.

    Raises:
        ImportModelError: an operand has a type that the schema does not list, or two that must be
            alike differ.
    """
    if schema is None or not schema.inputs:
        return
    bound: dict[str, tuple[int, str]] = {}
    for place, value in enumerate(inputs):
        parameter = schema.inputs[min(place, len(schema.inputs) - 1)]
        if not isinstance(value, (Known, Symbolic, Dynamic)):
            continue
        if any(allowed.startswith("optional(") for allowed in parameter.types):
            continue  # a tensor may stand for an optional that holds it
        dtype = value.dtype
        named = f"tensor({_ONNX_NAMES.get(dtype, dtype)})"
        if named not in parameter.types and not _allowed_later(schema, place, named):
            fail("TYPE", f"input {place} ({parameter.name}) cannot be {dtype}", node, _TYPES_HINT)
        first, other = bound.setdefault(parameter.type_str, (place, dtype))
        if other != dtype and parameter.is_homogeneous:
            fail("TYPE", f"input {first} is {other}, input {place} is {dtype}; they must be "
                 "alike", node, _TYPES_HINT)  # fmt: skip


def _allowed_later(schema: Any, place: int, named: str) -> bool:
    """Whether a newer version of the operator takes the type: exporters are ahead of versions."""
    import onnx

    newest = onnx.defs.get_schema(schema.name, schema.domain)
    if newest.deprecated or place >= len(newest.inputs):
        place = len(newest.inputs) - 1
    return bool(newest.inputs) and named in newest.inputs[place].types


#: Names of element types where ONNX's differ from NumPy's.
_ONNX_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "float6_e2m3fn": "float6e2m3",
    "float6_e3m2fn": "float6e3m2",
    "float4_e2m1fn": "float4e2m1",
}
_TYPES_HINT = "insert a Cast, or export the model again"


def describe(inputs: Sequence[Value | None]) -> str:
    """Types of a node's inputs, for error texts."""

    def one(value: Value | None) -> str:
        if isinstance(value, (Known, Symbolic)):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, Dynamic):
            return str(value.expr.ty).replace("\n", " ")
        return type(value).__name__

    return "(" + ", ".join(one(value) for value in inputs) + ")"


def reason_of(exc: Exception) -> str:
    """The telling line of an error, which TVM hides among source excerpts."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip(" |^")]
    telling = [line for line in lines if "error:" in line or "Check failed" in line]
    return (telling or lines or [type(exc).__name__])[0]


def needed(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """The nodes that the outputs depend on, in order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(name in wanted for name in node.output if name):
            kept.append(node)
            wanted.update(name for inner in nodes_below([node]) for name in inner.input if name)
            for inner in nodes_below([node]):
                for attribute in inner.attribute:
                    for sub in [attribute.g, *attribute.graphs]:
                        wanted.update(value.name for value in sub.output)
    return kept[::-1]
