"""``make corpus``: real trained models, compiled, run, and compared with references.

    python -m tests.corpus.check [--corpus FILE] [--levels "2 3"] [ID ...]

Each model, case and level runs in a process of its own, so that a crash or a hang is one row of
the report. References come from the list's ``io`` files where these hold outputs, else ONNX
Runtime computes them on the spot. Writes build/reports/corpus.json; exit code 0 when every row is
right or a typed refusal that names what is unsupported, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
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


def check_one(entry: dict[str, Any], case: str, level: int, folder: Path) -> dict[str, Any]:
    """Compile and run one model on one input; the row's status, stage and message."""
    import uif_tvm

    model = fetch(WheelFile(entry["package"], entry["version"], entry["file"], entry["sha256"]))
    about = entry["cases"][case]
    with np.load(folder / about["io"], allow_pickle=False) as archive:
        names = json.loads(str(archive["meta"]))
        feed = {name: archive[f"in{i}"] for i, name in enumerate(names["inputs"])}
        stored = [archive[key] for key in (f"out{i}" for i in range(len(names["outputs"])))
                  if key in archive.files]  # fmt: skip
    references = stored or reference(model, feed, names["outputs"])
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = str(Path(scratch, "model.uif"))
        try:
            start = time.perf_counter()
            uif_tvm.export(str(model), feed, output_path=path, optimize_level=level)
            seconds["export"] = round(time.perf_counter() - start, 2)
            engine = uif_tvm.load(path)
            results = dict(zip((o.name for o in engine.outputs), engine.run(feed), strict=True))
        except uif_tvm.UifError as error:
            kind = "unsupported" if error.exit_code == 3 else "error"
            return {"status": kind, "stage": error.stage, "message": str(error), **seconds}
    missing = [name for name in names["outputs"] if name not in results]
    if missing:
        return {"status": "wrong", "stage": "run", "message": f"no output {missing}", **seconds}
    found = faults(
        [results[name] for name in names["outputs"]],
        references,
        noise=about["reference_noise"],
        quantised=entry["quantised"],
    )
    status = "wrong" if found else "right"
    return {"status": status, "stage": "run", "message": "; ".join(found), **seconds}


def reference(model: Path, feed: dict[str, Any], outputs: list[str]) -> list[Any]:
    """What ONNX Runtime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return list(session.run(outputs, feed))


def isolated(corpus: Path, name: str, case: str, level: int) -> dict[str, Any]:
    """:func:`check_one` in a process of its own."""
    command = [sys.executable, "-m", "tests.corpus.check", "--corpus", str(corpus)]
    one = ["--one", name, case, str(level)]
    try:
        done = subprocess.run(
            [*command, *one], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "stage": None, "message": f"not done in {TIMEOUT} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"status"'):
            row: dict[str, Any] = json.loads(line)
            return row
    said = done.stderr.strip().splitlines() or ["no message"]
    message = "\n".join([f"exit code {done.returncode}: {said[-1]}", *said[-6:-1]])
    return {"status": "crash", "stage": None, "message": message}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts per status; ``right`` and ``total`` are what to watch."""
    counts = Counter(row["status"] for row in rows)
    return {
        "right": counts["right"],
        "total": len(rows),
        "honest": sum(counts[status] for status in HONEST),
        "by_status": dict(counts),
    }


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus.json")
    parser.add_argument("--levels", default="2 3")
    parser.add_argument("--report", type=Path, default=Path("build/reports/corpus.json"))
    parser.add_argument("--one", nargs=3, metavar=("ID", "CASE", "LEVEL"), help=argparse.SUPPRESS)
    parser.add_argument("ids", nargs="*", metavar="ID")
    args = parser.parse_args()
    corpus: list[dict[str, Any]] = json.loads(args.corpus.read_text())
    if args.one:
        name, case, level = args.one
        entry = next(entry for entry in corpus if entry["id"] == name)
        row = check_one(entry, case, int(level), args.corpus.resolve().parent)
        sys.stdout.write("\n" + json.dumps(row) + "\n")
        return 0
    unknown = set(args.ids) - {entry["id"] for entry in corpus}
    if unknown:
        parser.error(f"not in {args.corpus}: {', '.join(sorted(unknown))}")
    levels = [int(level) for level in args.levels.split()]
    rows = check_all(
        [e for e in corpus if not args.ids or e["id"] in args.ids], args.corpus, levels
    )
    summary = summarise(rows)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps({"rows": rows, "summary": summary}, indent=2) + "\n")
    Console(highlight=False).print(
        f"{summary['right']} of {summary['total']} right; {summary['by_status']}; "
        f"report: {args.report}"
    )
    return 0 if summary["honest"] == summary["total"] else 1


def check_all(
    entries: list[dict[str, Any]], corpus: Path, levels: list[int]
) -> list[dict[str, Any]]:
    """Every case of every entry at every level, told on the terminal as they come."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    rows = []
    for entry in entries:
        for case in entry["cases"]:
            for level in levels:
                start = time.perf_counter()
                row = {"id": entry["id"], "case": case, "level": level}
                row |= isolated(corpus, entry["id"], case, level)
                row["seconds"] = round(time.perf_counter() - start, 1)
                rows.append(row)
                first = (row["message"].splitlines() or [""])[0][:90]
                colour = {"right": "green", "unsupported": "yellow"}.get(row["status"], "red")
                console.print(
                    f"{entry['id']} {case} -O{level}: [{colour}]{row['status']}[/] "
                    f"({row['seconds']} s)",
                    end=" " if first else "\n",
                )
                if first:
                    console.print(first, markup=False)
    return rows


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
