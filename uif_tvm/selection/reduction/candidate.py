"""A part of an ONNX model as a model: what is cut off is replaced by the values it had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uif_tvm.selection.arrays import Array
from uif_tvm.selection.onnx_node import element_type, outer_names, subgraphs, tensor


@dataclass(frozen=True)
class Source:
    """A model on given inputs, with every value of that run.

    Args:
        proto: weights inside, local functions expanded.
        values: name -> tensor, of inputs and node results; sequences are left out.
        weights: initializers.
        fixed: names that no input decides.
        guessed: names whose values are made up, as nobody could compute them: good enough to go on
            from, but nothing to compare with.
        lists: names of sequences, which cannot cross a model's border.
    """

    proto: Any
    values: Mapping[str, Array]
    weights: Mapping[str, Array]
    fixed: frozenset[str]
    guessed: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Part:
    """Nodes of a source, and how they meet what was cut off.

    Args:
        nodes: in order.
        outputs: names; ``None`` for everything that no node of the part reads.
        constants: values of cut edges become initializers, and not inputs.
    """

    nodes: tuple[Any, ...]
    outputs: tuple[str, ...] | None = None
    constants: bool = False

    def with_nodes(self, nodes: Iterable[Any]) -> Part:
        """The same with other nodes."""
        return replace(self, nodes=tuple(nodes))


@dataclass(frozen=True)
class Candidate:
    """A model to be checked: the proto, its inputs, and what it should give."""

    proto: Any
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]


def whole(source: Source) -> Part:
    """All of it."""
    graph = source.proto.graph
    return Part(tuple(graph.node), tuple(value.name for value in graph.output))


def unsettled(source: Source) -> Part:
    """The nodes that an input decides; the others' results become constants."""
    part = whole(source)
    return part.with_nodes(
        node
        for node in part.nodes
        if not all(name in source.fixed and name in source.values for name in node.output if name)
    )


def build(source: Source, part: Part) -> Candidate | None:
    """``part`` as a model; ``None`` where that cannot be: an edge is cut whose value is unknown."""
    from onnx import ModelProto

    outputs = _outputs(source, part)
    nodes = _needed(part.nodes, outputs)
    if not nodes or not outputs:
        return None
    produced = {name for node in nodes for name in node.output if name}
    outputs = [name for name in outputs if name in produced]
    reads = _reads(nodes)
    feeds: dict[str, Array] = {}
    initializers: dict[str, Array] = {}
    for name in reads:
        if name in produced:
            continue
        value = source.weights.get(name, source.values.get(name))
        if value is None:
            return None
        settled = name in source.weights or name in source.fixed
        (initializers if settled or part.constants else feeds)[name] = value
    if not outputs:
        return None
    model = ModelProto()
    model.CopyFrom(_shell(source.proto))
    graph = model.graph
    graph.name = "reduced"
    graph.node.extend(nodes)
    graph.input.extend(_typed(name, value) for name, value in feeds.items())
    graph.initializer.extend(tensor(value, name) for name, value in initializers.items())
    for name in outputs:
        graph.output.append(_output(source, name))
    _trim(model)
    known = all(name in source.values and name not in source.guessed for name in outputs)
    expected = {name: source.values[name] for name in outputs} if known else {}
    return Candidate(model, feeds, expected)


def _outputs(source: Source, part: Part) -> list[str]:
    """The part's outputs: those asked for, else what none of its nodes reads."""
    if part.outputs is not None:
        return list(part.outputs)
    read = set(_reads(part.nodes))
    found = [n for node in part.nodes for n in node.output if n and n not in read]
    return [name for name in found if name not in source.lists]


def _reads(nodes: Iterable[Any]) -> list[str]:
    return list(
        dict.fromkeys(name for node in nodes for name in [*node.input, *outer_names(node)] if name)
    )


def _needed(nodes: Sequence[Any], outputs: Iterable[str]) -> list[Any]:
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(name in wanted for name in node.output if name):
            kept.append(node)
            wanted.update([*node.input, *outer_names(node)])
    return kept[::-1]


def _shell(proto: Any) -> Any:
    """The model without its graph, but the types it declares."""
    from onnx import ModelProto

    shell = ModelProto()
    shell.ir_version = max(proto.ir_version, 8)
    shell.producer_name = "uif reduce"
    shell.opset_import.extend(proto.opset_import)
    shell.functions.extend(proto.functions)
    return shell


def _trim(model: Any) -> None:
    """Drop functions and operator sets that nothing uses any more."""
    if model.functions:
        called = {(n.domain, n.op_type) for n in _all_nodes(model.graph.node)}
        if not any((f.domain, f.name) in called for f in model.functions):
            del model.functions[:]
    if model.functions:
        return
    used = {"", *(node.domain for node in _all_nodes(model.graph.node))}
    kept = [item for item in model.opset_import if item.domain in used or item.domain == "ai.onnx"]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _all_nodes(nodes: Iterable[Any]) -> Iterable[Any]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _typed(name: str, value: Array) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, element_type(value), list(value.shape))


def _output(source: Source, name: str) -> Any:
    """Declaration of an output: by its value, else as the source declares it."""
    from onnx import ValueInfoProto

    if name in source.values:
        return _typed(name, source.values[name])
    for value in [*source.proto.graph.output, *source.proto.graph.value_info]:
        if value.name == name:
            return value
    return ValueInfoProto(name=name)
