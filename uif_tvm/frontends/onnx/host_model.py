"""The one-node model that the host evaluates in place of a node.

Inputs of the model are the node's operands and the outer values that its subgraphs read. Small
known operands travel inside it, so that shape inference sees them. How the arguments of the call
map to the model's inputs stands in its metadata, see :mod:`uif_tvm.runtime.host_ops`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm.frontends.onnx.functions import tensor_type
from uif_tvm.frontends.onnx.validate import domain_of, nodes_below
from uif_tvm.frontends.onnx.values import (
    Absent,
    Dim,
    Dynamic,
    HostSequence,
    Known,
    SequenceValue,
    Symbolic,
    Value,
)
from uif_tvm.runtime.host_ops import LIST, NOTHING, SEQUENCE, SLOTS, TENSOR

if TYPE_CHECKING:
    from uif_tvm.frontends.onnx.scope import Scope

EMBEDDED = 1 << 12
"""Elements of a known operand up to which it travels inside the model."""

Operand = Known | Symbolic | Dynamic | HostSequence


class NotRepresentableError(Exception):
    """A value that cannot be passed to the host."""


@dataclass
class HostModel:
    """A model of one node and what to pass to it.

    Args:
        proto: the ``ModelProto``.
        operands: per argument of the call, the value that becomes it, in order.
        dims: symbolic dimensions by the name that stands for them in ``proto``.
    """

    proto: Any
    operands: list[Operand]
    dims: dict[str, Dim]


def build(
    node: Any,
    inputs: Sequence[Value | None],
    scope: Scope,
    functions: Mapping[tuple[str, str], Any],
    folder: Path | None,
) -> HostModel:
    """A model of ``node`` alone, results named ``uif_result_0``, ``uif_result_1`` ...

    Raises:
        NotRepresentableError: an operand that cannot be passed.
    """
    from onnx import ValueInfoProto, helper

    copy = type(node)()
    copy.CopyFrom(node)
    substitute(copy, scope.references)
    _inline_data(copy, folder)
    interface = _Interface()
    for number, value in enumerate(inputs):
        copy.input[number] = operand_name(number) if value is not None else ""
        if value is not None:
            interface.add(copy.input[number], value)
    for name in sorted(captured(copy) - set(copy.input)):
        interface.add(name, scope.lookup(name))
    for number, name in enumerate(copy.output):
        copy.output[number] = f"uif_result_{number}" if name else ""
    # Of no type at all: inference refuses to replace one kind of type by another.
    results = [ValueInfoProto(name=name) for name in copy.output if name]
    graph = helper.make_graph([copy], "host", interface.declared, results, interface.held)
    called = any((domain_of(n.domain), n.op_type) in functions for n in nodes_below([copy]))
    proto = helper.make_model(graph, functions=list(functions.values()) if called else [])
    del proto.opset_import[:]
    versions = dict(scope.versions)
    for function in proto.functions:
        for entry in function.opset_import:
            versions.setdefault(domain_of(entry.domain), entry.version)
    versions.setdefault(domain_of(copy.domain), 1)
    for domain, version in versions.items():
        proto.opset_import.append(helper.make_opsetid(domain, version))
    note = proto.metadata_props.add()
    note.key, note.value = SLOTS, json.dumps(interface.slots)
    return HostModel(proto, interface.operands, interface.dims)


@dataclass
class _Interface:
    """Collects the model's inputs and the arguments that fill them."""

    declared: list[Any] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    slots: list[tuple[str, int]] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    dims: dict[str, Dim] = field(default_factory=dict)

    def add(self, name: str, value: Value) -> None:
        """Declare one input of the model, or hold its value as an initializer."""
        import onnx
        from onnx import helper, numpy_helper

        if isinstance(value, Known) and value.array.size <= EMBEDDED:
            self.held.append(numpy_helper.from_array(value.array, name))
            return
        if isinstance(value, (Known, Symbolic, Dynamic)):
            self.slots.append((TENSOR, 1))
            self.operands.append(value)
            kind = tensor_type(value, self.dims)
        elif isinstance(value, SequenceValue):
            self.slots.append((SEQUENCE, len(value.items)))
            kind = helper.make_sequence_type_proto(self._element(value))
        elif isinstance(value, HostSequence):
            self.slots.append((LIST, 1))
            self.operands.append(value)
            kind = value.type_proto
        elif isinstance(value, Absent):
            self.slots.append((NOTHING, 0))
            element = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
            kind = helper.make_optional_type_proto(element)
        else:
            raise NotRepresentableError(type(value).__name__)
        info = onnx.ValueInfoProto(name=name)
        info.type.CopyFrom(kind)
        self.declared.append(info)

    def _element(self, value: SequenceValue) -> Any:
        """Type of the items: dimensions where they agree, else the rank, else nothing."""
        import onnx
        from onnx import helper

        types = []
        for item in value.items:
            if not isinstance(item, (Known, Symbolic, Dynamic)):
                raise NotRepresentableError("a sequence of sequences")
            self.operands.append(item)
            types.append(tensor_type(item, self.dims).tensor_type)
        if not types:
            return helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        if len({kind.elem_type for kind in types}) > 1:
            raise NotRepresentableError("a sequence of several element types")
        ranks = {len(kind.shape.dim) for kind in types}
        same = len({kind.SerializeToString() for kind in types}) == 1
        shape = [None] * ranks.pop() if len(ranks) == 1 else None
        general = helper.make_tensor_type_proto(types[0].elem_type, shape)
        if same:
            general.tensor_type.CopyFrom(types[0])
        return general


def operand_name(number: int) -> str:
    """Name of an operand's input in the model."""
    return f"uif_operand_{number}"


def captured(node: Any) -> set[str]:
    """Names of outer values that the node's subgraphs read."""
    names: set[str] = set()
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            names |= _free(graph)
    return names


def _free(graph: Any) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= ({name for name in node.input if name} | captured(node)) - own
        own |= set(node.output)
    return free | ({value.name for value in graph.output} - own)


def substitute(node: Any, references: Mapping[str, Any]) -> None:
    """Replace attribute references of a function body, at any depth, by the caller's values."""
    for inner in nodes_below([node]):
        kept = []
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                kept.append(attribute)
            elif attribute.ref_attr_name in references:
                given = type(attribute)()
                given.CopyFrom(references[attribute.ref_attr_name])
                given.name = attribute.name
                kept.append(given)
        if len(kept) < len(inner.attribute) or any(a.ref_attr_name for a in inner.attribute):
            copies = [
                type(attribute).FromString(attribute.SerializeToString()) for attribute in kept
            ]
            del inner.attribute[:]
            inner.attribute.extend(copies)


def _inline_data(node: Any, folder: Path | None) -> None:
    """Bring external data of the subgraphs' initializers and constants into the model."""
    from onnx import TensorProto, numpy_helper

    from uif_tvm.frontends.onnx.tensors import to_numpy

    def visit(tensor: Any) -> None:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(to_numpy(tensor, folder), tensor.name))

    for inner in nodes_below([node]):
        for attribute in inner.attribute:
            if attribute.HasField("t"):
                visit(attribute.t)
            for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                for tensor in graph.initializer:
                    visit(tensor)
