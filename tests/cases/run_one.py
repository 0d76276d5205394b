"""One case through the public flow: export, load, run, compare, at every level asked for."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.guards import guard_of

#: Statuses of a row that count as right.
RIGHT = ("right", "guarded")


def registry(folder: Path, module: str) -> list[dict[str, Any]]:
    """The cases of one module; its folder goes in front of the path, for its ``caselib``."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return list(importlib.import_module(module).R)


def find_case(folder: Path, module: str, name: str) -> dict[str, Any]:
    """A case by its id."""
    return next(case for case in registry(folder, module) if case["id"] == name)


def run_case(case: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
    """The row's ``status``, ``message`` and the levels it was run at.

    ``right``: the expected outputs at every level. ``guarded``: TVM itself has the fault, and our
    framework was shown not to. ``refused``: a typed error. ``wrong``: other outputs. ``error``:
    anything else, a traceback for a user.
    """
    if case["kind"] == "script":
        return run_script(case)
    if case["kind"] == "relax":
        return run_relax(case, levels)
    return _judged({"onnx": _onnx_runs, "torch": _torch_runs}[case["kind"]], case, levels)


def _judged(runs: Any, case: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
    from uif_tvm.errors import UifError

    try:
        for level in levels:
            for label, outputs, expected in runs(case, level):
                fault = difference(outputs, expected, case["tol"])
                if fault:
                    return {"status": "wrong", "message": f"level {level}{label}: {fault}"}
    except UifError as error:
        return {"status": "refused", "message": str(error)}
    except Exception as error:
        return {"status": "error", "message": f"{type(error).__name__}: {error}"}
    return {"status": "right", "message": ""}


def difference(
    outputs: Sequence[Any], expected: Sequence[Any], tol: tuple[float, float]
) -> str | None:
    """What is wrong with ``outputs``; NaN equals NaN, dtypes and shapes must be equal."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return (
                f"output {number} is {ours.dtype}{list(ours.shape)}, "
                f"expected {theirs.dtype}{list(theirs.shape)}"
            )
        exact = theirs.dtype.kind in "iubSUO"
        same = (
            np.array_equal(ours, theirs)
            if exact
            else np.allclose(
                ours.astype(np.float64), theirs.astype(np.float64), *tol, equal_nan=True
            )
        )
        if not same:
            return f"output {number} is {_head(ours)}, expected {_head(theirs)}"
    return None


def _head(array: Any) -> str:
    return str(array.reshape(-1)[:8]).replace("\n", " ")


# --- through the public flow ----------------------------------------------------------------


def _deploy(model: Any, example: Any, level: int, inputs: Any, **options: Any) -> list[Any]:
    import uif

    with tempfile.TemporaryDirectory(prefix="uif-case-") as folder:
        path = f"{folder}/model.uif"
        uif.export(model, example, output_path=path, optimize_level=level, **options)
        engine = uif.load(path)
        if isinstance(inputs, Mapping):
            return list(engine.run(dict(inputs))) if inputs else list(engine.run())
        return list(engine.run(*inputs))


def _onnx_runs(case: Mapping[str, Any], level: int) -> Any:
    model, inputs, expected = case["build"]()
    yield "", _deploy(model, inputs, level, inputs), expected
    ranges = symbolic_dims(model)
    if ranges:
        yield " dynamic", _deploy(model, inputs, level, inputs, dynamic_shapes=ranges), expected


def symbolic_dims(model: Any) -> dict[str, dict[int, str]]:
    """Input name -> axis -> name, for the dimensions that an ONNX model leaves open by name."""
    weights = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, dict[int, str]] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        named = {axis: dim.dim_param for axis, dim in enumerate(dims) if dim.dim_param}
        if named and value.name not in weights:
            found[value.name] = named
    return found


def _torch_runs(case: Mapping[str, Any], level: int) -> Any:
    import torch

    module, args, expected = case["build"]()
    if "dynamic_shapes" in case:
        example = case["export_args"]() if "export_args" in case else args
        program = torch.export.export(module, example, dynamic_shapes=case["dynamic_shapes"]())
        yield " dynamic", _deploy(program, None, level, _leaves(args)), expected
    else:
        yield "", _deploy(module, args, level, _leaves(args)), expected


def _leaves(args: Any) -> list[Any]:
    """The tensors among a module's arguments, which are what a compiled model takes."""
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(args) if hasattr(leaf, "shape")]


# --- modules of Relax, and probes of TVM ------------------------------------------------------


def _relax_runs(case: Mapping[str, Any], level: int) -> Any:
    from tests.cases.relax_module import run_module

    module, inputs, expected = case["build"]()
    values = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
    yield "", run_module(module, values, level), expected


def run_relax(case: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
    """A module of Relax through our pipeline.

    Some cases have the fault in a pass of TVM's that they run themselves. Where the result is
    wrong, those passes that our pipeline does without are left out: the module as it was before
    them must then come out right.
    """
    from tests.cases.relax_module import without_passes

    row = _judged(_relax_runs, case, levels)
    if row["status"] == "right":
        return row
    with without_passes() as left_out:
        again = _judged(_relax_runs, case, levels)
    if again["status"] != "right" or not left_out:
        return row
    names = ", ".join(sorted(left_out))
    return {
        "status": "guarded",
        "message": row["message"],
        "guard": f"our pipeline does not run TVM's {names}; without it the result is right",
    }


def run_script(case: Mapping[str, Any]) -> dict[str, Any]:
    """A probe of TVM: right by itself, or a fault of TVM's that a guard of ours answers."""
    try:
        reason = str(case["run"]() or "")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return guarded(case, reason) if reason else {"status": "right", "message": ""}


def guarded(case: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """What our framework has to say to a probe that failed for ``reason``."""
    guard = guard_of(case)
    if guard is None:
        return {"status": "wrong", "message": f"no guard of ours answers: {reason}"}
    return guard.answer(reason)
