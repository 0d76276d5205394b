"""``uif run``: a compiled model on arrays from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from uif_tvm.cli.output import (
    PhaseProgress,
    emit_json,
    json_option,
    print_table,
    threads_option,
)
from uif_tvm.cli.tensors import input_option, listed, read_inputs, write_outputs
from uif_tvm.cli.values import assembled
from uif_tvm.errors import UsageError
from uif_tvm.signature import named_leaves, tensors


@click.command("run")
@click.argument("artifact", type=click.Path(path_type=Path))
@input_option
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each output to DIR/NAME.npy, and DIR/outputs.json.",
)
@click.option("--target", help="Which target of the file to run; default: the first that fits.")
@threads_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    artifact: Path,
    inputs: tuple[str, ...],
    output_dir: Path | None,
    target: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run a .uif file on inputs from .npy or .npz files.

    Every input must be given; nothing is made up. NAME=@file.npz takes the entry NAME of the
    archive, or its only one. The items of a sequence x are called x[0], x[1] ...
    """
    arrays = read_inputs(inputs)
    from uif_tvm import api

    with PhaseProgress(f"run {artifact.name}", quiet=bool((ctx.obj or {}).get("quiet"))):
        engine = api.load(str(artifact), target=target, threads=threads)
        _check_names(engine, arrays)
        results = engine.run(assembled(engine.inputs, arrays))
    outputs = dict(named_leaves(engine.outputs, results))
    files = {}
    if output_dir is not None:
        files = write_outputs(output_dir, list(outputs), list(outputs.values()))
    rows = [_row(name, array, files.get(name)) for name, array in outputs.items()]
    if as_json:
        emit_json(
            "run",
            {
                "artifact": str(artifact),
                "output_dir": None if output_dir is None else str(output_dir),
                "outputs": rows,
                "stats": engine.get_stats(),
            },
        )
        return
    print_table(
        "",
        ("output", "dtype", "shape", "min>", "mean>", "max>", "file"),
        [
            (
                r["name"],
                r["dtype"],
                "x".join(map(str, r["shape"])) or "scalar",
                *(_number(r[key]) for key in ("min", "mean", "max")),
                r["file"] or "-",
            )
            for r in rows
        ],
    )


def _check_names(engine: Any, arrays: dict[str, Any]) -> None:
    """Missing and unknown inputs, all in one message, in terms of the command line."""
    specs = list(tensors(engine.inputs))
    missing = [spec for spec in specs if spec.name not in arrays]
    unknown = [name for name in arrays if name not in {spec.name for spec in specs}]
    if not missing and not unknown:
        return
    parts = []
    if missing:
        parts.append(f"no array is given for {listed(missing)}")
    if unknown:
        parts.append(f"there is no input {', '.join(map(repr, unknown))}")
    raise UsageError(
        "; ".join(parts) + f". The model's inputs are {listed(specs)}",
        code="UIF-USAGE-INPUT",
        hint=" ".join(f"--input '{spec.name}=@FILE.npy'" for spec in missing or specs),
    )


def _row(name: str, array: Any, file: str | None) -> dict[str, Any]:
    import numpy as np

    body: dict[str, Any] = {
        "name": name,
        "dtype": "string" if array.dtype.kind in "OU" else str(array.dtype),
        "shape": list(array.shape),
        "file": file,
        "min": None,
        "mean": None,
        "max": None,
    }
    if array.size and array.dtype.kind not in "cOU":
        wide = np.asarray(array, np.float64)
        body |= {"min": wide.min().item(), "mean": wide.mean().item(), "max": wide.max().item()}
    return body


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
