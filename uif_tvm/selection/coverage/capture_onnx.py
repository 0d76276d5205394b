"""From an ONNX model to its distinct operator instances, each in a folder of its own.

Runs in a worker process: evaluators are native code.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from uif_tvm.errors import ImportModelError
from uif_tvm.selection.arrays import Array, load_arrays, save_arrays
from uif_tvm.selection.coverage.cost import flops, nbytes
from uif_tvm.selection.coverage.instance import (
    OperandInfo,
    OpInstance,
    digest_of,
    operand_infos,
)
from uif_tvm.selection.coverage.made_up import Guesses, complete
from uif_tvm.selection.coverage.walk import Met, Scope, Traced, Walker
from uif_tvm.selection.onnx_node import (
    RANDOM,
    Evaluator,
    Operand,
    Setting,
    Value,
    flat_results,
    node_model,
    subgraphs,
)

#: Larger attributes are shown by their size only.
_SHOWN_ATTRIBUTE = 60


def capture(
    model: str, inputs: str | None, folder: str, known: list[str], runtime: bool = True
) -> dict[str, Any]:
    """Take ``model`` apart.

    Args:
        model: path of an ``.onnx`` file.
        inputs: ``.npz`` of its inputs; ``None`` where all shapes are static and any values do.
        folder: receives one folder per instance, named by its digest.
        known: digests whose folders exist already.
        runtime: whether ONNX Runtime may evaluate nodes.

    Returns:
        ``instances``, ``histogram``, ``functions`` and ``constants`` as plain data.

    Raises:
        ImportModelError: the model is malformed, or inputs are missing.
    """
    from uif_tvm.frontends.onnx.load import load_model
    from uif_tvm.frontends.onnx.tensors import to_numpy
    from uif_tvm.frontends.onnx.validate import check_functions, check_graph, opset_versions

    loaded = load_model(model)
    versions = opset_versions(loaded.proto.opset_import)
    check_graph(loaded.proto.graph)
    check_functions(loaded.proto.functions)
    functions = Counter(_function_calls(loaded.proto))
    proto = inlined(loaded.proto)
    weights = {tensor.name for tensor in proto.graph.initializer}
    declared = [value for value in proto.graph.input if value.name not in weights]
    feeds = complete(declared, load_arrays(Path(inputs)) if inputs else {})

    collector = _Collector(Path(folder), frozenset(known))
    guesses = Guesses(proto, feeds)
    walker = Walker(
        Setting(versions, int(proto.ir_version), list(proto.functions)),
        lambda tensor: read_tensor(tensor, loaded.folder, to_numpy),
        Evaluator(runtime),
        collector.meet,
        guesses,
    )
    walker.graph(proto.graph, Scope(values={n: Traced(v) for n, v in feeds.items()}))
    return {
        "instances": [instance.to_json() for instance in collector.instances.values()],
        "histogram": dict(collector.histogram.most_common()),
        "functions": dict(functions.most_common()),
        "inputs": {
            name: [str(array.dtype), list(array.shape)] for name, array in sorted(feeds.items())
        },
    }


def inlined(proto: Any) -> Any:
    """The model with its local functions expanded; those ONNX cannot expand stay."""
    if not proto.functions:
        return proto
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise ImportModelError(
            f"ONNX cannot expand the model's local functions: {error}",
            code="UIF-IMPORT-FUNCTION",
            hint="expand them with onnx.inliner.inline_local_functions to see the cause",
        ) from error


def read_tensor(tensor: Any, folder: Path | None, to_numpy: Any) -> Array:
    """An initializer's elements; text as ``object``."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.STRING:
        return np.asarray(numpy_helper.to_array(tensor)).astype(str).astype(object)
    return np.asarray(to_numpy(tensor, folder))


def _function_calls(proto: Any) -> list[str]:
    from uif_tvm.frontends.onnx.validate import nodes_below

    names = {(function.domain, function.name) for function in proto.functions}
    return [
        f"{node.domain}::{node.op_type}"
        for node in nodes_below(proto.graph.node)
        if (node.domain, node.op_type) in names
    ]


