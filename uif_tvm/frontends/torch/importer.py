"""The walk over an exported graph: every node through its converter, every result checked."""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from tvm import relax, tirx

from uif_tvm.errors import UnsupportedError, UnsupportedOp
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.frontends.torch import converters as _converters  # noqa: F401  (fills the table)
from uif_tvm.frontends.torch.dtypes import dtype_name
from uif_tvm.frontends.torch.emitter import MAX_FOLDED_ELEMENTS, Emitter
from uif_tvm.frontends.torch.names import module_path, output_names, source_location
from uif_tvm.frontends.torch.registry import (
    ASSERTIONS,
    CONVERTERS,
    NO_OPS,
    RefusedError,
    op_name,
)
from uif_tvm.signature import Signature, TensorSpec

_Missing = object()
_EVAL = "call model.eval() before torch.export.export"
#: What TVM prints in the place of a constant.
_METADATA = re.compile(r"(metadata\[\S*\s*)?# Metadata omitted[^\n]*?method to show it\.\s*")


def import_program(program: ExportedProgram) -> ImportedModel:
    """Convert a decomposed program.

    Raises:
        UnsupportedError: every operator that cannot be converted, with counts and places.
    """
    return _Importer(program).run()


class _Importer:
    """State of one import."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.signature = program.graph_signature
        #: Values of Relax: node -> expression, size, number, or a list of them.
        self.env: dict[fx.Node, Any] = {}
        #: Values known already: node -> PyTorch tensor.
        self.known: dict[fx.Node, torch.Tensor] = {}
        self.constants: dict[fx.Node, Any] = {}
        self.symbols: dict[str, tirx.Var] = {}
        self.removed: Counter[str] = Counter()
        self.histogram: Counter[str] = Counter()
        #: Operator -> the nodes refused, and the first reason with its hint.
        self.refused: dict[str, list[fx.Node]] = defaultdict(list)
        self.reasons: dict[str, tuple[str, str | None]] = {}
        self.builder = relax.BlockBuilder()
        self.emitter = Emitter(self.builder, self.symbols)

    def run(self) -> ImportedModel:
        nodes = list(self.program.graph.nodes)
        self._check_state_changes()
        inputs = self._bind_placeholders(nodes)
        with self.builder.function("main", [var for _, var in inputs]):
            with self.builder.dataflow():
                for node in nodes:
                    if node.op in ("call_function", "get_attr"):
                        self._convert(node)
                # The function is closed in any case; an open builder warns when destroyed.
                names, outputs = ([], []) if self.refused else self._outputs(nodes[-1])
                result = self.builder.emit_output(relax.Tuple(outputs))
            self.builder.emit_func_output(result)
        self._raise_refused()
        mod = relax.transform.DeadCodeElimination(["main"])(self.builder.get())
        return ImportedModel(
            mod=mod,
            signature=Signature(
                tuple(_spec(name, var) for name, var in inputs),
                tuple(_spec(name, out) for name, out in zip(names, outputs, strict=True)),
            ),
            source="torch",
            op_histogram=dict(self.histogram),
            removed=dict(self.removed),
        )

    # -- inputs and outputs ------------------------------------------------------------------

    def _check_state_changes(self) -> None:
        for spec in self.signature.output_specs:
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
                continue
            if spec.kind == OutputKind.BUFFER_MUTATION:
                if str(spec.target).endswith("num_batches_tracked"):
                    self.removed["num_batches_tracked update"] += 1
                    continue
                raise UnsupportedError(
                    [
                        UnsupportedOp(
                            "buffer mutation",
                            1,
                            "the model writes to its own buffer between "
                            "calls, and a compiled model keeps no state",
                            (str(spec.target),),
                        )
                    ],
                    hint=_EVAL
                    if str(spec.target).endswith(("running_mean", "running_var"))
                    else "pass the state as an input and return it as an output",
                )
            self.removed["in-place change of an input"] += 1

    def _bind_placeholders(self, nodes: list[fx.Node]) -> list[tuple[str, relax.Var]]:
        specs = {spec.arg.name: spec for spec in self.signature.input_specs}
        state = dict(self.program.state_dict) | dict(self.program.constants)
        inputs: list[tuple[str, relax.Var]] = []
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
            elif spec.target in state and isinstance(state[spec.target], torch.Tensor):
                self.known[node] = state[spec.target].detach()
            else:
                self._refuse(node, "model state", f"{spec.kind.name} {spec.target!r}", None)
        return inputs

    def _input(self, node: fx.Node, value: torch.Tensor) -> relax.Var:
        for size in value.shape:
            if isinstance(size, torch.SymInt):
                for symbol in sorted(size.node.expr.free_symbols, key=str):
                    self.symbols.setdefault(str(symbol), tirx.Var(str(symbol), "int64"))
        try:
            dtype = dtype_name(value.dtype)
        except RefusedError as refused:
            self._refuse(node, f"input {node.name}", refused.reason, refused.hint)
            dtype = "float32"
        return relax.Var(node.name, relax.TensorType(self.emitter.dims(value.shape), dtype))

    def _outputs(self, node: fx.Node) -> tuple[list[str], list[relax.Expr]]:
        results = node.args[0]
        user = [
            result
            for result, spec in zip(results, self.signature.output_specs, strict=True)
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        ]
        names, outputs = [], []
        for name, result in zip(output_names(self.program, len(user)), user, strict=True):
            value = self._value(result)
            if value is None:
                self.removed["None output"] += 1
                continue
            if isinstance(value, (bool, int, float)):
                value = self.emitter.const(torch.tensor(value), "")
            if not isinstance(value.ty, relax.TensorType):
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
        if name in ASSERTIONS:
            self.removed[name] += 1
            return
        if node.op == "get_attr":
            self._refuse(node, "nested graph", f"attribute {node.target}", None)
            return
        if not node.users and not isinstance(value, (torch.Tensor, tuple, list)):
            return
        self.histogram[name] += 1
        try:
            if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
                self.env[node] = self.emitter.dim(value)
            elif name in NO_OPS and _same_meta(node):
                self.removed[name] += 1
                self._alias(node, node.args[0])
            elif not self._fold(node):
                self.env[node] = self._call(node, name)
        except RefusedError as refused:
            self._refuse(node, name, refused.reason, refused.hint)
        except Exception as error:
            text = _METADATA.sub("a constant ", str(error)).strip().splitlines()
            reason = f"conversion failed: {type(error).__name__}: {text[-1] if text else ''}"
            self._refuse(node, name, reason, None)

    def _getitem(self, node: fx.Node) -> None:
        parent, index = node.args
        if parent in self.known:
            self.known[node] = self.known[parent][index]
            return
        value = self.env[parent]
        item = value[index] if isinstance(value, (list, tuple)) else _Missing
        if item is _Missing or item is None:
            self._refuse(node, op_name(parent.target), f"result {index} is not available", None)
            return
        self.env[node] = item

    def _alias(self, node: fx.Node, source: Any) -> None:
        if source in self.known:
            self.known[node] = self.known[source]
        else:
            self.env[node] = self.env[source]

    def _fold(self, node: fx.Node) -> bool:
        """Compute the node now, with PyTorch itself, when nothing in it comes from an input."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return False
        if torch.Tag.nondeterministic_seeded in node.target.tags or "empty" in str(node.target):
            return False  # random, or memory as it was found
        if not all(
            isinstance(arg, (fx.Node,)) and arg in self.known for arg in node.all_input_nodes
        ):
            return False
        limit = MAX_FOLDED_ELEMENTS + sum(self.known[arg].numel() for arg in node.all_input_nodes)
        metas = node.meta["val"]
        for meta in metas if isinstance(metas, (tuple, list)) else (metas,):
            if not isinstance(meta, torch.Tensor):
                return False
            if any(isinstance(size, torch.SymInt) for size in meta.shape) or meta.numel() > limit:
                return False
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: self.known[arg])
        if kwargs.get("device") is not None:
            kwargs = dict(kwargs) | {"device": torch.device("cpu")}
        target: Any = node.target
        if target is torch.ops.aten.as_strided.default:
            return False  # it depends on strides, which folding does not keep
        if target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            target = torch.reshape  # the same reason
        with torch.no_grad():
            self.known[node] = target(*args, **kwargs)
        return True

    def _call(self, node: fx.Node, name: str) -> Any:
        for meta in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if isinstance(meta, torch.Tensor):
                dtype_name(meta.dtype)
        convert = CONVERTERS.get(name)
        if convert is None:
            raise RefusedError("no converter", _hint(name, node))
        self.emitter.node = node
        self.emitter.name = "/".join(part for part in (module_path(node), node.name) if part)
        result = convert(self.emitter, *self._arguments(node))
        _check_result(self.emitter, node, result)
        return result

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
                self.constants[arg] = self.emitter.const(self.known[arg], "")
            return self.constants[arg]
        return self.env[arg]

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


