"""Down to operators that have converters, by PyTorch's own decompositions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from uif_tvm.errors import ImportModelError, UnsupportedError, UnsupportedOp
from uif_tvm.frontends.torch.names import source_location
from uif_tvm.frontends.torch.pairs import is_complex
from uif_tvm.frontends.torch.quiet import quietly
from uif_tvm.frontends.torch.registry import COMPLEX_CONVERTERS, CONVERTERS, NO_OPS, find, op_name

#: Decompositions may lead to operators that decompose again; this many rounds are enough.
_ROUNDS = 6
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_STRIDED: Any = torch.ops.aten.as_strided.default
#: Operators whose decompositions change memory in place.
_KEPT = frozenset({"aten.as_strided_scatter.default"})


def decompose(program: ExportedProgram) -> ExportedProgram:
    """A functional program of operators that have converters, as far as PyTorch can bring it there.

    Raises:
        ImportModelError: PyTorch fails to take the program apart.
        UnsupportedError: it reads memory by strides that are not its own.
    """
    table: dict[Any, Any] = {
        op: function
        for op, function in torch.export.default_decompositions().items()
        if find(op_name(op)) is None
    }
    with quietly(), torch.no_grad():
        try:
            if any(
                node.target is torch.ops.aten.as_strided.default for node in program.graph.nodes
            ):
                program = program.run_decompositions({})
                _pin_strides(program)
            program, decomposed = _decomposed(program, table)
            # Each round starts from the same program: PyTorch does not take apart twice what
            # consists of its primitives.
            for _ in range(_ROUNDS):
                extra = _further_decompositions(decomposed)
                if not extra.keys() - table.keys():
                    break
                table |= extra
                # Some decompositions do not work in programs; the host may have the operator.
                with suppress(Exception):
                    program, decomposed = _decomposed(program, table)
        except UnsupportedError:
            raise
        except Exception as error:
            raise ImportModelError(
                f"PyTorch cannot decompose the program: {first_lines(error)}",
                code="UIF-IMPORT-TORCH-EXPORT",
                hint="run model.run_decompositions() on the exported program to see the cause",
            ) from error
    return decomposed


def _decomposed(
    program: ExportedProgram, table: dict[Any, Any]
) -> tuple[ExportedProgram, ExportedProgram]:
    """The program, changed where that was needed to take it apart, and the result.

    ``view`` of a tensor that a decomposition lays out otherwise fails, where ``reshape`` does not.
    They mean the same once nothing is changed in place any more.
    """
    try:
        return program, program.run_decompositions(table)
    except Exception as error:
        if "view" not in str(error):
            raise
    program = program.run_decompositions({})
    for node in program.graph.nodes:
        if node.target in _VIEWS:
            node.target = torch.ops.aten.reshape.default
    program.graph_module.recompile()
    return program, program.run_decompositions(table)


def _further_decompositions(program: ExportedProgram) -> dict[Any, Any]:
    """PyTorch's decompositions of the operators that no converter takes."""
    found = {}
    for node in program.graph.nodes:
        name = op_name(node.target) if node.op == "call_function" else ""
        known = name in CONVERTERS or name in NO_OPS or name in _KEPT
        known |= name in COMPLEX_CONVERTERS and is_complex(node.meta.get("val"))
        if name.startswith(("aten.", "prims.")) and not known:
            function = torch._decomp.decomposition_table.get(node.target)
            if function is not None:
                found[node.target] = function
    return found


def _pin_strides(program: ExportedProgram) -> None:
    """Lay the inputs of ``as_strided`` out as they lie in memory, whatever comes before them.

    ``as_strided`` reads memory, and decompositions lay results out otherwise:
    ``as_strided(x)  ->  as_strided(permute(x, by falling stride).clone())``.

    Raises:
        UnsupportedError: an input does not fill the memory that it lies in.
    """
    refused: list[fx.Node] = []
    for node in list(program.graph.nodes):
        if node.target is not _STRIDED:
            continue
        source = node.args[0]
        order = _dense_order(source.meta["val"])
        if order is None:
            refused.append(node)
            continue
        with program.graph.inserting_before(node):
            moved = program.graph.call_function(torch.ops.aten.permute.default, (source, order))
            dense = program.graph.call_function(
                torch.ops.aten.clone.default,
                (moved,),
                {"memory_format": torch.contiguous_format},
            )
        value = source.meta["val"]
        moved.meta = dict(node.meta) | {"val": value.permute(order)}
        dense.meta = dict(node.meta) | {"val": value.permute(order).contiguous()}
        node.args = (dense, *node.args[1:])
    if refused:
        op = UnsupportedOp(
            "aten.as_strided.default",
            len(refused),
            "its input is a view that does not fill the memory it lies in",
            tuple(dict.fromkeys(map(source_location, refused))),
            "use slicing, unfold or gather, which say what is read",
        )
        raise UnsupportedError([op], hint=op.hint)
    program.graph_module.recompile()


def _dense_order(value: torch.Tensor) -> list[int] | None:
    """Axes in memory order of a tensor that fills its memory without gaps, else ``None``."""
    sizes, strides = list(value.shape), list(value.stride())
    if value.storage_offset() != 0 or not all(isinstance(n, int) for n in sizes + strides):
        return None
    order = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1:
            if strides[axis] != expected:
                return None
            expected *= sizes[axis]
    return order


def first_lines(error: Exception, limit: int = 3) -> str:
    """The start of an error message; PyTorch's can be pages long."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:limit])
