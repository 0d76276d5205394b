"""From a ``.pt2`` file to its distinct operator instances, each a program of its own.

What is taken apart is the program as it is imported: decomposed as far as there are converters.
Runs in a worker process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from uif_tvm.frontends.torch import converters as _converters  # noqa: F401  (fills the table)
from uif_tvm.frontends.torch.dtypes import tensor_to_numpy
from uif_tvm.frontends.torch.program import export_program
from uif_tvm.frontends.torch.quiet import quietly
from uif_tvm.frontends.torch.registry import ASSERTIONS, op_name
from uif_tvm.selection.arrays import Array, load_arrays, save_arrays
from uif_tvm.selection.coverage.instance import (
    OperandInfo,
    OpInstance,
    digest_of,
    operand_infos,
)
from uif_tvm.selection.coverage.made_up import made_up

#: Stands for sizes that the program leaves open.
OPEN_SIZE = 2
_SHOWN_ARGUMENT = 60


def capture(model: str, inputs: str | None, folder: str, known: list[str]) -> dict[str, Any]:
    """Take the program in ``model`` apart; see :func:`.capture_onnx.capture`.

    Inputs are those given, else the examples stored in the file, else made up.

    Raises:
        ImportModelError: the file is damaged, unsafe or no exported program.
    """
    program, _ = export_program(model, None)
    given = load_arrays(Path(inputs)) if inputs else {}
    walk = _Walk(program, Path(folder), frozenset(known))
    with torch.no_grad(), quietly():
        walk.run(given)
    return {
        "instances": [instance.to_json() for instance in walk.instances.values()],
        "histogram": dict(walk.histogram.most_common()),
        "functions": {},
        "inputs": walk.inputs,
    }


@dataclass(frozen=True)
class _Value:
    """A value of the run; ``fixed`` where no input decides it."""

    value: Any
    fixed: bool


class _OneOp(torch.nn.Module):  # type: ignore[misc]
    """One operator: tensors of ``fixed`` are buffers, the others arguments in order."""

    def __init__(
        self, target: Any, leaves: Sequence[Any], spec: Any, fixed: Sequence[bool], used: list[int]
    ) -> None:
        super().__init__()
        self.target = target
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.spec = spec
        self.used = used
        self.sources: list[str] = []
        for index, (leaf, constant) in enumerate(zip(leaves, fixed, strict=True)):
            if isinstance(leaf, torch.Tensor) and constant:
                self.register_buffer(f"constant{index}", leaf.detach().clone())
                self.sources.append("constant")
            else:
                self.sources.append("input" if isinstance(leaf, torch.Tensor) else "literal")

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The operator's results, those that are used."""
        given = iter(tensors)
        leaves = [
            next(given)
            if source == "input"
            else getattr(self, f"constant{index}")
            if source == "constant"
            else leaf
            for index, (source, leaf) in enumerate(zip(self.sources, self.leaves, strict=True))
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        results = self.target(*args, **kwargs)
        if isinstance(results, (tuple, list)):
            return tuple(results[index] for index in self.used)
        return results


class _Walk:
    """State of one walk."""

    def __init__(self, program: Any, folder: Path, known: frozenset[str]) -> None:
        self.program = program
        self.folder = folder
        self.known = known
        self.values: dict[fx.Node, _Value] = {}
        self.instances: dict[str, OpInstance] = {}
        self.histogram: Counter[str] = Counter()
        self.inputs: dict[str, Any] = {}

    def run(self, given: Mapping[str, Array]) -> None:
        """Evaluate every node, and note every operator."""
        self._bind(given)
        for node in self.program.graph.nodes:
            if node.op == "call_function" and op_name(node.target) not in ASSERTIONS:
                self._node(node)

    def _bind(self, given: Mapping[str, Array]) -> None:
        program = self.program
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        state = dict(program.state_dict) | dict(program.constants)
        examples = iter(_examples(program))
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind != InputKind.USER_INPUT:
                self.values[node] = _Value(state.get(spec.target), fixed=True)
                continue
            example = next(examples, None)
            meta = node.meta.get("val")
            if node.name in given:
                example = torch.from_numpy(np.array(given[node.name], order="C"))
            elif not isinstance(example, torch.Tensor) and isinstance(meta, torch.Tensor):
                example = _made_up(meta)
            self.values[node] = _Value(example, fixed=not isinstance(example, torch.Tensor))
            if isinstance(example, torch.Tensor):
                dtype = str(example.dtype).removeprefix("torch.")
                self.inputs[node.name] = [dtype, list(example.shape)]

    def _node(self, node: fx.Node) -> None:
        args = pytree.tree_map_only(fx.Node, self._known, (node.args, node.kwargs))
        leaves, spec = pytree.tree_flatten(args)
        values = [leaf.value if isinstance(leaf, _Value) else leaf for leaf in leaves]
        # Numbers read off shapes count as fixed: they are baked into the instance.
        fixed = [not isinstance(leaf, _Value) or leaf.fixed for leaf in leaves]
        settled = all(fixed)
        name = op_name(node.target)
        if not isinstance(node.target, torch._ops.OpOverload):
            self._other(node, name, values, spec, settled)
            return
        if any(leaf is None and isinstance(raw, _Value) for raw, leaf in zip(leaves, values)):  # noqa: B905
            self._obstacle(node, name, "its operands are not known")
            return
        args, kwargs = pytree.tree_unflatten(values, spec)
        counter = FlopCounterMode(display=False)
        try:
            with counter:
                results = node.target(*args, **kwargs)
        except Exception as error:  # PyTorch refuses in many ways; the walk goes on
            self._obstacle(node, name, f"PyTorch cannot run it: {type(error).__name__}: {error}")
            return
        self.values[node] = _Value(results, settled)
        tensors = [item for item in pytree.tree_leaves(results) if isinstance(item, torch.Tensor)]
        if tensors:
            self._meet(node, name, values, spec, fixed, results, counter.get_total_flops())

    def _known(self, node: fx.Node) -> Any:
        return self.values.get(node, _Value(None, fixed=False))

    def _other(self, node: fx.Node, name: str, values: Any, spec: Any, settled: bool) -> None:
        """Arithmetic on sizes, parts of a tuple, and what is no operator at all."""
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._obstacle(node, name, "it has graphs of its own, which are not taken apart")
            return
        args, kwargs = pytree.tree_unflatten(values, spec)
        try:
            self.values[node] = _Value(node.target(*args, **kwargs), settled)
        except Exception:  # its operands are not known: neither is this
            self.values[node] = _Value(None, fixed=False)

    def _obstacle(self, node: fx.Node, name: str, reason: str) -> None:
        self.histogram[name] += 1
        self.values[node] = _Value(None, fixed=False)
        instance = OpInstance(
            digest_of(name, reason), name, 0, notes=["unreached"], obstacle=reason
        )
        self.instances.setdefault(instance.digest, instance).occurs(node.name, 1.0)

    def _meet(
        self,
        node: fx.Node,
        name: str,
        values: Sequence[Any],
        spec: Any,
        fixed: Sequence[bool],
        results: Any,
        flops: float,
    ) -> None:
        self.histogram[name] += 1
        used = _used(node, results)
        outputs = [results[i] for i in used] if isinstance(results, (tuple, list)) else [results]
        instance = _describe(name, node, values, fixed, outputs, flops)
        kept = self.instances.setdefault(instance.digest, instance)
        kept.occurs(node.name, 1.0)
        if kept is not instance or instance.digest in self.known:
            return
        inputs = [
            value
            for value, constant in zip(values, fixed, strict=True)
            if isinstance(value, torch.Tensor) and not constant
        ]
        folder = self.folder / instance.digest
        folder.mkdir(parents=True, exist_ok=True)
        module = _OneOp(node.target, values, spec, fixed, used)
        try:
            one = torch.export.export(module, tuple(item.detach().clone() for item in inputs))
            torch.export.save(one, folder / "model.pt2")
        except Exception as error:  # then it cannot be tried alone
            instance.obstacle = f"PyTorch cannot export it alone: {type(error).__name__}: {error}"
            return
        save_arrays(folder / "inputs.npz", _named("x", inputs))
        save_arrays(folder / "expected.npz", _named("y", outputs))


def _examples(program: Any) -> list[Any]:
    """The example inputs that the program was exported with, in the order of its placeholders."""
    stored = getattr(program, "example_inputs", None)
    return [] if stored is None else list(pytree.tree_leaves(stored))


def _made_up(meta: torch.Tensor) -> torch.Tensor:
    shape = [size if isinstance(size, int) else _size(size) for size in meta.shape]
    if meta.dtype == torch.bfloat16:
        return torch.from_numpy(made_up(shape, "float32")).to(meta.dtype)
    return torch.from_numpy(made_up(shape, str(meta.dtype).removeprefix("torch.")))


def _size(size: Any) -> int:
    hint = size.node.hint
    return int(hint) if hint is not None else OPEN_SIZE


def _used(node: fx.Node, results: Any) -> list[int]:
    """Results that something reads."""
    if not isinstance(results, (tuple, list)):
        return [0]
    read = sorted({user.args[1] for user in node.users if len(user.args) > 1})
    return [i for i in read or range(len(results)) if isinstance(results[i], torch.Tensor)]


def _named(prefix: str, tensors: Sequence[torch.Tensor]) -> dict[str, Array]:
    return {f"{prefix}{i}": tensor_to_numpy(t.contiguous()) for i, t in enumerate(tensors)}


def _info(value: torch.Tensor, fixed: bool, name: str) -> OperandInfo:
    if fixed and value.numel() <= 64 and not value.is_complex():
        (info,) = operand_infos(name, 0, tensor_to_numpy(value.contiguous()), fixed=True)
        return info
    dtype = str(value.dtype).removeprefix("torch.")
    return OperandInfo(dtype, tuple(value.shape), "constant" if fixed else "input")


def _describe(
    name: str,
    node: fx.Node,
    values: Sequence[Any],
    fixed: Sequence[bool],
    outputs: Sequence[torch.Tensor],
    flops: float,
) -> OpInstance:
    inputs = [
        _info(value, constant, name)
        for value, constant in zip(values, fixed, strict=True)
        if isinstance(value, torch.Tensor)
    ]
    attributes = _literals(node)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    settled = all(
        constant for value, constant in zip(values, fixed, strict=True)
        if isinstance(value, torch.Tensor)
    )  # fmt: skip
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    notes = [word for word, on in (("random", random), ("settled", settled and not random)) if on]
    elements = max((int(item.numel()) for item in [*tensors, *outputs]), default=0)
    literals = [repr(value) for value in values if not isinstance(value, torch.Tensor)]
    return OpInstance(
        digest_of(name, literals, [vars(item) for item in inputs], notes),
        name,
        0,
        attributes,
        inputs,
        [_info(item, False, name) for item in outputs],
        float(flops or elements),
        float(sum(item.numel() * item.element_size() for item in [*tensors, *outputs])),
        next((str(item.dtype).removeprefix("torch.") for item in outputs), "float32"),
        "pytorch",
        notes=notes,
    )


def _literals(node: fx.Node) -> dict[str, str]:
    """Arguments that are no tensors, by the names of the operator's schema."""
    found: dict[str, str] = {}
    names = [argument.name for argument in node.target._schema.arguments]
    for name, value in [*zip(names, node.args, strict=False), *node.kwargs.items()]:
        if not isinstance(value, fx.Node) and value is not None:
            text = str(value)
            shown = text if len(text) <= _SHOWN_ARGUMENT else text[: _SHOWN_ARGUMENT - 3] + "..."
            found[str(name)] = shown
    return found
