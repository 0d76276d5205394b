"""``dynamic_shapes=`` for PyTorch models: our entries and PyTorch's own, in PyTorch's structure.

The structure is ``torch.export``'s: a dict by parameter name of ``forward``, or one entry per
argument in order, containers nested like the arguments. Leaves are those of
:mod:`uif_tvm.frontends.dynamic`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from uif_tvm.errors import UsageError
from uif_tvm.frontends.dynamic import AUTO, axis_entries, fault, parse_entry
from uif_tvm.signature import DimRange

#: Per tensor input, in order: axis -> name of its dimension.
AxisNames = list[dict[int, str]]


class DynamicShapes:
    """What ``torch.export`` is told, and what the dimensions are called.

    Args:
        module: whose ``forward`` names the arguments.
        args, kwargs: the example.
        wanted: the caller's ``dynamic_shapes``.

    Raises:
        UsageError: entries that fit neither the form nor the arguments.
    """

    def __init__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: Any
    ) -> None:
        self._dims: dict[str, Any] = {}
        self._ranges: dict[str, DimRange] = {}
        self.names: AxisNames = []
        arguments = _by_name(module, args, kwargs)
        if isinstance(wanted, str) and wanted != AUTO:
            raise fault(f"{wanted!r} is neither a mapping by input name nor 'auto'")
        if isinstance(wanted, Sequence) and not isinstance(wanted, str):
            wanted = dict(zip(arguments, wanted, strict=False))
        if isinstance(wanted, Mapping):
            unknown = [name for name in wanted if name not in arguments]
            if unknown:
                has = ", ".join(map(repr, arguments)) or "none"
                raise fault(f"forward has no argument {unknown[0]!r} in the example; it has {has}")
        #: For ``torch.export.export``.
        self.for_torch = {
            name: self._convert(value, _part(wanted, name), name)
            for name, value in arguments.items()
        }

    def _convert(self, value: Any, wanted: Any, subject: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, wanted, subject)
        if isinstance(value, Mapping):
            part = {} if wanted is None else wanted
            return {
                key: self._convert(
                    item, part if part == AUTO else part.get(key), f"{subject}.{key}"
                )
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            part = [None] * len(value) if wanted is None else wanted
            if part != AUTO and len(part) != len(value):
                raise fault(f"{subject} has {len(value)} items, {len(part)} entries were given")
            items = [
                self._convert(item, part if part == AUTO else part[index], f"{subject}[{index}]")
                for index, item in enumerate(value)
            ]
            return type(value)(items) if type(value) in (list, tuple) else items
        return None

    def _tensor(self, value: torch.Tensor, wanted: Any, subject: str) -> dict[int, Any]:
        names: dict[int, str] = {}
        self.names.append(names)
        if isinstance(wanted, str) and wanted == AUTO:
            return dict.fromkeys(range(value.dim()), Dim.AUTO)
        dims: dict[int, Any] = {}
        for axis, item in axis_entries(wanted, value.dim(), f"input {subject!r}"):
            if isinstance(getattr(item, "root", None), Dim):  # 2 * Dim("half"): PyTorch's own
                dims[axis] = item
                continue
            entry = parse_entry(item, f"axis {axis} of {subject!r}")
            if isinstance(entry, int) and entry != value.shape[axis]:
                raise fault(f"axis {axis} of {subject!r} is fixed at {entry}, the example has "
                            f"{value.shape[axis]}")  # fmt: skip
            if isinstance(entry, DimRange):
                dims[axis] = self._dim(entry, item)
                if entry.name:
                    names[axis] = entry.name
        return dims

    def _dim(self, entry: DimRange, item: Any) -> Any:
        if not entry.name:
            return item
        known = self._ranges.setdefault(entry.name, entry)
        if entry != known and entry != DimRange(entry.name):
            raise fault(f"{entry.name!r} has two ranges: {known} and {entry}")
        if entry.name not in self._dims:
            self._dims[entry.name] = Dim(entry.name, min=entry.minimum, max=entry.maximum)
        return self._dims[entry.name]


def _part(wanted: Any, key: Any) -> Any:
    return wanted if isinstance(wanted, str) and wanted == AUTO else wanted.get(key)


def _by_name(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {str(index): value for index, value in enumerate(args)} | kwargs
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found


def refuse_for_program() -> UsageError:
    """The error for ``dynamic_shapes`` of a program whose sizes are settled."""
    return UsageError(
        "dynamic_shapes was given for a program that is exported already",
        code="UIF-USAGE-DYNAMIC",
        hint="pass them to torch.export.export, or pass the module itself",
    )


def symbol_names(program: ExportedProgram, names: AxisNames) -> dict[str, str]:
    """Size symbol of the program -> the name that the caller gave it."""
    found: dict[str, str] = {}
    for value, axes in zip(_tensor_inputs(program), names, strict=False):
        for axis, name in axes.items():
            size = value.shape[axis]
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found.setdefault(str(size.node.expr), name)
    return found


def symbol_ranges(program: ExportedProgram, names: Mapping[str, str]) -> dict[str, DimRange]:
    """Name of each size symbol of an input -> its range."""
    ranges = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
    found = {}
    for value in _tensor_inputs(program):
        for size in value.shape:
            if not isinstance(size, torch.SymInt):
                continue
            for symbol in map(str, size.node.expr.free_symbols):
                name, limits = names.get(symbol, symbol), ranges.get(symbol)
                least = max(1, int(limits.lower)) if limits is not None else 1
                most = None
                if limits is not None and limits.upper.is_Integer:
                    most = int(limits.upper)
                found[name] = DimRange(name, least, most if most and most < 2**31 - 1 else None)
    return found


def _tensor_inputs(program: ExportedProgram) -> Iterator[torch.Tensor]:
    """The fake tensors of the user's inputs, in order."""
    user = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    }
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in user:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                yield value
