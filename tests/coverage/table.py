"""The README's coverage table: made from the reports of the suites, never written by hand.

    python -m tests.coverage.table            # reports in build/reports -> results.json -> README

Each suite's ``make`` target writes its report to build/reports; what of it the table shows is kept
in results.json beside this file, with the day of the run. Reports that are not there leave the
suite's last results as they were.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "build" / "reports"
RESULTS = Path(__file__).with_name("results.json")
README = ROOT / "README.md"
BEGIN, END = "<!-- coverage table: make coverage-table -->", "<!-- end of coverage table -->"

#: Suite (its report's name) -> what the table calls it.
SUITES = {
    "onnx-backend": "ONNX's own node tests",
    "torch-ops": "PyTorch's operator database, core operators",
    "architectures": "`transformers` architectures",
    "cases": "bug cases of other stacks",
    "corpus": "trained models",
}


def collect(reports: Path, results: dict[str, Any], today: str) -> dict[str, Any]:
    """``results`` brought up to date with the reports that are there."""
    for suite in SUITES:
        path = reports / f"{suite}.json"
        if not path.exists():
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        summary = report.get("summary", report)
        numbers = {k: v for k, v in summary.items() if isinstance(v, (int, float, str))}
        results[suite] = numbers | {"date": today}
    return results


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    lines = ["| Suite | Right | Share | More | `make` |", "|---|---|---|---|---|"]
    for suite, title in SUITES.items():
        row = results.get(suite)
        if row is None:
            continue
        right = row.get("passed", row.get("right", 0))
        share = 100.0 * right / row["total"] if row["total"] else 0.0
        # Rounded down: 99.96% is not all.
        shown = int(share * 10) / 10
        lines.append(
            f"| {title} | {right} of {row['total']} | {shown:g}% | {_more(row)} | `{suite}` |"
        )
    return "\n".join(lines)


def _more(row: Mapping[str, Any]) -> str:
    """What else a suite says: who runs the operators, what others reach, what went wrong."""
    told = []
    if row.get("shard", "0/1") != "0/1":
        told.append(f"one part of {row['shard'].partition('/')[2]}")
    if "native_or_composed" in row:
        told.append(f"{row['native_or_composed']} without the host")
    if "ort_passed" in row:
        told.append(f"ONNX Runtime in the same run: {row['ort_passed']}")
    for key in ("wrong", "crashes", "crashed", "hangs"):
        if key in row:
            told.append(f"{row[key]} {key}")
    return ", ".join(told)


def updated(readme: str, table: str) -> str:
    """The README with ``table`` between its marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, found, rest = readme.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{README.name} has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    """See the module text."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    results = collect(REPORTS, results, today)
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(updated(readme, render(results)), encoding="utf-8")
    sys.stdout.write(render(results) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
