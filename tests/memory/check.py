"""``make memory-report``: memory and kernels of every model, beside the bound and the peers.

    python -m tests.memory.check [--levels "2 3"] [--no-peers] [NAME ...]

Names are those of :func:`subjects.names`, or parts of them. A row tells ``arena_bytes``, what the
model's plan takes for the tensors of a run; ``bound_bytes``, which no plan can be below;
``tvm_bytes``, what TVM's StaticPlanBlockMemory takes for the same kernels; ``ort_bytes``, what
ONNX Runtime's arena takes for the same model (:mod:`peers`); peaks by plan and as measured, bytes;
``kernels``, kernel calls of a run; ``peer_kernels``, the fewer of the nodes that ONNX Runtime and
OpenVINO execute. ``None`` stands for what an engine does not tell or cannot run. Each model and
level is compiled and run in a process of its own; what fails is a row with its message. Writes
build/reports/memory.json; exit code 0 when every row is there and within the goals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.memory import peers
from tests.memory.subjects import COMPARED, Subject, find, names

TIMEOUT = 900
#: Goals: arena over bound, geometric mean and worst; measured over planned peak.
GEOMEAN, WORST, PEAK = 1.02, 1.10, 0.05


def measure(subject: Subject, level: int) -> dict[str, Any]:
    """Our own figures of one model at one level, after a run."""
    from uif_tvm import api

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "m.uif")
        report = compile_to(path, subject, level)
        engine = api.load(path)
        # Models of PyTorch take their inputs in order, those of ONNX by name.
        if isinstance(subject.feed, dict):
            known = {spec.name for spec in engine.inputs}
            engine.run({k: v for k, v in subject.feed.items() if k in known})
        else:
            engine.run(*(x.numpy() for x in subject.feed))
        return figures(report, engine.get_stats())


def compile_to(path: Path, subject: Subject, level: int) -> dict[str, Any]:
    """Export to ``path``; the report, with what TVM's planner would take in ``memory``."""
    from uif_tvm import api
    from uif_tvm.artifact import write_artifact
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.memory.apply import COMPARE_MEMORY
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.frontends.detect import import_model
    from uif_tvm.target.registry import get_target

    imported = import_model(subject.model, subject.feed, True)
    context = CompileContext(
        target=get_target("cpu"),
        level=level,
        report=ReportBuilder(),
        cache_dir=api.default_cache_dir(),
        options={COMPARE_MEMORY: True},
    )
    built = api._compile(imported, context, lambda phase, done, total: None)
    write_artifact(path, model="memory", signature=imported.signature, targets=[built])
    return dict(built.report)