def _spec(name: str, value: relax.Expr) -> TensorSpec:
    shape = tuple(d if isinstance(d, int) else str(d) for d in Emitter.shape(value))
    return TensorSpec(name, shape, Emitter.dtype(value))


def _same_meta(node: fx.Node) -> bool:
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    return bool(before.dtype == after.dtype and before.shape == after.shape)


def _check_result(emitter: Emitter, node: fx.Node, result: Any) -> None:
    """Every converted tensor must have the dtype and the shape that PyTorch computed."""
    metas = node.meta["val"]
    pairs = (
        zip(result, metas, strict=True) if isinstance(metas, (tuple, list)) else [(result, metas)]
    )
    for value, meta in pairs:
        if value is None or not isinstance(meta, torch.Tensor):
            continue
        dtype, shape = dtype_name(meta.dtype), emitter.dims(meta.shape)
        have, sizes = emitter.dtype(value), emitter.shape(value)
        if have != dtype or not emitter.same_shape(sizes, shape):
            raise RefusedError(f"converted to {have}{sizes}, but PyTorch gives {dtype}{shape}")


def _hint(name: str, node: fx.Node) -> str:
    origin = f"{node.meta.get('torch_fn')} {node.meta.get('stack_trace')}".lower()
    if ("rand" in name or "bernoulli" in name or "dropout" in name) and "dropout(" in origin:
        return _EVAL
    if any(word in name for word in ("rand", "bernoulli", "multinomial", "normal", "dropout")):
        return "random numbers have no place in inference: pass them as an input"
    if any(word in name for word in ("nonzero", "unique", "masked_select", "item", "bincount")):
        return "the size of the result depends on the data; use torch.where with a fixed size"
    return "rewrite the model with supported operators"
