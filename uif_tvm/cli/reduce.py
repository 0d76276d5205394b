"""``uif reduce``: the smallest model that still shows a fault."""

from __future__ import annotations

from pathlib import Path

import click

from uif_tvm.cli.export import dummy_input
from uif_tvm.cli.output import (
    PhaseProgress,
    counted,
    emit_json,
    import_option,
    json_option,
    print_table,
)
from uif_tvm.cli.tensors import input_option, shape_option


@click.command("reduce")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--check",
    default="uif-fails",
    show_default=True,
    metavar="CHECK",
    help='A command such as "python check.py {model} {inputs}", or a built-in check.',
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("reduced.onnx"),
    show_default=True,
    help="The smallest model; its inputs go beside it.",
)
@shape_option
@input_option
@click.option("--target", default="cpu", show_default=True, help="For built-in checks.")
@click.option(
    "-O",
    "--optimize-level",
    "level",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="For built-in checks.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For one check; a command that takes longer counts as: the fault is not there.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="For everything; the smallest model so far is kept.",
)
@import_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    check: str,
    output: Path,
    shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    target: str,
    level: int,
    time_limit: float,
    budget: float | None,
    imports: tuple[str, ...],
    as_json: bool,
) -> None:
    """Shrink a failing ONNX model to the smallest one that still fails.

    A check that is a command is run again and again with {model} and {inputs} replaced by paths of
    an .onnx and an .npz file. It must exit with code 0 as long as the fault is still there, and
    with any other code when it is not.

    \b
    Built-in checks:
      uif-fails      it fails as the whole model does (the default)
      uif-wrong      it runs, with other results than ONNX Runtime's
      export-fails   it cannot be exported; export-fails:CODE for one error code
      run-fails      it cannot be loaded or run; run-fails:CODE likewise
      uif-crashes    the process dies, or hangs
    """
    from uif_tvm.selection.reduction import reduce

    feeds = dummy_input(model, shapes, inputs) if model.suffix.lower() == ".onnx" else None
    quiet = bool((ctx.obj or {}).get("quiet"))
    with PhaseProgress(f"reduce {model.name}", quiet=quiet) as progress:
        result = reduce(
            str(model),
            check,
            str(output),
            inputs=feeds,
            target=target,
            optimize_level=level,
            time_limit=time_limit,
            budget=budget,
            imports=imports,
            progress=progress,
        )
    if as_json:
        emit_json("reduce", result.to_json())
        return
    print_table(
        "",
        ("phase", "nodes left>", "checks>", "seconds>"),
        [(s.name, s.nodes, s.checks, f"{s.seconds:.1f}") for s in result.steps],
    )
    early = "" if result.complete else "; stopped early, more may be possible"
    click.echo(
        f"{counted(result.nodes_before, 'node')} reduced to {result.nodes} "
        f"({', '.join(result.operators)}) in {result.checks} checks, {result.seconds:.0f} s{early}"
    )
    click.echo(f"  {result.detail}")
    click.echo(f"wrote {result.path} and the values of its inputs, {result.inputs}")
