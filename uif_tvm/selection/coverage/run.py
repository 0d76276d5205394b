"""``coverage``: take models apart, try every distinct operator instance, and report."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import ImportModelError, UifError, UnsupportedError, UsageError
from uif_tvm.selection.arrays import Array, save_arrays
from uif_tvm.selection.coverage.instance import OpInstance
from uif_tvm.selection.coverage.report import CoverageReport, ModelCoverage, Result, Use
from uif_tvm.selection.coverage.reproduce import write_reproducer
from uif_tvm.selection.coverage.walk import NOT_TAKEN
from uif_tvm.selection.isolation import WORKER_THREADS, Outcome, Pool, check_imports

if TYPE_CHECKING:
    from uif_tvm.target.spec import TargetSpec

Progress = Callable[[str, int, int], None]

PEERS = ("onnxruntime", "openvino", "tvm")
#: Where reproducers go by default.
REPRODUCERS = "uif-coverage-failures"
#: Seconds that one instance may take on one engine.
TIME_LIMIT = 60.0
#: Times as long may taking a whole model apart take, which runs it once, node by node.
_CAPTURE_FACTOR = 10
#: Workers, where nobody says how many; each holds a compiler, some 400 MiB.
_MOST_JOBS = 4
#: What the workers are asked to do.
_CAPTURE = {
    ".onnx": "uif_tvm.selection.coverage.capture_onnx:capture",
    ".pt2": "uif_tvm.selection.coverage.capture_torch:capture",
}
VERIFY = "uif_tvm.selection.coverage.verify:verify"
_PEER = "uif_tvm.selection.coverage.peers:run_peer"


def coverage(
    models: Any,
    target: str = "cpu",
    *,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    against: Sequence[str] = (),
    optimize_level: int = 2,
    jobs: int | None = None,
    time_limit: float = TIME_LIMIT,
    reproducers: str | os.PathLike[str] | None = REPRODUCERS,
    imports: Sequence[str] = (),
    progress: Progress | None = None,
) -> CoverageReport:
    """Compile and run every distinct operator instance of ``models`` on ``target``.

    Args:
        models: path of an ``.onnx`` or ``.pt2`` file, an ``onnx.ModelProto``, an
            ``ExportedProgram``, or a list of these.
        target: target id.
        inputs: input name -> array, for every model that has such an input; or one such mapping
            (or ``None``) per model. Needed where shapes are open; real values make realistic
            operands.
        against: other engines that run the same instances: ``PEERS``.
        optimize_level: as in :func:`uif_tvm.export`.
        jobs: instances tried at once; by default one per core, four at most.
        time_limit: seconds for one instance, compiling included.
        reproducers: folder that receives a reproducer of each instance that is not supported or
            fails; made when there is one. ``None`` writes none.
        imports: modules that register operators (``uif.register_op``); instances are tried in
            processes of their own, which know only what is installed.
        progress: called with (phase, done, total).

    Raises:
        UsageError, ImportModelError: no such model, target or engine; inputs that do not fit. Of
            several models, one that cannot be read becomes a row.
    """
    start = time.monotonic()
    tell = progress or (lambda phase, done, total: None)
    given = list(models) if isinstance(models, (list, tuple)) else [models]
    check_imports(imports)
    spec = _check(given, target, against, optimize_level, jobs, time_limit)
    feeds = _feeds_per_model(inputs, len(given))
    report = CoverageReport(target, optimize_level, WORKER_THREADS, against=tuple(against))
    with (
        tempfile.TemporaryDirectory(prefix="uif-coverage-") as scratch,
        Pool(jobs or min(_MOST_JOBS, len(os.sched_getaffinity(0))), imports) as pool,
    ):
        run = _Run(pool, Path(scratch), report, spec, time_limit, tell)
        for index, (model, arrays) in enumerate(zip(given, feeds, strict=True)):
            tell("reading models", index, len(given))
            run.take_apart(model, arrays, index, alone=len(given) == 1)
        _tell_apart(report.models)
        run.try_all()
        run.against(against)
        if reproducers is not None:
            run.write_reproducers(Path(reproducers))
    report.seconds = time.monotonic() - start
    return report


class _Run:
    """State of one call."""

    def __init__(
        self,
        pool: Pool,
        scratch: Path,
        report: CoverageReport,
        spec: TargetSpec,
        limit: float,
        tell: Progress,
    ) -> None:
        self.pool = pool
        self.scratch = scratch
        self.instances = scratch / "instances"
        self.report = report
        self.spec = spec
        self.limit = limit
        self.tell = tell

    def take_apart(
        self, model: Any, arrays: Mapping[str, Array] | None, index: int, alone: bool
    ) -> None:
        """Add one model to the report."""
        path, name = _as_file(model, self.scratch, index)
        entry = ModelCoverage(name, str(path))
        self.report.models.append(entry)
        feeds = None
        if arrays:
            feeds = str(self.scratch / f"inputs{index}.npz")
            save_arrays(Path(feeds), arrays)
        outcome = self._capture(path, feeds)
        if outcome.how != "done":
            error = _captured_error(outcome, path)
            if alone:
                raise error
            entry.error = error.to_dict()
            return
        entry.histogram = outcome.value["histogram"]
        entry.functions = outcome.value["functions"]
        entry.inputs = outcome.value["inputs"]
        for data in outcome.value["instances"]:
            instance = OpInstance.from_json(data)
            digest = instance.digest
            entry.uses.append(Use(digest, instance.count, instance.calls, tuple(instance.nodes)))
            known = self.report.results.get(digest)
            if known is None:
                self.report.results[digest] = self._untried(instance)
            else:
                known.instance.count += instance.count
                known.instance.calls += instance.calls

    def _capture(self, path: Path, feeds: str | None) -> Outcome:
        task = _CAPTURE[path.suffix.lower()]
        common = {
            "model": str(path),
            "inputs": feeds,
            "folder": str(self.instances),
            "known": list(self.report.results),
        }
        seconds = self.limit * _CAPTURE_FACTOR
        outcome = self.pool.run(task, seconds, **common)
        if outcome.how in ("crash", "timeout") and path.suffix.lower() == ".onnx":
            # Native code died over one of the nodes; the reference is slower, but Python.
            outcome = self.pool.run(task, seconds, **common, runtime=False)
        return outcome

    def _untried(self, instance: OpInstance) -> Result:
        bound = 0.0
        if instance.flops or instance.bytes:
            bound = self.spec.roofline.seconds(instance.flops, instance.bytes, instance.dtype) * 1e3
        verdict = "not-taken" if instance.obstacle == NOT_TAKEN else "unreached"
        return Result(instance, verdict, reason=instance.obstacle, roofline_ms=bound)

    def _reached(self) -> list[Result]:
        return [result for result in self.report.results.values() if not result.instance.obstacle]

    def try_all(self) -> None:
        """Give every instance its verdict."""
        results = self._reached()
        tasks = [
            (
                VERIFY,
                self.limit,
                {
                    "folder": str(self.instances / result.instance.digest),
                    "target": self.report.target,
                    "level": self.report.level,
                    "op": result.instance.op,
                    "notes": result.instance.notes,
                },
            )
            for result in results
        ]
        self.tell("trying operators", 0, len(tasks))
        for done, (index, outcome) in enumerate(self.pool.run_all(tasks), 1):
            _settle(results[index], outcome)
            self.tell("trying operators", done, len(tasks))

    def against(self, peers: Sequence[str]) -> None:
        """Run the instances through other engines too."""
        results = [r for r in self._reached() if "settled" not in r.instance.notes]
        for peer in peers:
            tasks = [
                (
                    _PEER,
                    self.limit,
                    {
                        "peer": peer,
                        "folder": str(self.instances / result.instance.digest),
                        "op": result.instance.op,
                        "notes": result.instance.notes,
                        "flops": result.instance.flops,
                    },
                )
                for result in results
            ]
            for done, (index, outcome) in enumerate(self.pool.run_all(tasks), 1):
                row = outcome.value if outcome.how == "done" else {}
                default = "wrong" if outcome.how == "error" else outcome.how
                results[index].peers[peer] = {
                    "status": row.get("status", default),
                    "detail": row.get("detail", outcome.detail),
                    "ms": row.get("ms"),
                }
                self.tell(f"asking {peer}", done, len(tasks))

    def write_reproducers(self, folder: Path) -> None:
        """One folder per instance that is not supported or fails."""
        for result in self.report.having("unsupported", "failed"):
            source = self.instances / result.instance.digest
            written = write_reproducer(
                result, source, folder, self.report.target, self.report.level
            )
            result.reproducer = str(written)


def _tell_apart(models: Sequence[ModelCoverage]) -> None:
    """Give models of one name (``model.onnx`` in many folders) their folder's name, or a number."""
    often = Counter(model.name for model in models)
    for model in models:
        if often[model.name] > 1:
            model.name = f"{Path(model.path).resolve().parent.name}/{model.name}"
    often = Counter(model.name for model in models)
    for number, model in enumerate(models, 1):
        if often[model.name] > 1:
            model.name = f"{model.name}#{number}"


