"""``reduce``: the smallest model that still shows a fault."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from uif_tvm.errors import UsageError
from uif_tvm.selection.isolation import Pool, check_imports
from uif_tvm.selection.reduction.checks import Answer, make_check
from uif_tvm.selection.reduction.search import OutOfTime, Progress, ReduceResult, Search

#: Seconds for one check.
TIME_LIMIT = 60.0


def reduce(
    model: Any,
    check: str | Callable[[str, str], bool] = "uif-fails",
    output_path: str | os.PathLike[str] = "reduced.onnx",
    *,
    inputs: Mapping[str, Any] | None = None,
    target: str = "cpu",
    optimize_level: int = 2,
    time_limit: float = TIME_LIMIT,
    budget: float | None = None,
    imports: Sequence[str] = (),
    progress: Progress | None = None,
) -> ReduceResult:
    """Shrink ``model`` to the smallest one for which ``check`` still says that the fault is there.

    Delta debugging over outputs, nodes, details and dimensions. What is cut off is replaced by the
    values it had, as inputs or constants, so every candidate is a model that runs. The file at
    ``output_path`` is always the smallest so far; inputs' values are beside it.

    Args:
        model: path of an ``.onnx`` file, or an ``onnx.ModelProto``.
        check: a key of ``BUILT_IN``; a command with ``{model}`` and ``{inputs}`` in it, whose exit
            code 0 says that the fault is there; or a function of both paths that returns True
            then. It must answer the same when asked again.
        inputs: input name -> array; needed where shapes are open.
        target, optimize_level: for the built-in checks.
        time_limit: seconds for one check.
        budget: seconds for everything; the smallest model so far is the result then.
        imports: modules that register operators, for the built-in checks.
        progress: called with (phase, nodes left, nodes of the whole).

    Raises:
        UsageError: no such check, a model that is not ONNX, or one that does not show the fault.
        ImportModelError: the model cannot be read or evaluated.
        ArtifactIOError: ``output_path`` cannot be written.
    """
    from uif_tvm.target.registry import get_target

    start = time.monotonic()
    get_target(target)
    check_imports(imports)
    path = Path(output_path)
    _check_arguments(model, path, time_limit, budget)
    with tempfile.TemporaryDirectory(prefix="uif-reduce-") as scratch, Pool(1, imports) as pool:
        ask = (
            _FunctionCheck(check)
            if callable(check)
            else make_check(check, pool, target, optimize_level, time_limit)
        )
        deadline = None if budget is None else start + budget
        state = Search(pool, Path(scratch), path, ask, time_limit, deadline, progress)
        state.open(model, inputs)
        try:
            state.run()
        except OutOfTime:
            state.result.complete = False
    state.result.seconds = time.monotonic() - start
    return state.result


class _FunctionCheck:
    """A Python function as a check."""

    def __init__(self, function: Callable[[str, str], bool]) -> None:
        self._function = function

    def __call__(self, folder: Path) -> Answer:
        return Answer(bool(self._function(str(folder / "model.onnx"), str(folder / "inputs.npz"))))


def _check_arguments(model: Any, output: Path, limit: float, budget: float | None) -> None:
    """Everything cheap, before anything slow."""
    from uif_tvm.frontends.detect import model_kind

    if model_kind(model) != "onnx":
        raise UsageError(
            "reduce takes ONNX models",
            code="UIF-USAGE-MODEL",
            hint="export it with torch.onnx.export and reduce that; or run uif coverage on the "
            ".pt2 file, which saves every operator that fails as a program of its own",
        )
    own = isinstance(model, str | os.PathLike) and os.path.exists(model) and output.exists()
    if own and os.path.samefile(model, output):
        raise UsageError(f"{output} is the model that is being reduced", code="UIF-USAGE-OUTPUT")
    for name, value in (("time_limit", limit), ("budget", budget)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be positive seconds, got {value!r}")
