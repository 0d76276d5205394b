"""Choosing the frontend by what the model is, without importing what it is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from uif_tvm.frontends.imported import ImportedModel

ACCEPTED = "a torch.nn.Module, an ExportedProgram, a .pt2 path, an onnx.ModelProto or an .onnx path"


def model_kind(model: Any) -> str:
    """``"onnx"`` or ``"torch"``.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(model, str | os.PathLike):
        suffix = Path(model).suffix.lower()
        kinds = {".onnx": "onnx", ".pt2": "torch"}
        if suffix not in kinds:
            raise UsageError(
                f"cannot tell what {os.fspath(model)!r} is: its suffix is {suffix or 'missing'!r}",
                code="UIF-USAGE-MODEL",
                hint=f"pass {ACCEPTED}",
            )
        return kinds[suffix]
    # By class name along the inheritance, so that neither package is imported for the other.
    for cls in type(model).__mro__:
        package, name = cls.__module__.partition(".")[0], cls.__qualname__
        if package == "onnx" and name == "ModelProto":
            return "onnx"
        if package == "torch" and name in ("Module", "ExportedProgram"):
            return "torch"
    raise UsageError(
        f"cannot export a {type(model).__module__}.{type(model).__qualname__}",
        code="UIF-USAGE-MODEL",
        hint=f"pass {ACCEPTED}",
    )


def import_model(
    model: Any, dummy_input: Any, host_fallback: bool = False, dynamic_shapes: Any = None
) -> ImportedModel:
    """Bring ``model`` into Relax through the frontend that fits.

    Args:
        host_fallback: let operators without converter run on the host.
        dynamic_shapes: which axes stay open, see :mod:`uif_tvm.frontends.dynamic`.

    Raises:
        UsageError, ImportModelError, UnsupportedError: from the frontend.
        EnvironmentFault: the framework's package is not installed.
    """
    kind = model_kind(model)
    try:
        if kind == "onnx":
            from uif_tvm.frontends.onnx import import_onnx

            return import_onnx(
                model, dummy_input, host_fallback=host_fallback, dynamic_shapes=dynamic_shapes
            )
        from uif_tvm.frontends.torch import import_torch

        return import_torch(
            model, dummy_input, host_fallback=host_fallback, dynamic_shapes=dynamic_shapes
        )
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "torch"):
            raise
        raise EnvironmentFault(
            f"importing {kind} models needs the package {error.name}, which is not installed",
            stage="import",
            code="UIF-ENV-FRONTEND",
            hint=f"pip install 'uif[{kind}]'",
        ) from error


def model_name(model: Any) -> str:
    """A name for reports: the file's stem, the graph's name, or the class."""
    if isinstance(model, str | os.PathLike):
        return Path(model).stem
    graph = getattr(model, "graph", None)
    name = getattr(graph, "name", None)
    return name if isinstance(name, str) and name else type(model).__name__
