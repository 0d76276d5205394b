"""One ONNX node as a model of its own, and its value by ONNX Runtime or ONNX's reference.

A node is given its operands as real values. Those that the model fixes (weights, shapes, axes)
become initializers, the others inputs ``x0``, ``x1`` ... of static shape. Sequences are taken
apart into tensors at the model's border, as engines take and return tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uif_tvm.selection.arrays import Array, dtype_name

#: What an edge of a graph carries: a tensor, or a sequence of tensors.
Value = Array | list[Array]

#: Smallest IR version whose initializers need not be inputs too, and in which all opsets exist.
MIN_IR_VERSION = 8
#: Operators whose result depends on chance: shapes and types can be compared, values cannot.
RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
#: Operators whose result's shape depends on operands' values that no example settles.
DATA_DEPENDENT = frozenset("Compress NonMaxSuppression NonZero StringSplit Unique".split())


@dataclass(frozen=True)
class Operand:
    """One operand of a node.

    Args:
        value: what it is in this model on these inputs.
        fixed: it is the same for all inputs of these shapes: a weight, or settled at import.
    """

    value: Value
    fixed: bool


@dataclass(frozen=True)
class Setting:
    """What surrounds a node in its model.

    Args:
        versions: operator set version by domain.
        ir_version: of the model.
        functions: local functions that could not be expanded.
    """

    versions: Mapping[str, int]
    ir_version: int
    functions: Sequence[Any] = field(default=())


def subgraphs(node: Any) -> Iterator[Any]:
    """Graphs among the node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def outer_names(node: Any) -> list[str]:
    """Names that the node's subgraphs read from the graphs around them, in order of first use."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        found.update(dict.fromkeys(_free_names(graph)))
    return list(found)


def _free_names(graph: Any) -> Iterator[str]:
    defined = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        for name in [*node.input, *outer_names(node)]:
            if name and name not in defined:
                yield name
        defined.update(node.output)
    for value in graph.output:
        if value.name not in defined:
            yield value.name


def node_model(
    node: Any,
    setting: Setting,
    operands: Sequence[Operand | None],
    outer: Mapping[str, Operand],
    results: Sequence[Value | None] | None = None,
    bake: bool = True,
) -> tuple[Any, dict[str, Array]]:
    """A model of ``node`` alone, and the values of its inputs.

    Args:
        node: attributes without references to a function's.
        setting: see :class:`Setting`.
        operands: one per input of the node, ``None`` where the node leaves it out.
        outer: values that its subgraphs read, by name.
        results: the node's values, which type the outputs; ``None`` leaves them untyped.
        bake: whether fixed operands become initializers.

    Outputs are ``y0``, ``y1`` ... for those that the node names. Where the node has subgraphs,
    whose own names must not be hidden, it is ``operand_0`` and ``result_0``.
    """
    from onnx import helper

    copy = type(node)()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.name = node.name or node.op_type
    # Shapes of a body's operands stay open: its other branch may not fit those of this run.
    border = _Border(open_shapes=any(True for _ in subgraphs(node)))
    before, after = _prefixes(node)
    for index, operand in enumerate(operands):
        if operand is None:
            copy.input.append("")
        else:
            copy.input.append(border.take(f"{before}{index}", operand, bake))
    for name, operand in outer.items():
        border.take(name, operand, bake)
    copy.output.extend(f"{after}{i}" if name else "" for i, name in enumerate(node.output))
    outputs, unpacking = _declared(copy, results)
    graph = helper.make_graph(
        [*border.nodes, copy, *unpacking],
        "instance",
        border.inputs,
        outputs,
        border.initializers,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(d, v) for d, v in _imports(copy, setting)],
        ir_version=max(MIN_IR_VERSION, setting.ir_version),
        producer_name="uif",
    )
    if any(True for _ in subgraphs(node)) or _calls(node, setting.functions):
        model.functions.extend(setting.functions)
    return model, border.feeds


def _declared(node: Any, results: Sequence[Value | None] | None) -> tuple[list[Any], list[Any]]:
    """Declarations of the node's outputs, and nodes that take sequences among them apart."""
    from onnx import ValueInfoProto

    free = node.op_type in DATA_DEPENDENT or any(True for _ in subgraphs(node))
    outputs, unpacking = [], []
    for index, name in enumerate(node.output):
        value = results[index] if results is not None and index < len(results) else None
        if not name:
            continue
        if isinstance(value, list):
            for position, item in enumerate(value):
                unpacking += _element(name, position)
                outputs.append(_typed(f"{name}_{position}", item, free))
        elif value is None:
            outputs.append(ValueInfoProto(name=name))
        else:
            outputs.append(_typed(name, value, free))
    return outputs, unpacking


def flat_results(node: Any, results: Sequence[Value | None]) -> dict[str, Array]:
    """The node's values under the names of :func:`node_model`'s outputs."""
    flat: dict[str, Array] = {}
    after = _prefixes(node)[1]
    for index, (name, value) in enumerate(zip(node.output, results, strict=False)):
        if not name or value is None:
            continue
        if isinstance(value, list):
            flat.update({f"{after}{index}_{position}": item for position, item in enumerate(value)})
        else:
            flat[f"{after}{index}"] = value
    return flat


