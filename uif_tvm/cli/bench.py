"""``uif bench``: latency percentiles of a compiled model on this machine."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import click

from uif_tvm.cli.output import (
    PhaseProgress,
    counted,
    emit_json,
    json_option,
    print_fields,
    threads_option,
)
from uif_tvm.cli.tensors import (
    complete_shapes,
    input_option,
    read_inputs,
    read_shapes,
    shape_option,
    synthesise,
)
from uif_tvm.cli.values import assembled
from uif_tvm.errors import UsageError
from uif_tvm.signature import tensors

DEFAULT_SECONDS = 3.0


@click.command("bench")
@click.argument("artifact", type=click.Path(path_type=Path))
@threads_option
@click.option("--runs", type=click.IntRange(min=1), help="Measure exactly so many runs.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    help=f"Measure for so long (default {DEFAULT_SECONDS:g}), at least 10 runs.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Runs beforehand that do not count.",
)
@click.option("--target", help="Which target of the file to run; default: the first that fits.")
@input_option
@shape_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    artifact: Path,
    threads: int | None,
    runs: int | None,
    seconds: float | None,
    warmup: int,
    target: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the latency of a .uif file.

    Inputs that are not given are made up: floats from N(0, 1), integers 0 or 1. Loading, the
    first run and the warm-up runs are reported apart and do not count.
    """
    if runs is not None and seconds is not None:
        raise UsageError("give either --runs or --seconds", code="UIF-USAGE-BENCH")
    given = read_inputs(inputs)
    concrete = read_shapes(shapes)
    from uif_tvm import api
    from uif_tvm.bench import measure

    with PhaseProgress(f"bench {artifact.name}", bool((ctx.obj or {}).get("quiet"))) as progress:
        start = time.perf_counter()
        importlib.import_module("uif_tvm.runtime.engine")  # TVM comes with it
        import_ms = (time.perf_counter() - start) * 1e3
        start = time.perf_counter()
        engine = api.load(str(artifact), target=target, threads=threads)
        load_ms = (time.perf_counter() - start) * 1e3
        specs = list(tensors(engine.inputs))
        made = synthesise(specs, complete_shapes(specs, concrete, given))
        feed = assembled(engine.inputs, {**made, **given})
        first_run_ms = measure.time_call(lambda: engine.run(feed))
        latency = measure.sample(
            lambda: engine.run(feed),
            runs=runs,
            seconds=None if runs is not None else seconds or DEFAULT_SECONDS,
            warmup=warmup,
            on_run=lambda count: progress("measured runs", count, runs or 0),
        )
    body: dict[str, Any] = {
        "artifact": str(artifact),
        "threads": engine.threads,
        "made_up_inputs": sorted(made),
        "import_ms": import_ms,
        "load_ms": load_ms,
        "first_run_ms": first_run_ms,
        "warmup_runs": warmup,
        "latency_ms": latency.to_json(),
        # The engine's own latencies include the warm-up runs: two truths in one document.
        "stats": {k: v for k, v in engine.get_stats().items() if not k.startswith("latency_")},
    }
    body["peak_memory_mb"] = body["stats"].get("peak_memory_mb")
    if as_json:
        emit_json("bench", body)
    else:
        _print(artifact, body)


def _print(artifact: Path, body: dict[str, Any]) -> None:
    ms = body["latency_ms"]
    peak = body["peak_memory_mb"]
    needed = "unknown: it depends on open dimensions" if peak is None else f"{peak:.1f} MiB"
    rows = {
        "median": f"{ms['p50']:.3f} ms",
        "p90 / p99": f"{ms['p90']:.3f} / {ms['p99']:.3f} ms",
        "min / max": f"{ms['min']:.3f} / {ms['max']:.3f} ms",
        "mean": f"{ms['mean']:.3f} ms (standard deviation {ms['std']:.3f})",
        "runs": f"{ms['runs']} after {counted(body['warmup_runs'], 'warm-up run')}",
        "load": f"{body['load_ms']:.1f} ms (and {body['import_ms']:.0f} ms to import TVM, once)",
        "first run": f"{body['first_run_ms']:.1f} ms",
        "peak memory": needed,
        "threads": body["threads"],
    }
    if body["made_up_inputs"]:
        rows["made-up inputs"] = ", ".join(body["made_up_inputs"])
    print_fields(str(artifact), rows)