class _Collector:
    """Distinct instances, written as they are first met."""

    def __init__(self, folder: Path, known: frozenset[str]) -> None:
        self.folder = folder
        self.known = known
        self.instances: dict[str, OpInstance] = {}
        self.histogram: Counter[str] = Counter()
        self._places: set[tuple[str, str]] = set()

    def meet(self, met: Met) -> None:
        """Count one operator, and keep it if it is a new instance."""
        label = f"{met.node.domain}::{met.node.op_type}" if _foreign(met.node) else met.node.op_type
        # A loop's body is met once per iteration, but its nodes are there once.
        place = (met.path, next(iter(met.node.output), ""))
        again = place in self._places
        self._places.add(place)
        if not again:
            self.histogram[label] += 1
        instance = describe(met, label)
        kept = self.instances.setdefault(instance.digest, instance)
        if again:
            if kept is instance:  # another shape in the second iteration
                kept.occurs(met.path, met.calls)
            return
        kept.occurs(met.path, met.calls)
        if kept is instance and not met.obstacle and instance.digest not in self.known:
            self._write(met, instance)

    def _write(self, met: Met, instance: OpInstance) -> None:
        folder = self.folder / instance.digest
        folder.mkdir(parents=True, exist_ok=True)
        model, feeds = node_model(met.node, met.setting, met.operands, met.outer, met.results)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        save_arrays(folder / "inputs.npz", feeds)
        if met.results is not None:
            save_arrays(folder / "expected.npz", flat_results(met.node, met.results))


def _foreign(node: Any) -> bool:
    return node.domain not in ("", "ai.onnx")


def describe(met: Met, label: str) -> OpInstance:
    """The instance that ``met`` is, not yet counted."""
    node = met.node
    attributes = {a.name: _attribute_text(a) for a in sorted(node.attribute, key=lambda a: a.name)}
    version = since_version(node, met.setting)
    exact = sorted(a.SerializeToString(deterministic=True).hex() for a in node.attribute)
    if met.obstacle:
        digest = digest_of(label, version, exact, met.obstacle, len(node.input))
        return OpInstance(
            digest, label, version, attributes, notes=["unreached"], obstacle=met.obstacle
        )
    inputs = [
        info for index, operand in enumerate(met.operands) for info in _infos(label, index, operand)
    ]
    inputs += [i for o in met.outer.values() for i in operand_infos("", 0, o.value, o.fixed)]
    outputs = [
        info
        for value in met.results or ()
        if value is not None
        for info in operand_infos("", 0, value, False)
    ]
    notes = _notes(met)
    used = [bool(name) for name in node.output]
    shapes = [None if i.role == "absent" else i.shape for i in inputs]
    raw = {a.name: _number(a) for a in node.attribute}
    sizes = [item.nbytes for item in _arrays(met)]
    dtypes = [i.dtype for i in [*inputs, *outputs] if "float" in i.dtype]
    integers = [i.dtype for i in inputs if i.role != "absent"]
    return OpInstance(
        digest_of(label, version, exact, [vars(i) for i in inputs], used, "settled" in notes),
        label,
        version,
        attributes,
        inputs,
        outputs,
        flops(node.op_type, raw, shapes, [o.shape for o in outputs]),
        nbytes(sizes, node.op_type),
        (dtypes or integers or ["float32"])[0],
        met.by,
        notes=notes,
    )


def _infos(label: str, index: int, operand: Operand | None) -> list[OperandInfo]:
    if operand is None:
        return [OperandInfo("", (), "absent")]
    return operand_infos(label, index, operand.value, operand.fixed)


def _notes(met: Met) -> list[str]:
    notes = []
    if met.node.op_type in RANDOM:
        notes.append("random")
    if not met.real:
        notes.append("made-up-inputs")
    if met.settled:
        notes.append("settled")
    if any(True for _ in subgraphs(met.node)):
        notes.append("body")
    if met.results is None:
        notes.append("no-reference")
    return notes


def _arrays(met: Met) -> list[Array]:
    values: list[Value | None] = [o.value for o in met.operands if o is not None]
    values += list(met.results or ())
    return [
        item for v in values for item in (v if isinstance(v, list) else [v]) if item is not None
    ]


def since_version(node: Any, setting: Setting) -> int:
    """The operator set version that last changed this operator, else the one imported."""
    from uif_tvm.frontends.onnx.attributes import schema_of

    domain = node.domain if _foreign(node) else ""
    version = setting.versions.get(domain, 1)
    schema = schema_of(domain, node.op_type, version)
    return int(schema.since_version) if schema is not None else int(version)


def _number(attribute: Any) -> Any:
    """Value of an attribute that costs depend on."""
    return attribute.s.decode("utf-8", "replace") if attribute.s else attribute.i


def _attribute_text(attribute: Any) -> str:
    """An attribute for people."""
    from onnx import helper

    if attribute.HasField("g"):
        return f"<graph of {len(attribute.g.node)} nodes>"
    if attribute.HasField("t"):
        return f"<tensor {list(attribute.t.dims)}>"
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], bytes):
        value = [item.decode("utf-8", "replace") for item in value]
    text = _text(value)
    return text if len(text) <= _SHOWN_ATTRIBUTE else text[: _SHOWN_ATTRIBUTE - 3] + "..."


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"  # stored in single precision: later digits are noise
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return str(value)