def figures(report: dict[str, Any], stats: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row that come from us."""
    plan = report["memory_plan"] or {"tiers": []}
    peaks = {name: stats[f"{name}_peak_mb"] for name in ("planned", "measured")}
    return {
        "arena_bytes": sum(tier["arena_bytes"] for tier in plan["tiers"]),
        "bound_bytes": sum(tier["bound_bytes"] for tier in plan["tiers"]),
        "methods": [tier["method"] for tier in plan["tiers"]],
        "note": plan.get("note", ""),
        "tvm_bytes": report["memory"].get("tvm"),
        **{
            f"{name}_peak": None if mb is None else round(mb * (1 << 20))
            for name, mb in peaks.items()
        },
        "kernels": sum(kernel["calls"] for kernel in report["kernels"]),
    }


def isolated(name: str, level: int) -> dict[str, Any]:
    """:func:`measure` in a process of its own."""
    command = [sys.executable, "-m", "tests.memory.check", "--one", name, str(level)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "message": f"not done in {TIMEOUT} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"arena_bytes"'):
            return {"status": "measured", "message": "", **json.loads(line)}
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return {"status": "failed", "message": said[-1][-500:]}


def joined(name: str, level: int, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """One row of the report."""
    nodes = {peer: found.get("nodes") for peer, found in theirs.items()}
    counted = [count for count in nodes.values() if count is not None]
    return {
        "model": name,
        "level": level,
        **ours,
        "ort_bytes": theirs.get("onnxruntime", {}).get("bytes"),
        "peer_kernels": min(counted, default=None),
        "peers": theirs,
    }


def ratio(row: dict[str, Any]) -> float | None:
    """Arena over bound; 1 where neither is anything, ``None`` for rows without a plan."""
    if row.get("arena_bytes") is None:
        return None
    if not row["bound_bytes"]:
        return 1.0 if not row["arena_bytes"] else math.inf
    return float(row["arena_bytes"] / row["bound_bytes"])


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst ratio, other planners' ratios on the same models, and failures."""
    ratios = [found for row in rows if (found := ratio(row)) is not None]
    failed = [f"{r['model']} -O{r['level']}" for r in rows if r["status"] != "measured"]
    return {
        "rows": len(rows),
        "failed": failed,
        "arena_over_bound_geomean": _geomean(ratios),
        "arena_over_bound_worst": max(ratios, default=None),
        "tvm_over_arena_geomean": _geomean(_over(rows, "tvm_bytes")),
        "ort_over_arena_geomean": _geomean(_over(rows, "ort_bytes")),
        "peak_departs": [_label(row) for row in rows if departs(row)],
        "more_kernels_than_a_peer": [_label(row) for row in rows if outnumbers(row)],
    }


def _label(row: dict[str, Any]) -> str:
    return f"{row['model']} -O{row['level']}"


def _over(rows: Sequence[dict[str, Any]], column: str) -> list[float]:
    return [
        row[column] / row["arena_bytes"]
        for row in rows
        if row.get(column) and row.get("arena_bytes")
    ]


def _geomean(ratios: Sequence[float]) -> float | None:
    if not ratios:
        return None
    return math.exp(sum(math.log(found) for found in ratios) / len(ratios))


def departs(row: dict[str, Any]) -> bool:
    """Whether the measured peak is not the planned one."""
    planned, measured = row.get("planned_peak"), row.get("measured_peak")
    if planned is None or measured is None:
        return False
    return bool(abs(planned - measured) > PEAK * max(planned, measured))


def outnumbers(row: dict[str, Any]) -> bool:
    """Whether one of the compared models has more kernels than a peer executes nodes."""
    if row["model"] not in COMPARED or row.get("kernels") is None:
        return False
    counts = [peer["nodes"] for peer in row["peers"].values() if "nodes" in peer]
    return len(counts) < 2 or bool(row["kernels"] > min(counts))


def within_goals(summary: dict[str, Any]) -> bool:
    """Whether a report is what it should be."""
    mean, worst = summary["arena_over_bound_geomean"], summary["arena_over_bound_worst"]
    broken = ("failed", "peak_departs", "more_kernels_than_a_peer")
    good = mean is not None and mean <= GEOMEAN and worst <= WORST
    return bool(good and not any(summary[name] for name in broken))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows for people: KiB, and arena over bound."""
    made = Table(box=None, header_style="bold")
    for title in ("model", "level", "arena KiB", "/ bound", "tvm", "ort", "planned", "measured"):
        made.add_column(title, justify="left" if title == "model" else "right")
    for title in ("kernels", "ort", "openvino", ""):
        made.add_column(title, justify="right" if title else "left")
    for row in rows:
        found = ratio(row)
        sizes = [row.get(name) for name in ("tvm_bytes", "ort_bytes", "planned_peak")]
        sizes.append(row.get("measured_peak"))
        counts = [row["peers"].get(peer, {}).get("nodes") for peer in ("onnxruntime", "openvino")]
        made.add_row(
            row["model"],
            str(row["level"]),
            _kib(row.get("arena_bytes")),
            "-" if found is None else f"{found:.3f}",
            *(_kib(size) for size in sizes),
            *("-" if n is None else str(n) for n in (row.get("kernels"), *counts)),
            row["message"][:60],
        )
    return made


def _kib(size: int | None) -> str:
    return "-" if size is None else f"{size / 1024:,.0f}"


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--levels", default="2 3")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--report", type=Path, default=Path("build/reports/memory.json"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    if args.one:
        row = measure(find(args.one[0]), int(args.one[1]))
        sys.stdout.write("\n" + json.dumps(row) + "\n")
        return 0
    chosen = [name for name in names() if not args.names or any(n in name for n in args.names)]
    if not chosen:
        parser.error(f"no model is called like {', '.join(args.names)}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    rows = []
    for name in chosen:
        start = time.perf_counter()
        theirs = {} if args.no_peers or name.startswith("arch:") else peers.measure(name)
        for level in map(int, args.levels.split()):
            rows.append(joined(name, level, isolated(name, level), theirs))
            console.print(f"{_label(rows[-1])}: {rows[-1]['status']} {rows[-1]['message'][:80]} "
                          f"({time.perf_counter() - start:.1f} s)", markup=False)  # fmt: skip
    summary = summarise(rows)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1) + "\n")
    console.print(table(rows))
    console.print({name: value for name, value in summary.items() if name != "rows"})
    console.print(f"report: {args.report}")
    return 0 if within_goals(summary) else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
