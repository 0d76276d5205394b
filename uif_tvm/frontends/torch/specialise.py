"""Models whose Python code looks at values: exported for the values of the example.

``if mask.any(): ...`` needs a number that ``torch.export`` does not have. Here the module first
runs on the example inputs while every number read from a tensor is noted, with the line that read
it. The export then goes on with these numbers, and an assertion is put into the program for each:

    n = x.item()  ->  assert_async(x == 3, "uif:model.py:12")

The importer turns the assertions into checks at run time, so that inputs for which the model would
have taken another way are refused instead of being answered wrongly.
"""

from __future__ import annotations

import math
import os
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses import fake_impls
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._python_dispatch import TorchDispatchMode

#: How the messages of our assertions begin; what follows is the line that read the value.
PREFIX = "uif:"
_READ: Any = torch.ops.aten._local_scalar_dense.default
_ITEMS = (torch.ops.aten.item.default, _READ)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep

#: (file, line) -> numbers read there, in order.
_Values = dict[tuple[str, int], list[Any]]


class SpecialiseError(Exception):
    """The values that the model read could not be told apart."""


def export_for_values(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ExportedProgram:
    """The module's program for the numbers that it reads from tensors on this example.

    Raises:
        SpecialiseError: the reads in the program are not those of the example run.
    """
    with _Recorder() as recorder, torch.no_grad():
        module(*_copies(args), **_copies(kwargs))
    used: list[tuple[str, Any]] = []
    with _replayed(recorder.values, used):
        program = torch.export.export(module, args, kwargs)
    _assert_values(program, used)
    program.graph_module.recompile()
    return program


def _copies(tree: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.clone(), tree)


def _reader() -> tuple[str, int]:
    """The innermost line outside PyTorch that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((_TORCH, _OURS)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes every number that is read from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.values: _Values = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _READ:
            self.values[_reader()].append(result)
        return result


@contextmanager
def _replayed(values: _Values, used: list[tuple[str, Any]]) -> Iterator[None]:
    """Let reads from fake tensors give the numbers noted for the same line, in the same order."""
    left = {place: deque(numbers) for place, numbers in values.items()}
    table: Any = fake_impls.op_implementations_dict
    original = table[_READ]

    def read(mode: Any, func: Any, tensor: Any) -> Any:
        place = _reader()
        if not left.get(place):
            return original(mode, func, tensor)
        number = left[place].popleft()
        used.append((f"{os.path.basename(place[0])}:{place[1]}", number))
        return number

    table[_READ] = read
    try:
        yield
    finally:
        table[_READ] = original


def _assert_values(program: ExportedProgram, used: list[tuple[str, Any]]) -> None:
    """Put an assertion in the place of every read that was given a number.

    Raises:
        SpecialiseError: the program reads more or fewer numbers than were given.
    """
    graph = program.graph
    constant = _constant_nodes(program)
    reads = [node for node in graph.nodes if _is_read(node)]
    if len(reads) != len(used):  # PyTorch knows the values of constants by itself
        reads = [node for node in reads if node not in constant]
    if len(reads) != len(used):
        raise SpecialiseError(f"{len(used)} values were read, the program has {len(reads)} reads")
    for node, (place, number) in zip(reads, used, strict=True):
        if isinstance(number, float) and math.isnan(number):
            raise SpecialiseError(f"{place} reads a NaN")
        _assert_value(graph, node, number, place)
    graph.lint()


def _is_read(node: fx.Node) -> bool:
    """Whether the node reads a number that is no symbol of the program's."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return (
        node.op == "call_function"
        and node.target in _ITEMS
        and not isinstance(node.meta.get("val"), symbols)
    )


def _constant_nodes(program: ExportedProgram) -> set[fx.Node]:
    """Nodes that follow from literals in the model's code alone."""
    literals = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.CONSTANT_TENSOR
    }
    found: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            constant = node.name in literals
        else:
            constant = all(source in found for source in node.all_input_nodes)
        if constant:
            found.add(node)
    return found


def _assert_value(graph: fx.Graph, node: fx.Node, number: Any, place: str) -> None:
    """Replace one read, whose result nothing takes any more, by an assertion."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or node.users:
        raise SpecialiseError(f"{place} reads a value that the program goes on with")
    dtype = source.meta["val"].dtype
    kind = float if dtype.is_floating_point else bool if dtype == torch.bool else int
    if type(number) is not kind:
        raise SpecialiseError(f"{place} read {number!r}, the program a {dtype}")
    with graph.inserting_before(node):
        same = graph.call_function(torch.ops.aten.eq.Scalar, (source, number))
        check = graph.call_function(torch.ops.aten._assert_async.msg, (same, PREFIX + place))
    value = source.meta["val"]
    with value.fake_mode:
        same.meta = dict(node.meta) | {"val": torch.empty(value.shape, dtype=torch.bool)}
    check.meta = dict(node.meta) | {"val": None}
    graph.erase_node(node)
