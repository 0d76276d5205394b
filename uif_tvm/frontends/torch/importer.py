"""The walk over an exported graph: every node through its converter, every result checked."""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from tvm import relax, tirx

from uif_tvm.errors import UnsupportedError, UnsupportedOp
from uif_tvm.frontends.dynamic import with_ranges
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.frontends.torch import converters as _converters  # noqa: F401  (fills the table)
from uif_tvm.frontends.torch.boundary import (
    check_result,
    check_state_changes,
    declare_sizes,
    held,
    parameter,
    tensor_spec,
    user_outputs,
)
from uif_tvm.frontends.torch.dtypes import dtype_name
from uif_tvm.frontends.torch.dynamic import AxisNames, symbol_names, symbol_ranges
from uif_tvm.frontends.torch.emitter import Emitter, is_tensor
from uif_tvm.frontends.torch.folding import fold
from uif_tvm.frontends.torch.host import host_call
from uif_tvm.frontends.torch.names import (
    module_path,
    output_names,
    source_location,
    workaround,
)
from uif_tvm.frontends.torch.pairs import COMPLEX, Pair, is_complex
from uif_tvm.frontends.torch.registry import (
    ASSERTIONS,
    EFFECTS,
    NO_OPS,
    RefusedError,
    find,
    op_name,
)
from uif_tvm.frontends.torch.specialise import PREFIX
from uif_tvm.signature import Signature

_Missing = object()
#: What TVM prints in the place of a constant.
_METADATA = re.compile(r"(metadata\[\S*\s*)?# Metadata omitted[^\n]*?method to show it\.\s*")


def import_program(
    program: ExportedProgram, host_fallback: bool = False, axis_names: AxisNames | None = None
) -> ImportedModel:
    """Convert a decomposed program.

    Args:
        host_fallback: let operators that cannot be converted run on the host through ATen.
        axis_names: what open axes of the tensor inputs are called.

    Raises:
        UnsupportedError: every operator that cannot be converted, with counts and places.
    """
    return _Importer(program, host_fallback, axis_names or []).run()


