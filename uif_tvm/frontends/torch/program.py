"""From what the user holds to one functional, decomposed ``ExportedProgram``."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch._dynamo.exc import UserError
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from uif_tvm.errors import ImportModelError, TrainModeWarning, UsageError
from uif_tvm.frontends.torch.archive import load_archive
from uif_tvm.frontends.torch.decompose import decompose, first_lines
from uif_tvm.frontends.torch.dynamic import AxisNames, DynamicShapes, refuse_for_program
from uif_tvm.frontends.torch.inputs import as_arguments, check_dtypes, check_example, mixed_dtypes
from uif_tvm.frontends.torch.quiet import quietly
from uif_tvm.frontends.torch.specialise import export_for_values

_PACKAGE = __name__.split(".")[0]
#: How PyTorch's kernels complain of tensors of different dtypes.
_DTYPE_TROUBLE = re.compile(r"dtype|[Tt]ype \(")


def export_program(
    model: Any, dummy_input: Any, dynamic_shapes: Any = None
) -> tuple[ExportedProgram, AxisNames]:
    """A program of operators that have converters, as far as decomposition can bring it there.

    Returns:
        The program, and the names that ``dynamic_shapes`` gives to axes of its inputs.

    Raises:
        UsageError: no example input for a module, or a model of an unknown kind.
        ImportModelError: PyTorch cannot export or decompose the model, or the example input
            does not fit it.
    """
    names: AxisNames = []
    if dynamic_shapes is not None and not isinstance(model, torch.nn.Module):
        raise refuse_for_program()
    if isinstance(model, ExportedProgram):
        program = _fitting(model, dummy_input)
    elif isinstance(model, (str, os.PathLike)):
        program = _fitting(load_archive(model), dummy_input)
    elif isinstance(model, torch.nn.Module):
        program, names = _export_module(model, dummy_input, dynamic_shapes)
    else:
        raise UsageError(
            f"cannot import a {type(model).__name__}",
            hint="pass a torch.nn.Module, an ExportedProgram or the path of a .pt2 file",
        )
    check_dtypes(program)
    return decompose(program), names


def _fitting(program: ExportedProgram, dummy_input: Any) -> ExportedProgram:
    if dummy_input is not None:
        check_example(program, dummy_input)
    return program


def _export_module(
    module: torch.nn.Module, dummy_input: Any, dynamic_shapes: Any
) -> tuple[ExportedProgram, AxisNames]:
    if dummy_input is None:
        raise UsageError(
            "a torch.nn.Module needs dummy_input to be exported",
            hint="pass example inputs: a tensor, a tuple of tensors, or a dict of them",
        )
    args, kwargs = as_arguments(module, dummy_input)
    shapes, names = None, []
    if dynamic_shapes is not None:
        dynamic = DynamicShapes(module, args, kwargs, dynamic_shapes)
        shapes, names = dynamic.for_torch, dynamic.names
    _warn_of_training(module)
    with _evaluation_mode(module), quietly(), torch.no_grad():
        try:
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes), names
        except Exception as error:
            if _depends_on_data(error) and shapes is None:
                with suppress(Exception):  # what stopped the first attempt tells the user more
                    return export_for_values(module, args, kwargs), names
            raise _export_error(module, args, kwargs, error) from error


def _export_error(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> ImportModelError:
    """What to tell the user when exporting failed."""
    if isinstance(error, (RuntimeError, TypeError)) and _DTYPE_TROUBLE.search(str(error)):
        mixed = mixed_dtypes(module, args, kwargs)
        if mixed is not None:
            return mixed
    if isinstance(error, UserError) and "onstraints violated" in str(error):
        return ImportModelError(
            f"{type(module).__name__} cannot keep these axes open: {first_lines(error, 12)}",
            code="UIF-IMPORT-DYNAMIC",
            hint="fix the axes that PyTorch names, widen or narrow their ranges as it suggests, "
            "and use an example with at least 2 elements along open axes",
        )
    if _depends_on_data(error):
        hint = (
            "Python control flow on the data must be rewritten with torch operators; "
            "see the torch.export documentation"
        )
    else:
        call = "model(**dummy_input)" if kwargs else "model(*dummy_input)"
        if not kwargs and len(args) == 1:
            call = "model(dummy_input)"
        hint = (
            f"call {call} first: it must run in PyTorch; if it does, the cause is a limit "
            "of torch.export, see its documentation"
        )
    return ImportModelError(
        f"torch.export cannot export {type(module).__name__}: {first_lines(error)}",
        code="UIF-IMPORT-TORCH-EXPORT",
        hint=hint,
    )


def _depends_on_data(error: BaseException | None) -> bool:
    """Whether PyTorch needed a value that only real inputs have, here or in a cause."""
    kinds = (
        GuardOnDataDependentSymNode,
        DataDependentOutputException,
        DynamicOutputShapeException,
    )
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def _warn_of_training(module: torch.nn.Module) -> None:
    """Tell of parts that are in training mode and would compute something else in it."""
    parts = [
        name or type(part).__name__
        for name, part in module.named_modules()
        if part.training and _reads_training(type(part))
    ]
    if parts:
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        warnings.warn(
            f"{type(module).__name__} is in training mode ({', '.join(parts[:3])}{more}); "
            "dropout and batch norm are exported as in eval mode: call model.eval() first to "
            "confirm that",
            TrainModeWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The ``stacklevel``, for the function that calls this, of the first frame outside uif."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


def _reads_training(kind: type[torch.nn.Module]) -> bool:
    """Whether a method of the class mentions its ``training`` flag."""
    classes = [cls for cls in kind.__mro__ if cls not in (torch.nn.Module, object)]
    return any(
        "training" in inspect.unwrap(method).__code__.co_names
        for cls in classes
        for name, method in vars(cls).items()
        if name not in ("train", "eval", "__init__")
        and inspect.isfunction(method)
        and inspect.isfunction(inspect.unwrap(method))
    )


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
