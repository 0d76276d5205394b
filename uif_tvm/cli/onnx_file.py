"""What an ``.onnx`` file declares, read without compiling anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uif_tvm.errors import ImportModelError
from uif_tvm.signature import Signature, TensorSpec

#: ``TensorProto.STRING``: worth showing, though no device computes with it.
_STRING = 8


@dataclass(frozen=True)
class OnnxSummary:
    """Declared inputs and outputs, operators, and where the file says it came from.

    Args:
        signature: dimensions that the model leaves open are names, ``?`` when it gives none.
        op_histogram: ``domain::Op`` (plain ``Op`` for the standard domain) -> occurrences,
            bodies of ``If``, ``Loop`` and functions included.
        opsets: domain -> version.
        producer: exporter's name and version.
        weight_bytes: bytes of all weights, external ones included.
    """

    signature: Signature
    op_histogram: dict[str, int]
    opsets: dict[str, int]
    producer: str
    weight_bytes: int


def summarise(path: Path) -> OnnxSummary:
    """Read ``path``.

    Raises:
        EnvironmentFault: the ``onnx`` package is missing.
        ImportModelError: missing, not an ONNX file, or an input is no tensor.
    """
    from uif_tvm import compat

    compat.require("onnx")
    if not path.exists():
        raise ImportModelError(
            f"{path} does not exist", code="UIF-IMPORT-FILE", hint="pass the path of an .onnx file"
        )
    from uif_tvm.frontends.onnx.load import load_model

    proto = load_model(path).proto
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(_spec(value) for value in proto.graph.input if value.name not in weights)
    outputs = tuple(_spec(value) for value in proto.graph.output)
    ops: Counter[str] = Counter()
    for node in _nodes(proto.graph.node):
        ops[
            node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        ] += 1
    for function in proto.functions:
        ops.update(node.op_type for node in _nodes(function.node))
    return OnnxSummary(
        Signature(inputs, outputs),
        dict(ops.most_common()),
        {opset.domain or "ai.onnx": opset.version for opset in proto.opset_import},
        f"{proto.producer_name} {proto.producer_version}".strip() or "unknown",
        sum(_bytes(tensor) for tensor in _tensors(proto)),
    )


def _tensors(proto: Any) -> Iterator[Any]:
    """Weights, be they initializers or ``Constant`` nodes."""
    yield from proto.graph.initializer
    for node in _nodes(proto.graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def _nodes(nodes: Any, depth: int = 0) -> Iterator[Any]:
    if depth > 64:
        raise ImportModelError("graphs are nested more than 64 deep", code="UIF-IMPORT-PARSE")
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g.node, depth + 1)
            for graph in attribute.graphs:
                yield from _nodes(graph.node, depth + 1)


def _spec(value: Any) -> TensorSpec:
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorSpec(value.name, ("?",), str(kind or "unknown").removesuffix("_type"))
    tensor = value.type.tensor_type
    shape: list[int | str] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(int(dim.dim_value))
        else:
            shape.append(dim.dim_param or "?")
    if not tensor.HasField("shape"):
        shape = ["..."]
    if tensor.elem_type == _STRING:
        return TensorSpec(value.name, tuple(shape), "string")
    return TensorSpec(value.name, tuple(shape), str(numpy_dtype(tensor.elem_type, value.name)))


def _bytes(tensor: Any) -> int:
    from uif_tvm.frontends.onnx.tensors import packed_bytes

    if tensor.data_type == _STRING:
        return sum(map(len, tensor.string_data))
    count = 1
    for extent in tensor.dims:
        count *= max(0, extent)
    return packed_bytes(tensor.data_type, count)