class _Importer:
    """State of one import."""

    def __init__(
        self, program: ExportedProgram, host_fallback: bool, axis_names: AxisNames
    ) -> None:
        self.program = program
        self.host_fallback = host_fallback
        #: Operator that runs on the host -> reason code.
        self.host_reasons: dict[str, str] = {}
        #: What the program was exported for and is checked at run time.
        self.specialised: list[str] = []
        self.signature = program.graph_signature
        #: Values of Relax: node -> expression, size, number, or a list of them.
        self.env: dict[fx.Node, Any] = {}
        #: Values known already: node -> PyTorch tensor.
        self.known: dict[fx.Node, torch.Tensor] = {}
        self.constants: dict[fx.Node, Any] = {}
        names = symbol_names(program, axis_names)
        self.ranges = symbol_ranges(program, names)
        self.symbols: dict[str, tirx.Var] = {s: tirx.Var(n, "int64") for s, n in names.items()}
        self.removed: Counter[str] = Counter()
        self.histogram: Counter[str] = Counter()
        #: Operator -> the nodes refused, and the first reason with its hint.
        self.refused: dict[str, list[fx.Node]] = defaultdict(list)
        self.reasons: dict[str, tuple[str, str | None]] = {}
        self.builder = relax.BlockBuilder()
        self.emitter = Emitter(self.builder, self.symbols)

    def run(self) -> ImportedModel:
        nodes = list(self.program.graph.nodes)
        check_state_changes(self.program, self.removed)
        inputs = self._bind_placeholders(nodes)
        with self.builder.function("main", [held(value) for _, value in inputs]):
            with self.builder.dataflow():
                for node in nodes:
                    if node.op in ("call_function", "get_attr"):
                        self._convert(node)
                # The function is closed in any case; an open builder warns when destroyed.
                names, outputs = ([], []) if self.refused else self._outputs(nodes[-1])
                result = self.builder.emit_output(relax.Tuple(list(map(held, outputs))))
            self.builder.emit_func_output(result)
        self._raise_refused()
        mod = relax.transform.DeadCodeElimination(["main"])(self.builder.get())
        mod = with_ranges(mod, self.ranges.values())
        return ImportedModel(
            mod=mod,
            signature=Signature(
                tuple(tensor_spec(name, value, self.ranges) for name, value in inputs),
                tuple(tensor_spec(name, value) for name, value in zip(names, outputs, strict=True)),
            ),
            source="torch",
            op_histogram=dict(self.histogram),
            removed=dict(self.removed),
            host_reasons=self.host_reasons,
            specialised=tuple(self.specialised),
        )

    # -- inputs and outputs ------------------------------------------------------------------

    def _bind_placeholders(self, nodes: list[fx.Node]) -> list[tuple[str, Any]]:
        specs = {spec.arg.name: spec for spec in self.signature.input_specs}
        state = dict(self.program.state_dict) | dict(self.program.constants)
        inputs: list[tuple[str, Any]] = []
        for node in nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind == InputKind.USER_INPUT:
                value = node.meta.get("val")
                if isinstance(value, torch.Tensor):
                    var = self._input(node, value)
                    self.env[node] = var
                    inputs.append((node.name, var))
                else:
                    self.env[node] = value
            elif spec.kind == InputKind.TOKEN:
                self.env[node] = None
            elif spec.target in state and isinstance(state[spec.target], torch.Tensor):
                self.known[node] = state[spec.target].detach()
            else:
                self._refuse(node, "model state", f"{spec.kind.name} {spec.target!r}", None)
        return inputs

    def _input(self, node: fx.Node, value: torch.Tensor) -> Any:
        declare_sizes(self.emitter, value)
        try:
            return parameter(self.emitter, node.name, value)
        except RefusedError as refused:
            self._refuse(node, f"input {node.name}", refused.reason, refused.hint)
            return relax.Var(node.name, relax.TensorType([], "float32"))

    def _outputs(self, node: fx.Node) -> tuple[list[str], list[Any]]:
        user = user_outputs(self.program, node)
        names, outputs = [], []
        for name, result in zip(output_names(self.program, len(user)), user, strict=True):
            value = self._value(result)
            if value is None:
                self.removed["None output"] += 1
                continue
            if isinstance(value, (bool, int, float)):
                value = self.emitter.const(torch.tensor(value), "")
            if not isinstance(value, Pair) and not is_tensor(value):
                refused = UnsupportedOp(name, 1, "output is a size, not a tensor")
                raise UnsupportedError([refused], hint="return tensors only")
            names.append(name)
            outputs.append(value)
        return names, outputs

    # -- nodes -------------------------------------------------------------------------------

    def _convert(self, node: fx.Node) -> None:
        name = op_name(node.target) if node.op == "call_function" else f"get_attr {node.target}"
        value = node.meta.get("val")
        if node.target is operator.getitem:
            self._getitem(node)
            return
        if name == "aten._assert_async.msg" and str(node.args[1]).startswith(PREFIX):
            self._check_value(node)
            return
        if name in ASSERTIONS:
            self.removed[name] += 1
            return
        if isinstance(value, torch.SymBool):  # read by assertions alone, as a rule
            self.env[node] = value
            return
        if name.endswith("higher_order.with_effects") and op_name(node.args[1]) in EFFECTS:
            self.removed[op_name(node.args[1])] += 1
            self.env[node] = [None, None]
            return
        if node.op == "get_attr":
            self._refuse(node, "nested graph", f"attribute {node.target}", None)
            return
        if not node.users and not isinstance(value, (torch.Tensor, tuple, list)):
            return
        self.histogram[name] += 1
        try:
            if name == "aten._local_scalar_dense.default":
                self.env[node] = self._item(node)
            elif isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
                self.env[node] = self._size(value)
            elif name in NO_OPS and _same_meta(node):
                self.removed[name] += 1
                self._alias(node, node.args[0])
            elif not fold(node, self.known):
                self.env[node] = self._call(node, name)
        except RefusedError as refused:
            self._refuse(node, name, refused.reason, refused.hint)
        except Exception as error:
            text = _METADATA.sub("a constant ", str(error)).strip().splitlines()
            reason = f"conversion failed: {type(error).__name__}: {text[-1] if text else ''}"
            self._refuse(node, name, reason, None)

    def _check_value(self, node: fx.Node) -> None:
        """Let runs fail in which the model would read another value than when it was exported."""
        condition = self._value(node.args[0])
        if not is_tensor(condition):
            return
        known = self.emitter.value_of(condition)
        if known is not None and known.all():
            return
        self.emitter.name = node.name
        flag = self.emitter.reshape(self.emitter.cast(condition, "int64"), [1])
        read = self.builder.emit(relax.op.tensor_to_shape(flag))
        self.builder.match_cast(read, relax.ShapeType([tirx.IntImm("int64", 1)]))
        place = f"a value read at {str(node.args[1]).removeprefix(PREFIX)}"
        if place not in self.specialised:
            self.specialised.append(place)

    def _getitem(self, node: fx.Node) -> None:
        parent, index = node.args
        if parent in self.known:
            self.known[node] = self.known[parent][index]
            return
        value = self.env[parent]
        item = value[index] if isinstance(value, (list, tuple)) else _Missing
        if item is _Missing or (item is None and node.users and not _is_token(parent)):
            self._refuse(node, op_name(parent.target), f"result {index} is not available", None)
            return
        self.env[node] = item

    def _alias(self, node: fx.Node, source: Any) -> None:
        if source in self.known:
            self.known[node] = self.known[source]
        else:
            self.env[node] = self.env[source]

    def _call(self, node: fx.Node, name: str) -> Any:
        self.emitter.node = node
        self.emitter.name = "/".join(part for part in (module_path(node), node.name) if part)
        results = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        for meta in results:
            if isinstance(meta, torch.Tensor) and meta.dtype not in COMPLEX:
                dtype_name(meta.dtype)
        operands = [arg.meta.get("val") for arg in node.all_input_nodes]
        complex_numbers = any(map(is_complex, [*results, *operands]))
        try:
            convert = find(name, complex_numbers)
            if convert is None:
                raise RefusedError("no converter", workaround(name, node))
            result = convert(self.emitter, *self._arguments(node))
            check_result(self.emitter, node, result)
        except Exception as error:
            if not self.host_fallback:
                raise
            result = self._on_host(node, error)
            check_result(self.emitter, node, result)
            declined = "no-kernel" if convert is None else "declined"
            self.host_reasons[name] = "complex" if complex_numbers else declined
        return result

    def _size(self, value: Any) -> Any:
        """A size, or the reason why there is none: it may be that only assertions read it."""
        try:
            return self.emitter.dim(value)
        except RefusedError as refused:
            return refused

    def _item(self, node: fx.Node) -> Any:
        """A tensor's only element: a size symbol for a whole number, else a 0-d tensor."""
        self.emitter.node, self.emitter.name = node, node.name
        x, value = self._value(node.args[0]), node.meta["val"]
        if not isinstance(value, torch.SymInt):
            return self.emitter.reshape(x, [])
        whole = self.emitter.reshape(self.emitter.cast(x, "int64"), [1])
        symbol = tirx.Var(str(value.node.expr), "int64")
        self.symbols[symbol.name] = symbol
        shape = self.emitter.emit(relax.op.tensor_to_shape(whole))
        self.builder.match_cast(shape, relax.ShapeType([symbol]))
        return symbol

    def _on_host(self, node: fx.Node, error: Exception) -> Any:
        """The node as a call back to the host, after the converter has given up with ``error``."""
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), self._value)
        try:
            return host_call(self.emitter, args, kwargs)
        except RefusedError as refused:
            if not isinstance(error, RefusedError):
                raise error from refused
            raise RefusedError(
                f"{error.reason}; on the host: {refused.reason}", error.hint
            ) from error

    def _arguments(self, node: fx.Node) -> list[Any]:
        """The schema's arguments in order, defaults filled in."""
        arguments = []
        for position, argument in enumerate(node.target._schema.arguments):
            if position < len(node.args):
                value = node.args[position]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            else:
                value = argument.default_value
            arguments.append(self._value(value))
        return arguments

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return [self._value(item) for item in arg]
        if not isinstance(arg, fx.Node):
            return arg
        if arg in self.known:
            if arg not in self.constants:
                self.constants[arg] = self._constant(self.known[arg])
            return self.constants[arg]
        if isinstance(self.env[arg], RefusedError):
            raise self.env[arg]
        return self.env[arg]

    def _constant(self, tensor: torch.Tensor) -> Any:
        if tensor.dtype not in COMPLEX:
            return self.emitter.const(tensor, "")
        parts = torch.view_as_real(tensor.resolve_conj().resolve_neg())
        return Pair(self.emitter.const(parts, ""), COMPLEX[tensor.dtype][0])

    # -- refusals ----------------------------------------------------------------------------

    def _refuse(self, node: fx.Node, name: str, reason: str, hint: str | None) -> None:
        """Note the node and put zeros in its place, so that the walk finds the others too."""
        self.refused[name].append(node)
        self.reasons.setdefault(name, (reason, hint))

        def stand_in(meta: Any) -> Any:
            if not isinstance(meta, torch.Tensor):
                return meta
            try:
                dtype = dtype_name(meta.dtype)
                shape = relax.ShapeExpr(self.emitter.dims(meta.shape))
            except RefusedError:
                dtype, shape = "float32", relax.ShapeExpr([1])
            if node.op == "placeholder":
                return relax.const(0, dtype)
            return self.builder.emit(relax.op.zeros(shape, dtype))

        meta = node.meta.get("val")
        many = isinstance(meta, (tuple, list))
        self.env[node] = [stand_in(item) for item in meta] if many else stand_in(meta)

    def _raise_refused(self) -> None:
        if not self.refused:
            return
        ops = [
            UnsupportedOp(
                name,
                len(nodes),
                self.reasons[name][0],
                tuple(dict.fromkeys(source_location(node) for node in nodes)),
                self.reasons[name][1],
            )
            for name, nodes in self.refused.items()
        ]
        hints = [op.hint for op in ops if op.hint]
        raise UnsupportedError(ops, hint=hints[0] if hints else None)


def _is_token(node: fx.Node) -> bool:
    return "with_effects" in op_name(node.target)


def _same_meta(node: fx.Node) -> bool:
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    return bool(before.dtype == after.dtype and before.shape == after.shape)
