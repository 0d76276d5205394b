"""The graph walker: partial evaluation node by node, converters for what remains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.errors import ImportModelError, UifError
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import find
from uif_tvm.frontends.onnx.attributes import (
    read_attributes,
    resolved,
    schema_defaults,
    schema_of,
)
from uif_tvm.frontends.onnx.elements import check_elements, declare_elements
from uif_tvm.frontends.onnx.fold import can_fold, fold
from uif_tvm.frontends.onnx.fold_symbolic import fold_symbolic
from uif_tvm.frontends.onnx.functions import expand_schema_function
from uif_tvm.frontends.onnx.guesses import Guesses
from uif_tvm.frontends.onnx.host import host_call
from uif_tvm.frontends.onnx.nodes import check_arity, check_types, describe, needed, reason_of
from uif_tvm.frontends.onnx.notes import NO_CONVERTER, Notes, reason_code
from uif_tvm.frontends.onnx.scope import Scope
from uif_tvm.frontends.onnx.sparse import dense
from uif_tvm.frontends.onnx.symbolic import materialise, require_value
from uif_tvm.frontends.onnx.tensors import to_numpy
from uif_tvm.frontends.onnx.tentative import RefusedWithinError, tentative
from uif_tvm.frontends.onnx.validate import check_room, domain_of, fail, node_label
from uif_tvm.frontends.onnx.values import (
    Absent,
    Array,
    Dynamic,
    HostSequence,
    Known,
    Poison,
    SequenceValue,
    Symbolic,
    UnknownShapeError,
    Value,
    is_static,
)
from uif_tvm.runtime.elements import element_name, stored_dtype, to_stored
from uif_tvm.runtime.strings import Strings

MAX_CALL_DEPTH = 64


class GraphImporter:
    """Walks graphs and emits Relax into one function under construction.

    Args:
        bb: the builder, inside ``main``.
        folder: where external data may lie.
        functions: the model's local functions by (domain, name).
        host_fallback: whether operators without converter may be called back on the host.
    """

    def __init__(
        self,
        bb: relax.BlockBuilder,
        folder: Path | None,
        functions: Mapping[tuple[str, str], Any],
        host_fallback: bool = False,
    ) -> None:
        self.bb = bb
        self.host_fallback = host_fallback
        self.folder = folder
        self.functions = functions
        self.notes = Notes()
        self.guesses = Guesses()
        self.examples: dict[Any, tuple[str, Array]] = {}
        self.strings = Strings()
        self._constants: dict[int, tuple[Array, relax.Expr]] = {}
        self._scope = Scope({})
        self._depth = 0
        self._blocks = 0
        self._open_blocks: list[int] = [0]
        self._checked: dict[int, set[tuple[str, str]]] = {}

    # --- what converters use -----------------------------------------------------------------

    def constant(self, array: Array) -> relax.Expr:
        """A Relax constant in the stored type, shared between uses of one array."""
        if array.size == 0:  # TVM cannot store a constant of no elements
            shape = relax.ShapeExpr(list(array.shape))
            return self.bb.emit(relax.op.zeros(shape, stored_dtype(element_name(array))))
        kept = self._constants.get(id(array))
        if kept is None:
            stored = np.asarray(to_stored(array, self.strings), order="C")
            kept = (array, relax.const(stored, str(stored.dtype)))
            self._constants[id(array)] = kept
        return kept[1]

    def materialise(self, value: Symbolic, name: str) -> relax.Expr:
        """Symbolic elements written into a tensor."""
        return materialise(self.bb, value, name)

    def count_removed(self, op_type: str) -> None:
        """Note an operator that means nothing at inference."""
        self.notes.removed[op_type] += 1

    def specialise(self, expr: relax.Expr) -> Array | None:
        """The example value of a model input that has to be known at import, if it is one.

        The runtime then refuses other values: what depends on them is compiled in.
        """
        if expr not in self.examples:
            return None
        name, array = self.examples[expr]
        self.notes.specialised[name] = expr
        return array

    def _check_specialised(self) -> None:
        """Have the runtime refuse other values of inputs that are compiled in.

        Once, and in the outermost block: an operator that asked for a value may lie in a branch
        that a run does not take, while others rely on the value too.
        """
        for expr in self.notes.specialised.values():
            require_value(self.bb, expr, to_stored(self.examples[expr][1], self.strings))

    def open_blocks(self) -> tuple[int, ...]:
        """The branch bodies under construction; variables of others are out of scope."""
        return tuple(self._open_blocks)

    def checked_dims(self) -> set[tuple[str, str]]:
        """Pairs of dimensions that the current block compares at run time."""
        return self._checked.setdefault(self._open_blocks[-1], set())

    def run_subgraph(self, graph: Any, bindings: Mapping[str, Value]) -> list[Value]:
        """Convert a subgraph in the scope of the current node; returns its outputs."""
        inner = Scope(self._scope.versions, self._scope.references, self._scope)
        return self.run_graph(graph, inner, bindings)

    def run_main(self, graph: Any, scope: Scope, bindings: Mapping[str, Value]) -> list[Value]:
        """Convert the model's graph into the function under construction."""

        def attempt() -> tuple[list[Value], relax.BindingBlock]:
            notes = self.notes.copy()
            self.open_block()
            try:
                outputs = self.run_graph(graph, replace(scope, values={}, types={}), bindings)
            except ImportModelError:
                self.notes = notes
                raise
            finally:
                block = self.close_block()
            return outputs, block

        outputs, block = self.guesses.retrying(attempt)
        for binding in block.bindings:
            self.bb.emit_normalized(binding)
        return outputs

    def run_branch(self, graph: Any) -> tuple[list[Value], relax.BindingBlock]:
        """Convert a subgraph into a binding block of its own."""
        return self.guesses.retrying(lambda: self._run_branch(graph))

    def _run_branch(self, graph: Any) -> tuple[list[Value], relax.BindingBlock]:
        self.open_block()
        try:
            outputs = self.run_subgraph(graph, {})
            for output in outputs:
                if isinstance(output, Dynamic) and output.expr.ty.shape is None:
                    raise Unsupported("a branch yields a tensor of unknown shape")
            outputs = [
                Dynamic(materialise(self.bb, value, "dims"))
                if isinstance(value, Symbolic)
                else value
                for value in outputs
            ]
        finally:
            block = self.close_block()
        return outputs, block

    def open_block(self) -> None:
        """Begin a binding block of its own; what is defined there is out of scope outside."""
        self._blocks += 1
        self._open_blocks.append(self._blocks)
        self.bb._begin_binding_block()

    def close_block(self) -> relax.BindingBlock:
        """End the block begun last."""
        self._open_blocks.pop()
        return self.bb._end_block()

    # --- graphs ------------------------------------------------------------------------------

    def run_graph(self, graph: Any, scope: Scope, bindings: Mapping[str, Value]) -> list[Value]:
        """Convert a graph, given its inputs; returns its outputs."""
        for tensor in graph.initializer:
            scope.values[tensor.name] = Known(to_numpy(tensor, self.folder))
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = Known(dense(sparse, self.folder))
        scope.values.update(bindings)
        scope.types.update({info.name: info.type for info in [*graph.value_info, *graph.output]})
        with self._inside(scope):
            self._run_nodes(graph.node, [value.name for value in graph.output])
            if self._depth == 1:
                self._check_specialised()
            return [scope.lookup(value.name) for value in graph.output]

    @contextmanager
    def _inside(self, scope: Scope) -> Iterator[None]:
        if self._depth >= MAX_CALL_DEPTH:
            fail("DEPTH", f"graphs and functions nested deeper than {MAX_CALL_DEPTH}")
        outer, self._scope = self._scope, scope
        self._depth += 1
        try:
            yield
        finally:
            self._scope = outer
            self._depth -= 1

    def _run_nodes(self, nodes: Sequence[Any], outputs: Sequence[str]) -> None:
        for node in needed(nodes, outputs):
            self._run_node(resolved(node, self._scope.references))

    def _run_node(self, node: Any) -> None:
        inputs = [self._scope.lookup(name) if name else None for name in node.input]
        domain = domain_of(node.domain)
        if domain not in self._scope.versions and (domain, node.op_type) not in self.functions:
            if domain == "":
                fail("OPSET", "the model imports no operator set of the default domain", node)
            version = 1
        else:
            version = self._scope.versions.get(domain, 1)
        results = self._results(node, domain, version, inputs)
        for name, result in zip(node.output, results, strict=False):
            if name:
                self._scope.values[name] = result
        missing = [name for name in node.output[len(results) :] if name]
        if missing:
            fail("OUTPUT", f"has no output {missing[0]!r}", node)

    def _results(
        self, node: Any, domain: str, version: int, inputs: Sequence[Value | None]
    ) -> list[Value]:
        """Convert the node; where that fails, leave it to the host or note the refusal."""
        if self.host_fallback and any(a.HasField("g") or a.graphs for a in node.attribute):
            hosted = self._tentatively(node, domain, version, inputs)
            if hosted is not None:
                return hosted
        try:
            return self._evaluate(node, domain, version, inputs)
        except (Unsupported, UnknownShapeError) as exc:
            hosted = self._on_host(node, domain, inputs, str(exc))
            if hosted is None:
                self.notes.refuse(node, domain, str(exc), getattr(exc, "hint", None))
            return hosted or [Poison()] * len(node.output)
        except (UifError, ImportError, NameError):
            raise  # not a fault of the node, but of the installation or of our own
        except Exception as exc:
            detail = reason_of(exc)
            hosted = self._on_host(node, domain, inputs, f"conversion failed: {detail}")
            if hosted is not None:
                return hosted
            raise ImportModelError(
                f"node {node_label(node)!r} ({node.op_type}) does not fit its inputs "
                f"{describe(inputs)}: {detail}",
                code="UIF-IMPORT-NODE",
                op=node_label(node),
                hint="check the node's attributes and input shapes against the ONNX operator",
            ) from exc

    def _tentatively(
        self, node: Any, domain: str, version: int, inputs: Sequence[Value | None]
    ) -> list[Value] | None:
        """Convert a node with subgraphs as a whole or run it on the host as a whole."""
        try:
            with tentative(self):
                return self._evaluate(node, domain, version, inputs)
        except (RefusedWithinError, Unsupported, UnknownShapeError) as exc:
            return self._on_host(node, domain, inputs, str(exc))
        except (UifError, ImportError):
            raise
        except Exception:
            return None  # it comes again, where the node is named

    def _evaluate(
        self, node: Any, domain: str, version: int, inputs: Sequence[Value | None]
    ) -> list[Value]:
        if any(isinstance(value, Poison) for value in inputs):
            if self._unknown(node, domain, version):
                raise Unsupported(NO_CONVERTER)
            return [Poison()] * len(node.output)
        function = self.functions.get((domain, node.op_type))
        if function is not None:
            return self._call(function, node, inputs)
        schema = schema_of(domain, node.op_type, version)
        check_arity(node, schema)
        check_types(node, schema, inputs)
        attrs = read_attributes(node, domain, version, self.folder)
        folded = self._fold(node, domain, version, attrs, inputs)
        if folded is not None:
            return folded
        convert = find(domain, node.op_type, version)
        if convert is not None:
            check_elements(node.op_type, domain, attrs, inputs)
            result = convert(NodeContext(self, node, version, attrs, inputs))
            wrapped = [self._wrap(r) for r in (result if isinstance(result, list) else [result])]
            check_room(node, [v.expr.ty for v in wrapped if isinstance(v, Dynamic)])
            return declare_elements(schema, inputs, wrapped)
        body = expand_schema_function(node, domain, version, inputs)
        if body is None:
            raise Unsupported(NO_CONVERTER)
        self.notes.composed[node.op_type] += 1
        return self._call(body, node, inputs)

    def _unknown(self, node: Any, domain: str, version: int) -> bool:
        if (domain, node.op_type) in self.functions or find(domain, node.op_type, version):
            return False
        schema = schema_of(domain, node.op_type, version)
        return schema is None or not (schema.has_function or schema.has_context_dependent_function)

    def _fold(
        self,
        node: Any,
        domain: str,
        version: int,
        attrs: dict[str, Any],
        inputs: Sequence[Value | None],
    ) -> list[Value] | None:
        if domain == "" and node.op_type == "Constant":
            return None
        if can_fold(node.op_type, domain, inputs):
            arrays = [v.array if isinstance(v, Known) else None for v in inputs]
            try:
                return [Known(array) for array in fold(node, version, arrays)]
            except Exception:
                return None  # the converter decides, and names what is wrong
        shapes = all(value is None or isinstance(value, (Known, Symbolic)) for value in inputs)
        if domain == "" and shapes and any(isinstance(value, Symbolic) for value in inputs):
            result = fold_symbolic(node.op_type, attrs, inputs)
            return None if result is None else [result]
        return None

    def _wrap(self, result: Any) -> Value:
        if isinstance(result, (Known, Symbolic, SequenceValue, HostSequence, Absent, Poison)):
            return result
        value = result if isinstance(result, Dynamic) else Dynamic(result)
        if value.expr.ty.shape is not None and is_static(value.shape) and 0 in value.shape:
            from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

            return Known(np.empty([int(d) for d in value.shape], numpy_dtype_named(value.dtype)))
        return value

    def _call(self, function: Any, node: Any, inputs: Sequence[Value | None]) -> list[Value]:
        """Expand a function body in place."""
        if len(inputs) > len(function.input):
            fail(
                "ARITY", f"passes {len(inputs)} inputs to a function of {len(function.input)}", node
            )
        references = {attribute.name: attribute for attribute in function.attribute_proto}
        references.update(schema_defaults(node, domain_of(node.domain), self._scope.versions))
        references.update({attribute.name: attribute for attribute in node.attribute})
        versions = {domain_of(entry.domain): entry.version for entry in function.opset_import}
        versions = {**self._scope.versions, **versions}
        scope = Scope(versions, references)
        for number, name in enumerate(function.input):
            given = inputs[number] if number < len(inputs) else None
            scope.values[name] = Absent() if given is None else given
        wanted = [name for name, used in zip(function.output, node.output, strict=False) if used]
        with self._inside(scope):
            self._run_nodes(function.node, wanted)
            return [scope.lookup(name) if name in wanted else Absent() for name in function.output]

    def _on_host(
        self, node: Any, domain: str, inputs: Sequence[Value | None], reason: str
    ) -> list[Value] | None:
        if not self.host_fallback:
            return None
        values = host_call(self, node, domain, inputs, self._scope)
        if values is not None:
            self.notes.run_on_host(node, domain, reason_code(reason))
        return values