def _settle(result: Result, outcome: Outcome) -> None:
    if outcome.how == "done":
        for key, value in outcome.value.items():
            setattr(result, key, value)
        result.stage = outcome.value.get("stage", "")
    else:
        stage = outcome.how if outcome.how != "error" else "run"
        result.verdict, result.stage, result.reason = "failed", stage, outcome.detail
    if result.verdict == "folded" and "settled" not in result.instance.notes:
        result.verdict = "removed"


def _captured_error(outcome: Outcome, path: Path) -> UifError:
    """Why a model could not be taken apart, as the error it was in the worker."""
    data = outcome.value.get("error")
    if data:
        kind = {2: ImportModelError, 3: UnsupportedError}.get(outcome.value["exit_code"])
        shared = {key: data[key] for key in ("stage", "code", "op", "hint")}
        if kind is ImportModelError:
            return ImportModelError(data["message"], **shared)
        return UifError(data["message"], **shared)
    return ImportModelError(
        f"{path.name} cannot be taken apart: {outcome.detail}",
        code="UIF-COVERAGE-CAPTURE",
        hint="does the model run in its own framework with these inputs?",
    )


def _check(
    models: Sequence[Any],
    target: str,
    against: Sequence[str],
    level: int,
    jobs: int | None,
    limit: float,
) -> TargetSpec:
    """Everything cheap, before anything slow."""
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.frontends.detect import model_kind
    from uif_tvm.target.registry import get_target

    if not models:
        raise UsageError("coverage needs at least one model", code="UIF-USAGE-MODEL")
    for model in models:
        model_kind(model)
        if isinstance(model, str | os.PathLike) and not os.path.exists(model):
            raise ImportModelError(f"{os.fspath(model)} does not exist", code="UIF-IMPORT-FILE")
    for peer in against:
        if peer not in PEERS:
            raise UsageError(
                f"there is no engine {peer!r} to compare with; known: {', '.join(PEERS)}",
                code="UIF-USAGE-PEER",
            )
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be a positive integer, got {jobs!r}")
    if not limit > 0:
        raise UsageError(f"time_limit must be positive seconds, got {limit!r}")
    spec = get_target(target)
    CompileContext(target=spec, level=level, report=ReportBuilder())  # refuses odd levels
    return spec