def _prefixes(node: Any) -> tuple[str, str]:
    """Of inputs' and outputs' names; longer ones where subgraphs have names of their own."""
    nested = any(True for _ in subgraphs(node))
    return ("operand_", "result_") if nested else ("x", "y")


class _Border:
    """Inputs, initializers and the nodes that put sequences together."""

    def __init__(self, open_shapes: bool) -> None:
        self._open = open_shapes
        self.inputs: list[Any] = []
        self.initializers: list[Any] = []
        self.nodes: list[Any] = []
        self.feeds: dict[str, Array] = {}

    def take(self, name: str, operand: Operand, bake: bool) -> str:
        """Declare one operand; returns its name."""
        from onnx import helper

        if isinstance(operand.value, list):
            parts = [
                self.take(f"{name}_{index}", Operand(item, operand.fixed), bake)
                for index, item in enumerate(operand.value)
            ]
            kind = "SequenceConstruct" if parts else "SequenceEmpty"
            self.nodes.append(helper.make_node(kind, parts, [name]))
        elif operand.fixed and bake:
            self.initializers.append(tensor(operand.value, name))
        else:
            self.inputs.append(_typed(name, operand.value, self._open))
            self.feeds[name] = operand.value
        return name


def tensor(array: Array, name: str) -> Any:
    """``array`` as a ``TensorProto``."""
    from onnx import TensorProto, helper, numpy_helper

    if dtype_name(array) == "string":
        texts = [str(item).encode() for item in array.reshape(-1)]
        return helper.make_tensor(name, TensorProto.STRING, array.shape, texts)
    return numpy_helper.from_array(np.asarray(array, order="C"), name)


def element_type(array: Array) -> int:
    """ONNX's number of the element type."""
    from onnx import TensorProto, helper

    if dtype_name(array) == "string":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _typed(name: str, value: Value, open_shape: bool) -> Any:
    from onnx import helper

    array = np.asarray(value)
    shape: list[Any] = [None] * array.ndim if open_shape else list(array.shape)
    return helper.make_tensor_value_info(name, element_type(array), shape)


def _element(sequence: str, position: int) -> list[Any]:
    """Nodes that take one tensor out of a sequence."""
    from onnx import helper

    index = f"{sequence}_at{position}"
    return [
        helper.make_node("Constant", [], [index], value_int=position),
        helper.make_node("SequenceAt", [sequence, index], [f"{sequence}_{position}"]),
    ]


def _imports(node: Any, setting: Setting) -> list[tuple[str, int]]:
    """Operator sets of the node, its subgraphs, and the default one."""
    wanted = {"", node.domain if node.domain != "ai.onnx" else ""}
    nested = any(True for _ in subgraphs(node)) or _calls(node, setting.functions)
    domains = set(setting.versions) | wanted if nested else wanted
    return [(domain, setting.versions.get(domain, 1)) for domain in sorted(domains)]


def _calls(node: Any, functions: Iterable[Any]) -> bool:
    return any((f.domain, f.name) == (node.domain, node.op_type) for f in functions)


class Evaluator:
    """Values of nodes: by ONNX Runtime where it is installed and takes the node, else by ONNX's
    reference evaluator.

    Args:
        runtime: whether ONNX Runtime may be asked.
    """

    def __init__(self, runtime: bool = True) -> None:
        self._sessions: dict[bytes, Any] = {}
        self._runtime = runtime and _installed("onnxruntime")

    def __call__(
        self,
        node: Any,
        setting: Setting,
        operands: Sequence[Operand | None],
        outer: Mapping[str, Operand],
    ) -> tuple[list[Value | None], str]:
        """The node's values, one per output (``None`` for those it leaves out), and who
        computed them.

        Raises:
            Exception: whatever the last evaluator asked says; there are many kinds.
        """
        if self._runtime and any(operand is not None for operand in operands):
            # Constants as inputs first: such a session serves all nodes of these shapes.
            for bake in (False, True):
                model, feeds = node_model(node, setting, operands, outer, bake=bake)
                try:
                    values = self._by_runtime(model, feeds, keep=not bake)
                    return _spread(node, values), "onnxruntime"
                except Exception:  # what it refuses, and says in many ways, goes to the reference
                    continue
        model, feeds = node_model(node, setting, operands, outer, bake=False)
        return _spread(node, by_reference(model, feeds)), "reference"

    def _by_runtime(self, model: Any, feeds: Mapping[str, Array], keep: bool) -> list[Value]:
        data = model.SerializeToString()
        key = hashlib.blake2b(data, digest_size=16).digest()
        session = self._sessions.get(key)
        if session is None:
            session = open_session(data)
            if keep:
                self._sessions[key] = session
        return list(session.run(None, dict(feeds)))


def _spread(node: Any, values: Sequence[Value]) -> list[Value | None]:
    """Values of the named outputs, at the places of these."""
    given = iter(values)
    return [next(given) if name else None for name in node.output]


def by_reference(model: Any, feeds: Mapping[str, Array]) -> list[Value]:
    """The model's outputs by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def open_session(data: bytes, threads: int = 1) -> Any:
    """An ONNX Runtime session without optimisations, which say nothing on stderr."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
