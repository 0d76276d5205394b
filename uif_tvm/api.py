"""The one public flow: ``export`` a model, ``load`` the file, ``run`` it."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uif_tvm import __version__
from uif_tvm.errors import ArtifactError, EnvironmentFault, HostFallbackWarning, UsageError

if TYPE_CHECKING:
    from uif_tvm.artifact import TargetPayload
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.frontends.imported import ImportedModel
    from uif_tvm.runtime.engine import Engine

Progress = Callable[[str, int, int], None]

#: One build at a time: TVM's builders and pass contexts are shared by all threads.
_building = threading.RLock()

#: ``cache_dir`` left alone: the user's cache folder.
DEFAULT_CACHE = "default"

#: Files of these kinds are what people compile from; no export replaces one.
_SOURCES = frozenset({".onnx", ".pt2", ".data", ".npy", ".npz"})
#: How a zip file, and so a ``.uif`` file, begins.
_ZIP = b"PK\x03\x04"
#: More threads than this are refused, unless the machine has a quarter as many cores.
_MANY_THREADS = 64


@dataclass(frozen=True)
class ExportResult:
    """What an export made.

    Args:
        path: the ``.uif`` file.
        reports: target id -> compile report, as stored in the file.
    """

    path: Path
    reports: Mapping[str, dict[str, Any]]

    @property
    def report(self) -> dict[str, Any]:
        """The first target's report."""
        return next(iter(self.reports.values()))


