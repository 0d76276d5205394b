"""From what the user holds to one functional, decomposed ``ExportedProgram``."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from uif_tvm.errors import ImportModelError, UsageError
from uif_tvm.frontends.torch.archive import load_archive
from uif_tvm.frontends.torch.registry import CONVERTERS, NO_OPS, op_name

#: Decompositions may lead to operators that decompose again; this many rounds are enough.
_ROUNDS = 6


def export_program(model: Any, dummy_input: Any) -> ExportedProgram:
    """A program of operators that have converters, as far as decomposition can bring it there.

    Raises:
        UsageError: no example input for a module, or a model of an unknown kind.
        ImportModelError: PyTorch cannot export or decompose the model.
    """
    if isinstance(model, ExportedProgram):
        program = model
    elif isinstance(model, (str, os.PathLike)):
        program = load_archive(model)
    elif isinstance(model, torch.nn.Module):
        program = _export_module(model, dummy_input)
    else:
        raise UsageError(
            f"cannot import a {type(model).__name__}",
            hint="pass a torch.nn.Module, an ExportedProgram or the path of a .pt2 file",
        )
    return _decompose(program)


def _export_module(module: torch.nn.Module, dummy_input: Any) -> ExportedProgram:
    if dummy_input is None:
        raise UsageError(
            "a torch.nn.Module needs dummy_input to be exported",
            hint="pass example inputs: a tensor, a tuple of tensors, or a dict of them",
        )
    args, kwargs = _as_arguments(dummy_input)
    with _evaluation_mode(module), _quietly(), torch.no_grad():
        try:
            return torch.export.export(module, args, kwargs)
        except Exception as error:
            raise ImportModelError(
                f"torch.export cannot export {type(module).__name__}: {_first_lines(error)}",
                code="UIF-IMPORT-TORCH-EXPORT",
                hint="data-dependent Python control flow must be rewritten with torch operators; "
                "see the torch.export documentation",
            ) from error


def _as_arguments(dummy_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from the user's example input."""
    value = torch.utils._pytree.tree_map(_as_tensor, dummy_input)
    if isinstance(value, Mapping):
        return (), dict(value)
    if isinstance(value, (tuple, list)):
        return tuple(value), {}
    return (value,), {}


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic)):
        return torch.from_numpy(np.array(leaf, order="C"))
    return leaf


@contextmanager
def _evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """The module in inference mode; every submodule's own flag is put back afterwards."""
    flags = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, training in flags.items():
            part.training = training


@contextmanager
def _quietly() -> Iterator[None]:
    """No warnings, log lines or graph print-outs of PyTorch's: what matters is in its exception."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _decompose(program: ExportedProgram) -> ExportedProgram:
    table: dict[Any, Any] = {
        op: function
        for op, function in torch.export.default_decompositions().items()
        if op_name(op) not in CONVERTERS
    }
    with _quietly(), torch.no_grad():
        try:
            program = program.run_decompositions(table)
            for _ in range(_ROUNDS):
                extra = _further_decompositions(program)
                if not extra:
                    break
                program = program.run_decompositions(extra)
        except Exception as error:
            raise ImportModelError(
                f"PyTorch cannot decompose the program: {_first_lines(error)}",
                code="UIF-IMPORT-TORCH-EXPORT",
                hint="run model.run_decompositions() on the exported program to see the cause",
            ) from error
    return program


def _further_decompositions(program: ExportedProgram) -> dict[Any, Any]:
    """PyTorch's decompositions of the operators that no converter takes."""
    found = {}
    for node in program.graph.nodes:
        name = op_name(node.target) if node.op == "call_function" else ""
        if name.startswith(("aten.", "prims.")) and name not in CONVERTERS and name not in NO_OPS:
            function = torch._decomp.decomposition_table.get(node.target)
            if function is not None:
                found[node.target] = function
    return found


def _first_lines(error: Exception, limit: int = 3) -> str:
    """The start of an error message; PyTorch's can be pages long."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:limit])
