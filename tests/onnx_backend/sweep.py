"""All node tests of the installed onnx, on uif and on ONNX Runtime, in one run.

python -m tests.onnx_backend.sweep [--jobs N] [--filter REGEX] [--shard I/N] [--level L]
                                   [--out FILE] [--no-ort]

Exit code 1 when results depart from ``known_failures.json``. The report has one row per test and

``passed`` of ``total``: right on uif by upstream's own comparison;
``native_or_composed``: of those, the ones without any call of the host (what was evaluated at
import counts as native);
``ort_passed``; ``crashes`` and ``hangs`` of uif.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.onnx_backend.cases import load_cases
from tests.onnx_backend.judge import CRASHED, HUNG, PASSED, Verdict
from tests.onnx_backend.known import departures, known_failures
from tests.onnx_backend.pool import run_jobs

SECONDS = 120.0
"""After which a test counts as hung."""


def main(arguments: list[str] | None = None) -> int:
    """Run, report, judge."""
    args = _parser().parse_args(arguments)
    names = chosen(args.filter, args.shard)
    # One thread per process: the tests are small, and processes share the cores.
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    runtimes = ["uif"] if args.no_ort else ["ort", "uif"]
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in names}
    start = time.monotonic()
    for runtime in runtimes:
        jobs = [(runtime, name, args.level) for name in names]
        for number, (job, verdict, seconds) in enumerate(run_jobs(jobs, args.jobs, SECONDS), 1):
            rows[job[1]] |= _row(runtime, verdict, seconds)
            if number % 200 == 0 or number == len(jobs):
                _tell(f"{runtime}: {number} of {len(jobs)}, {time.monotonic() - start:.0f} s")
    report = {
        "summary": summary(list(rows.values())) | {"seconds": round(time.monotonic() - start)},
        "level": args.level,
        "versions": _versions(),
        "rows": list(rows.values()),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    _tell(json.dumps(report["summary"]))
    wrong = departures({n: row["status"] for n, row in rows.items()}, known_failures())
    for line in wrong:
        _tell(line)
    return 1 if wrong else 0


def chosen(pattern: str, shard: str) -> list[str]:
    """Names of the tests that match a regular expression, and every N-th of them."""
    number, shards = (int(part) for part in shard.split("/"))
    if not 0 <= number < shards:
        raise SystemExit(f"--shard {shard}: give I/N with I from 0 to N-1")
    return [name for name in load_cases() if re.search(pattern, name)][number::shards]


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The figures of the report."""
    count = Counter(row["status"] for row in rows)
    return {
        "passed": count[PASSED],
        "total": len(rows),
        "native_or_composed": sum(row["status"] == PASSED and not row["host_ops"] for row in rows),
        "ort_passed": sum(row.get("ort") == PASSED for row in rows),
        "crashes": count[CRASHED],
        "hangs": count[HUNG],
    }


def _row(runtime: str, verdict: Verdict, seconds: float) -> dict[str, Any]:
    if runtime == "ort":
        return {"ort": verdict.status, "ort_message": verdict.message}
    return {
        "status": verdict.status,
        "message": verdict.message,
        "host_ops": list(verdict.host_ops),
        "seconds": round(seconds, 2),
    }


def _versions() -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("onnx", "onnxruntime", "uif")}


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--filter", default="", help="regular expression over test names")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th test from the I-th")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--no-ort", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/reports/onnx-backend.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
