"""``python -m uif_tvm.bench.peers``: our latency beside that of the best CPU engines.

For every network and number of threads: build the ONNX file (cached), compile it with ours at -O3,
check that all engines give the same outputs, let them take turns, and compare medians. Prints a
table and writes ``bench.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from uif_tvm.bench import flops, machine, models
from uif_tvm.bench.duel import Contestant, Result, take_turns
from uif_tvm.bench.engines import OURS, PEERS
from uif_tvm.bench.measure import Latency, geomean
from uif_tvm.errors import RunError, UifError

#: Outputs agree when every element is within RTOL of the reference, plus ATOL of its largest.
RTOL, ATOL = 1e-3, 1e-4
PACKAGES = ("uif", "apache-tvm", "apache-tvm-ffi", *PEERS, "numpy", "torch", "transformers")
RATIO = "median_ms divided by the smallest median_ms of a peer, same model and threads; < 1 wins"


@dataclass(frozen=True)
class Case:
    """One network at one number of threads."""

    model: str
    threads: int


def _split(text: str) -> list[str]:
    return [item for item in text.replace(",", " ").split() if item]


@click.command()
@click.option("--models", "names", default="", help="Networks, default all.")
@click.option("--threads", default="1 2", show_default=True, help="Numbers of threads.")
@click.option("--engines", default=" ".join((OURS, *PEERS)), show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=12, show_default=True)
@click.option(
    "--level",
    type=click.IntRange(0, 3),
    default=3,
    show_default=True,
    help="Our optimisation level.",
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path),
    default=Path("build/bench"),
    show_default=True,
    help="Models, ours and theirs.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    default=Path("build/reports/bench.json"),
    show_default=True,
)
def main(
    names: str, threads: str, engines: str, rounds: int, level: int, work_dir: Path, report: Path
) -> None:
    """Compare ours with ONNX Runtime and OpenVINO on this machine."""
    try:
        chosen = _split(names) or [entry.name for entry in models.RECIPES]
        cases = [Case(models.recipe(name).name, int(n)) for name in chosen for n in _split(threads)]
        before = machine.measure_peak([case.threads for case in cases])
    except UifError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    started = time.time()
    rows: list[dict[str, Any]] = []
    exports: dict[str, dict[str, Any]] = {}
    for case in cases:
        click.echo(f"{case.model}, {case.threads} thread(s) ...", err=True)
        if case.model not in exports:
            exports[case.model] = prepare(case.model, work_dir, level, OURS in _split(engines))
        rows += compare(case, exports[case.model], _split(engines), rounds)
    # On a busy machine one measurement may be too low, never too high.
    peak = machine.higher(before, machine.measure_peak([case.threads for case in cases]))
    for row in rows:
        if "gflops" in row:
            row["peak_fraction"] = round(row["gflops"] / peak.gflops[row["threads"]], 4)
    body: dict[str, Any] = {
        "schema": "uif.bench-peers",
        "schema_version": 1,
        "machine": machine.describe(PACKAGES)
        | {"fma_peak_gflops": {str(n): value for n, value in peak.gflops.items()}},
        "settings": {
            "rounds": rounds,
            "level": level,
            "dtype": "float32",
            "ratio": RATIO,
            "tolerance": {"rtol": RTOL, "atol_of_largest": ATOL},
        },
        "seconds": round(time.time() - started, 1),
        "exports": {
            name: {k: v for k, v in e.items() if k != "paths"} for name, e in exports.items()
        },
        "rows": rows,
        "summary": summarise(rows),
    }
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(body, indent=2) + "\n")
    show(body)
    click.echo(f"report: {report}", err=True)
    sys.exit(0 if body["summary"]["failed"] == 0 else 1)


def prepare(name: str, folder: Path, level: int, ours: bool) -> dict[str, Any]:
    """The ONNX file, its FLOPs, and our compiled file (or the error of the export)."""
    source = models.onnx_file(name, folder)
    compiled = folder / f"{name}-O{level}.uif"
    result: dict[str, Any] = {"gflop": flops.count(source) / 1e9, "error": None}
    result["paths"] = {OURS: compiled, **dict.fromkeys(PEERS, source)}
    if not ours:
        return result
    start = time.perf_counter()
    # A process of its own: the compiler's threads must be gone before anything is measured.
    command = [sys.executable, "-m", "uif_tvm.cli.main", "export", str(source)]
    done = subprocess.run(
        [*command, f"-O{level}", "-o", str(compiled)], capture_output=True, text=True, check=False
    )
    result["export_seconds"] = round(time.perf_counter() - start, 2)
    if done.returncode != 0:
        result["error"] = (
            f"export failed with code {done.returncode}: {done.stderr.strip()[-2000:]}"
        )
    return result


def compare(
    case: Case, export: dict[str, Any], engines: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    """One row per engine; an engine that fails has ``error`` and no times."""
    import numpy as np

    failures: dict[str, str] = {}
    results: Mapping[str, Result] = {}
    contestants: list[Contestant] = []
    differences: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        feed = Path(scratch, "feed.npz")
        arrays: dict[str, Any] = dict(models.feed(case.model))
        np.savez(feed, **arrays)
        try:
            for engine in engines:
                if engine == OURS and export["error"]:
                    failures[engine] = export["error"]
                    continue
                try:
                    paths = export["paths"]
                    contestants.append(Contestant(engine, paths[engine], case.threads, feed))
                except RunError as error:
                    failures[engine] = error.message
            differences, wrong = agree(contestants, Path(scratch))
            failures |= wrong
            results = take_turns(contestants, rounds) if contestants else {}
        except RunError as error:
            # Without one of them the turns of the others mean nothing; other cases go on.
            failures |= dict.fromkeys(engines, f"the comparison ended: {error.message}")
        finally:
            for contestant in contestants:
                contestant.close()
    starts = {contestant.engine: contestant.start for contestant in contestants}
    rows = []
    for engine in engines:
        row: dict[str, Any] = {"model": case.model, "threads": case.threads, "engine": engine}
        row["error"] = failures.get(engine)
        if engine in results:
            latency = results[engine].latency
            gflops = export["gflop"] / latency.median * 1e3
            row |= {
                "median_ms": round(latency.median, 4),
                "min_ms": round(min(latency.samples), 4),
                "p10_ms": round(latency.percentile(10), 4),
                "p90_ms": round(latency.percentile(90), 4),
                "runs": len(latency.samples),
                "gflops": round(gflops, 2),
                "max_abs_diff": differences.get(engine),
                "round_medians_ms": [round(m, 4) for m in results[engine].round_medians()],
                **starts[engine],
            }
        rows.append(row)
    return with_ratios(rows)


def agree(
    contestants: Sequence[Contestant], scratch: Path
) -> tuple[dict[str, float], dict[str, str]]:
    """Largest difference of each engine's outputs from the first peer's, and who is off."""
    import numpy as np

    outputs: dict[str, list[Any]] = {}
    for contestant in contestants:
        file = scratch / f"{contestant.engine}.npz"
        contestant.ask(do="outputs", file=str(file))
        with np.load(file, allow_pickle=False) as archive:
            outputs[contestant.engine] = [archive[name] for name in archive.files]
    reference = next((outputs[peer] for peer in PEERS if peer in outputs), None)
    differences: dict[str, float] = {}
    wrong: dict[str, str] = {}
    for engine, arrays in outputs.items():
        if reference is None:
            continue
        if [a.shape for a in arrays] != [a.shape for a in reference]:
            wrong[engine] = "the shapes of the outputs differ from the peers'"
            continue
        pairs = list(zip(arrays, reference, strict=True))
        differences[engine] = max(float(np.abs(a - b).max()) for a, b in pairs)
        close = all(
            np.allclose(a, b, rtol=RTOL, atol=ATOL * float(np.abs(b).max())) for a, b in pairs
        )
        if not close:
            wrong[engine] = f"outputs differ from the peers' by up to {differences[engine]:.3g}"
    return differences, wrong


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each row's ratio to every peer and to the best one, and the spread over rounds."""
    peers = {r["engine"]: r for r in rows if r["engine"] in PEERS and "median_ms" in r}
    if not peers:
        return rows
    best = min(peers.values(), key=lambda row: row["median_ms"])
    fastest = min(row["min_ms"] for row in peers.values())
    for row in rows:
        if "median_ms" not in row:
            continue
        row["ratio_to_best"] = round(row["median_ms"] / best["median_ms"], 4)
        row["best_peer"] = best["engine"]
        # Other work on the machine only ever adds time, so minima compare well on a busy one.
        row["ratio_of_minima"] = round(row["min_ms"] / fastest, 4)
        row["ratio_to"] = {
            name: round(row["median_ms"] / peer["median_ms"], 4) for name, peer in peers.items()
        }
        paired = Latency(
            tuple(
                mine / theirs
                for mine, theirs in zip(
                    row["round_medians_ms"], best["round_medians_ms"], strict=True
                )
            )
        )
        row["ratio_p10"] = round(paired.percentile(10), 4)
        row["ratio_p90"] = round(paired.percentile(90), 4)
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How ours stands: geometric mean and worst of the ratios, and how many rows failed."""
    ours = [row for row in rows if row["engine"] == OURS]
    counted = [row for row in ours if "ratio_to_best" in row and row["error"] is None]
    worst = max(counted, key=lambda row: float(row["ratio_to_best"]), default=None)
    return {
        "geomean_vs_best": round(geomean([r["ratio_to_best"] for r in counted]), 4)
        if counted
        else None,
        "worst_model": worst and worst["model"],
        "worst_threads": worst and worst["threads"],
        "worst_ratio": worst and worst["ratio_to_best"],
        "measured": len(counted),
        "failed": sum(row["error"] is not None for row in rows),
    }


def show(body: dict[str, Any]) -> None:
    """The table on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    about = body["machine"]
    peaks = ", ".join(f"{v:.0f} on {n}" for n, v in about["fma_peak_gflops"].items())
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)
    console.print(
        f"{about['cpu']}, {about['cores']} cores; measured FMA peak, GFLOP/s by threads: {peaks}"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    table.add_column("engine")
    for column in ("threads", "median ms", "p10", "p90", "vs best", "GFLOP/s", "of peak", "diff"):
        table.add_column(column, justify="right")
    last = None
    for row in body["rows"]:
        case = (row["model"], row["threads"])
        if last not in (None, case):
            table.add_section()
        last = case
        if row["error"] is not None:
            table.add_row(
                row["model"],
                row["engine"],
                str(row["threads"]),
                Text(row["error"].splitlines()[0], style="red"),
            )
            continue
        ours = row["engine"] == OURS
        table.add_row(
            row["model"],
            row["engine"],
            str(row["threads"]),
            f"{row['median_ms']:.2f}",
            f"{row['p10_ms']:.2f}",
            f"{row['p90_ms']:.2f}",
            f"{row['ratio_to_best']:.2f}x" if "ratio_to_best" in row else "-",
            f"{row['gflops']:.0f}",
            f"{row['peak_fraction']:.0%}",
            "-" if row["max_abs_diff"] is None else f"{row['max_abs_diff']:.1e}",
            style="bold" if ours else "",
        )
    console.print(table)
    summary = body["summary"]
    if summary["measured"]:
        console.print(
            f"ours against the best peer: geometric mean {summary['geomean_vs_best']:.2f}x, worst "
            f"{summary['worst_ratio']:.2f}x ({summary['worst_model']}, "
            f"{summary['worst_threads']} thread(s)); {summary['failed']} rows failed"
        )


if __name__ == "__main__":
    main()
