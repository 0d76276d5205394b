"""``uif export``: from a model file to a ``.uif`` file."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from uif_tvm.cli.open_axes import dynamic_option, example_shapes, read_dynamic
from uif_tvm.cli.output import (
    PhaseProgress,
    counted,
    emit_json,
    import_option,
    json_option,
    plain_warnings,
    size_text,
)
from uif_tvm.cli.tensors import (
    complete_shapes,
    input_option,
    read_inputs,
    read_shapes,
    shape_option,
    synthesise,
)
from uif_tvm.cli.values import examples_of
from uif_tvm.errors import UsageError
from uif_tvm.signature import tensors


@click.command("export")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("model.uif"),
    show_default=True,
    help="Where to write the compiled model.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("cpu",),
    show_default=True,
    help="What to compile for; repeat it for one file that serves several.",
)
@click.option(
    "-O",
    "--optimize-level",
    "level",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="0 nothing, 1 folding, 2 fusion, 3 layouts.",
)
@shape_option
@dynamic_option
@input_option
@click.option(
    "--fallback-mode",
    type=click.Choice(["error", "compose", "host"]),
    default="host",
    show_default=True,
    help="What to do with ops the target lacks.",
)
@click.option(
    "--fallback-budget",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Refuse when more of the estimated time than this falls back to the host.",
)
@click.option("--verify", is_flag=True, help="Compare results with level 0 while exporting.")
@click.option(
    "--save-temps",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the IR between passes into DIR.",
)
@click.option(
    "--disable-pass",
    "disable_passes",
    multiple=True,
    metavar="PASS",
    help="Leave a pass out; repeatable.",
)
@click.option(
    "--disable-fusion",
    multiple=True,
    metavar="PATTERN",
    help="Keep apart what this pattern (* and ?) names: an operator such as softmax or "
    "relax.nn.conv2d, a kernel, or a value of the model; repeatable.",
)
@import_option
@click.option("--no-cache", is_flag=True, help="Compile every kernel anew.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    output: Path,
    targets: tuple[str, ...],
    level: int,
    shapes: tuple[str, ...],
    dynamic: tuple[str, ...],
    inputs: tuple[str, ...],
    fallback_mode: str,
    fallback_budget: float | None,
    verify: bool,
    save_temps: Path | None,
    disable_passes: tuple[str, ...],
    disable_fusion: tuple[str, ...],
    imports: tuple[str, ...],
    no_cache: bool,
    as_json: bool,
) -> None:
    """Compile a model into a .uif file.

    MODEL is an .onnx file or a .pt2 file (torch.export.save). Inputs whose shape an ONNX model
    leaves open need --input-shape, --input with a real array, or --dynamic-shape to stay open.
    """
    _import(imports)
    open_axes = read_dynamic(dynamic)
    dummy = dummy_input(model, shapes, inputs, open_axes)
    options: dict[str, Any] = {"cache_dir": None} if no_cache else {}
    from uif_tvm import api

    start = time.perf_counter()
    with plain_warnings(), PhaseProgress(f"export {model.name}", quiet=_quiet(ctx)) as progress:
        result = api.export(
            str(model),
            dummy,
            output_path=str(output),
            optimize_level=level,
            target_device=targets[0] if len(targets) == 1 else list(targets),
            dynamic_shapes=open_axes,
            fallback_mode=fallback_mode,
            fallback_budget=fallback_budget,
            verify=verify,
            save_temps=None if save_temps is None else str(save_temps),
            disable_passes=disable_passes,
            disable_fusion=disable_fusion,
            progress=progress,
            **options,
        )
    seconds = time.perf_counter() - start
    if as_json:
        emit_json(
            "export",
            {
                "output": str(output),
                "bytes": output.stat().st_size,
                "seconds": round(seconds, 3),
                "targets": list(targets),
                "reports": dict(result.reports),
            },
        )
        return
    size = size_text(output.stat().st_size)
    click.echo(f"wrote {output} ({size}) in {seconds:.1f} s for {', '.join(targets)}")
    for name, report in result.reports.items():
        for line in summary_lines(name, report):
            click.echo(f"  {line}")


def dummy_input(
    model: Path,
    shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    dynamic: str | dict[str, list[Any]] | None = None,
) -> dict[str, Any] | None:
    """Arrays for every input of an ONNX model, made up where none is given; ``None`` for .pt2.

    Args:
        dynamic: the axes that stay open, as ``export`` takes them.

    Raises:
        UsageError: neither ``.onnx`` nor ``.pt2``; open dimensions; options that do not apply.
    """
    suffix = model.suffix.lower()
    if suffix == ".pt2":
        if shapes or inputs or dynamic:
            raise UsageError(
                "a .pt2 file fixes its own inputs; --input-shape, --dynamic-shape and --input do "
                "not apply",
                hint="set the shapes when calling torch.export.export",
            )
        return None
    if suffix != ".onnx":
        raise UsageError(
            f"{model} is neither .onnx nor .pt2",
            code="UIF-USAGE-MODEL",
            hint="save a torch.nn.Module with torch.export.save(torch.export.export(m, args), "
            "'model.pt2'), or call uif_tvm.export(module, args) from Python",
        )
    from uif_tvm.cli.onnx_file import summarise

    declared = list(tensors(summarise(model).signature.inputs))
    given = read_inputs(inputs)
    structured, rest = examples_of(declared, given)
    specs = [spec for spec in declared if spec.name not in structured]
    concrete = complete_shapes(specs, example_shapes(specs, dynamic) | read_shapes(shapes), rest)
    made = synthesise(specs, concrete) | rest | structured
    return {spec.name: made[spec.name] for spec in declared}


def _import(modules: Sequence[str]) -> None:
    """Import what registers operators, from the current folder too.

    Raises:
        UsageError: a module cannot be imported.
    """
    for name in modules:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            importlib.import_module(name)
        except Exception as error:
            raise UsageError(
                f"--import {name}: {type(error).__name__}: {error}",
                code="UIF-USAGE-IMPORT",
                hint="name a module that Python can import, as `python -c 'import NAME'` would",
            ) from error


def summary_lines(target: str, report: Mapping[str, Any]) -> list[str]:
    """One target's compile report in a few lines: kernels by kind, fallbacks, notes."""
    kinds = Counter(kernel["kind"] for kernel in report["kernels"])
    cached = sum(bool(kernel["cached"]) for kernel in report["kernels"])
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "no code"
    kernels = counted(len(report["kernels"]), "kernel")
    lines = [f"{target}: {kernels} ({counts}; {cached} from the cache)"]
    for row in report["placement"]:
        if row["where"] != "native":
            lines.append(f"  {row['op']} x{row['count']} runs as {row['where']}: {row['reason']}")
    lines.extend(f"  note: {note}" for note in report["notes"])
    return lines


def _quiet(ctx: click.Context) -> bool:
    return bool((ctx.obj or {}).get("quiet"))