def _feeds_per_model(inputs: Any, models: int) -> list[Mapping[str, Array] | None]:
    import numpy as np

    def arrays(mapping: Mapping[str, Any] | None) -> Mapping[str, Array] | None:
        return None if mapping is None else {k: np.asarray(v) for k, v in mapping.items()}

    if inputs is None or isinstance(inputs, Mapping):
        return [arrays(inputs)] * models
    if len(inputs) != models:
        raise UsageError(
            f"{len(inputs)} sets of inputs for {models} models",
            code="UIF-USAGE-INPUT",
            hint="give one mapping per model, None where its shapes are static",
        )
    return [arrays(mapping) for mapping in inputs]


def _as_file(model: Any, scratch: Path, index: int) -> tuple[Path, str]:
    """The model as a file, and its name."""
    from uif_tvm.frontends.detect import model_kind, model_name

    if isinstance(model, str | os.PathLike):
        return Path(model), Path(model).stem
    if model_kind(model) == "onnx":
        path = scratch / f"model{index}.onnx"
        path.write_bytes(model.SerializeToString())
        return path, model_name(model)
    if type(model).__name__ != "ExportedProgram":
        raise UsageError(
            f"coverage takes exported programs, not a {type(model).__name__}",
            code="UIF-USAGE-MODEL",
            hint="pass torch.export.export(model, example_inputs)",
        )
    import torch

    path = scratch / f"model{index}.pt2"
    torch.export.save(model, path)
    return path, f"program{index}"