def default_cache_dir() -> Path:
    """``$UIF_CACHE_DIR``, else ``uif/kernels`` in the user's cache folder."""
    chosen = os.environ.get("UIF_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "uif" / "kernels"


def export(
    model: Any,
    dummy_input: Any = None,
    output_path: str | os.PathLike[str] = "model.uif",
    optimize_level: int = 2,
    target_device: str | Sequence[str] = "cpu",
    fallback_mode: str = "host",
    *,
    fallback_budget: float | None = None,
    dynamic_shapes: Any = None,
    verify: bool = False,
    cache_dir: str | os.PathLike[str] | None = DEFAULT_CACHE,
    save_temps: str | os.PathLike[str] | None = None,
    disable_passes: str | Sequence[str] = (),
    disable_fusion: str | Sequence[str] = (),
    progress: Progress | None = None,
) -> ExportResult:
    """Compile ``model`` and write a ``.uif`` file.

    Args:
        model: a ``torch.nn.Module``, a ``torch.export.ExportedProgram``, a ``.pt2`` path, an
            ``onnx.ModelProto`` or an ``.onnx`` path.
        dummy_input: example input (array, sequence in order, or dict by name); its shapes are
            compiled in. May be ``None`` where the model declares static shapes.
        output_path: where the file goes; replaced in one step, or left as it was. The model,
            and other files that no export has written, are not replaced.
        optimize_level: 0 none, 1 folding, 2 fusion (default), 3 layouts and algorithms that may
            change rounding.
        target_device: target id, or several for one file.
        fallback_mode: what to do with operators that the target lacks: ``"error"`` refuses them,
            ``"compose"`` builds them from simpler operators where it can, ``"host"`` evaluates on
            the host what cannot be composed. Whatever no way can run is refused, all at once.
        fallback_budget: refuse the export when more than this percentage of the estimated time
            would be spent on the host.
        dynamic_shapes: axes of inputs that stay open, with names and ranges:
            ``{"x": {0: "batch", 2: ("seq", 1, 512)}}``; or ``"auto"`` for every axis that the
            model leaves open. The other axes are compiled in. See the README.
        verify: run the result against level 0 on ``dummy_input`` before the file is written.
        cache_dir: folder of the kernel cache, by default ``UIF_CACHE_DIR`` where that is set,
            else one in the user's cache folder; ``None`` for none.
        save_temps: folder that receives the IR after every pass, in one folder per target.
        disable_passes: names of passes to leave out; a plain string is one name.
        disable_fusion: patterns (``*`` and ``?``) of what must stay a kernel of its own: operators
            (``"softmax"``, ``"relax.nn.conv2d"``), kernels, or values of the model by name (the
            outputs of ONNX nodes); a plain string is one pattern.
        progress: called with (phase, steps done, steps in all).

    Returns:
        The file's path and the compile reports.

    Raises:
        UsageError, ImportModelError, UnsupportedError, TargetError, CompileError,
        ArtifactIOError, EnvironmentFault: see ``uif_tvm.errors``; nothing is written then.
    """
    from uif_tvm.artifact import write_artifact
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.compiler.request import check_request
    from uif_tvm.frontends.detect import import_model, model_kind, model_name
    from uif_tvm.target.registry import get_target

    # Everything cheap is checked before anything that takes minutes.
    model_kind(model)
    _check_destination(output_path, model)
    contexts = [
        CompileContext(
            target=get_target(target),
            level=optimize_level,
            report=ReportBuilder(),
            fallback_mode=fallback_mode,
            fallback_budget=fallback_budget,
            disabled_passes=frozenset(_entries(disable_passes, "disable_passes")),
            disabled_fusion=_entries(disable_fusion, "disable_fusion"),
            verify=verify,
            cache_dir=_cache_dir(cache_dir),
            save_temps=None if save_temps is None else Path(save_temps),
        )
        for target in _target_ids(target_device)
    ]
    for context in contexts:
        check_request(context)
    tell = progress or (lambda phase, done, total: None)
    tell("import", 0, 1)
    with _building:
        imported = import_model(
            model, dummy_input, fallback_mode == "host", dynamic_shapes=dynamic_shapes
        )
        tell("import", 1, 1)
        compiled = [_compile(imported, context, tell) for context in contexts]
        if verify:
            tell("verify", 0, 1)
            compiled = [
                _verified(imported, context, built, dummy_input)
                for context, built in zip(contexts, compiled, strict=True)
            ]
            tell("verify", 1, 1)
    tell("write", 0, 1)
    write_artifact(
        output_path, model=model_name(model), signature=imported.signature, targets=compiled
    )
    tell("write", 1, 1)
    _warn_of_host(contexts[0])
    return ExportResult(Path(output_path), {built.target: dict(built.report) for built in compiled})


def load(
    path: str | os.PathLike[str], target: str | None = None, threads: int | None = None
) -> Engine:
    """Open a ``.uif`` file and make it ready to run.

    Args:
        path: the file. Weights are mapped from it, so while an engine lives the file may be
            deleted, or replaced by another of its name, but not overwritten in place.
        target: id of the target whose code to use; by default the first that this machine fits.
        threads: worker threads per run, the calling thread included; by default
            ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` where set, else all physical cores.

    Raises:
        UsageError: ``threads`` is no count, or far above this machine's cores; ``path`` is a
            model that was not exported.
        ArtifactError, ArtifactIOError: damaged, hostile, newer or missing file.
        EnvironmentFault: this machine lacks what the code needs.
    """
    _check_threads(threads)
    from uif_tvm.artifact import open_artifact
    from uif_tvm.runtime.engine import Engine

    try:
        artifact = open_artifact(path)
    except ArtifactError as error:
        suffix = Path(path).suffix.lower()
        if suffix not in (".onnx", ".pt2"):
            raise
        kind = "an ONNX model" if suffix == ".onnx" else "a PyTorch program"
        raise UsageError(
            f"{os.fspath(path)!r} is no .uif file; this is {kind}: run uif export first",
            code="UIF-USAGE-MODEL",
            hint=f"uif export {os.fspath(path)} -o model.uif",
        ) from error
    return Engine(artifact, target, threads)


def _check_threads(threads: int | None) -> None:
    """Refuse counts that mean nothing, and those that would only keep the machine switching."""
    from uif_tvm.runtime.host import available_cores
    from uif_tvm.runtime.threads import default_threads

    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(
            f"threads must be a positive integer, got {threads!r}",
            code="UIF-USAGE-THREADS",
            hint="leave it out to use all physical cores",
        )
    most = max(_MANY_THREADS, 4 * available_cores())
    asked = default_threads() if threads is None else threads
    if asked > most:
        source = "TVM_NUM_THREADS or OMP_NUM_THREADS" if threads is None else "threads"
        raise UsageError(
            f"{source} asks for {asked} threads; at most {most} are allowed on this machine's "
            f"{available_cores()} cores",
            code="UIF-USAGE-THREADS",
            hint="more threads than cores only slow a run down; leave it out to use all of them",
        )


def _warn_of_host(context: CompileContext) -> None:
    """Fallback is never silent."""
    found = [item for item in context.report.placements if item.where == "host"]
    if found:
        listed = ", ".join(f"{item.op} x{item.count} ({item.reason})" for item in found)
        warnings.warn(
            f"these operators run on the host, slowly: {listed}; "
            "fallback_mode='error' refuses them instead",
            HostFallbackWarning,
            stacklevel=3,
        )


def _compile(imported: ImportedModel, context: CompileContext, tell: Progress) -> TargetPayload:
    """One target's section of the file."""
    from uif_tvm.artifact import TargetPayload
    from uif_tvm.artifact.memory_plan import MEMORY_PLAN
    from uif_tvm.compiler.lower import compile_module
    from uif_tvm.compiler.placement import place
    from uif_tvm.runtime.strings import STRINGS, Strings

    imported = place(imported, context)
    compiled = compile_module(imported.mod, context, tell)
    names = [f"w{index}" for index in range(len(compiled.weights))]
    strings = Strings(imported.strings)
    extras = {STRINGS: strings.to_bytes()} if len(strings) > 1 else {}
    if compiled.plan is not None:
        extras[MEMORY_PLAN] = compiled.plan.to_bytes()
    return TargetPayload(
        target=context.target.id,
        requirement=context.target.requirement,
        library=compiled.library,
        report=context.report.finish(
            uif=__version__,
            tvm=metadata.version("apache-tvm"),
            target=context.target.id,
            optimize_level=context.level,
            fallback_mode=context.fallback_mode,
            source=imported.source,
            source_ops=dict(imported.op_histogram),
            removed_ops=dict(imported.removed),
            specialised_inputs=list(imported.specialised),
        ),
        entry="main",
        weights=dict(zip(names, compiled.weights, strict=True)),
        memory=compiled.memory,
        options={"optimize_level": context.level, "fallback_mode": context.fallback_mode},
        extras=extras,
    )


def _target_ids(target_device: str | Sequence[str]) -> list[str]:
    names = [target_device] if isinstance(target_device, str) else target_device
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        targets = list(names)
        if targets and len(set(targets)) == len(targets):
            return targets
    raise UsageError(
        f"target_device must name one or more different targets, got {target_device!r}",
        code="UIF-USAGE-TARGET",
        hint="list them with: uif targets list",
    )


def _entries(names: str | Sequence[str], option: str) -> tuple[str, ...]:
    """A list of names; a plain string is one name, not its letters."""
    listed = (names,) if isinstance(names, str) else names
    if isinstance(listed, Iterable):
        entries = tuple(listed)
        if all(isinstance(name, str) for name in entries):
            return entries
    raise UsageError(
        f"{option} must be a name or a list of names, got {names!r}",
        hint=f'for example {option}=["name"]',
    )


def _check_destination(path: str | os.PathLike[str], model: Any) -> None:
    """Fail as the final write would, long before it; never offer a source for replacement."""
    from uif_tvm.artifact.files import replacing

    class Enough(Exception):
        """Raised to leave the old file in place."""

    with suppress(Enough), replacing(path):
        raise Enough
    file = Path(path)
    if not file.is_file():
        return
    own = isinstance(model, str | os.PathLike) and os.path.exists(model)
    if own and os.path.samefile(file, model):
        fault = "is the model that is being exported"
    elif file.suffix.lower() in _SOURCES or not _replaceable(file):
        fault = "exists and is no .uif file; it may be a model or its weights"
    else:
        return
    raise UsageError(
        f"{os.fspath(path)!r} {fault}; it was left as it was",
        code="UIF-USAGE-OUTPUT",
        hint="choose another name for the output, such as model.uif",
    )


def _replaceable(file: Path) -> bool:
    """Whether an existing file is ours by name, empty, or ours by its first bytes.

    Weights of an ONNX model may lie in files of any name, so other names need a look inside.
    """
    if file.suffix.lower() == ".uif":
        return True
    try:
        with file.open("rb") as stream:
            return stream.read(len(_ZIP)) in (b"", _ZIP)
    except OSError:
        return False


def _cache_dir(choice: str | os.PathLike[str] | None) -> Path | None:
    """The cache folder; ``None`` also where the one nobody chose cannot be made.

    A folder that the caller or ``UIF_CACHE_DIR`` chose fails the export when it cannot be used.
    """
    if choice is None:
        return None
    if choice != DEFAULT_CACHE:
        return Path(choice)
    folder = default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not os.environ.get("UIF_CACHE_DIR"):
            return None
        raise EnvironmentFault(
            f"the kernel cache UIF_CACHE_DIR={folder} cannot be used: {error.strerror or error}",
            stage="compile",
            code="UIF-ENV-CACHE",
            hint="set UIF_CACHE_DIR to a folder that can be written, or unset it",
        ) from error
    return folder


def _verified(
    imported: ImportedModel, context: CompileContext, built: TargetPayload, dummy_input: Any
) -> TargetPayload:
    """``built`` with what verification found in its report."""
    from uif_tvm.compiler.verify import verify_levels

    arrays = _example(imported, dummy_input)
    note = verify_levels(
        imported,
        context,
        built,
        arrays,
        lambda model, plain: _compile(model, plain, lambda phase, done, total: None),
    )
    notes = [*built.report["notes"], note]
    return replace(built, report={**built.report, "notes": notes})


def _example(imported: ImportedModel, dummy_input: Any) -> list[Any] | None:
    """``dummy_input`` as the arrays that ``run`` takes; ``None`` where it does not tell them."""
    from uif_tvm.runtime.inputs import bind

    names = {spec.name for spec in imported.signature.inputs}
    if isinstance(dummy_input, Mapping) and set(dummy_input) == names:
        return bind(imported.signature, (), dummy_input)
    leaves = list(_leaves(dummy_input))
    return bind(imported.signature, leaves, {}) if len(leaves) == len(names) else None


def _leaves(value: Any) -> Iterator[Any]:
    """The arrays in a nest of containers, in order."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield value
