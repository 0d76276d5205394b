"""Fit the published hard instances into their capacity, and say how long each took.

    python -m tests.compiler.memory.minimalloc [--limit SECONDS] [--report PATH] [NAME ...]

Writes build/reports/minimalloc.json; exit code 0 when all fit in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.compiler.memory.problems import CAPACITY, INSTANCES, instance
from uif_tvm.compiler.memory.checker import check
from uif_tvm.compiler.memory.planner import plan


def measure(name: str, limit: float) -> dict[str, Any]:
    """Plan one instance; seconds are of the processor and of the clock."""
    buffers = instance(name)
    started, clock = time.process_time(), time.monotonic()
    found = plan(buffers, time_limit_s=limit, capacity=CAPACITY)
    cpu, wall = time.process_time() - started, time.monotonic() - clock
    check(buffers, found)
    return {
        "instance": name,
        "buffers": len(buffers),
        "capacity": CAPACITY,
        "bound_bytes": found.bound_bytes,
        "arena_bytes": found.arena_bytes,
        "fits": found.arena_bytes <= CAPACITY,
        "method": found.method,
        "cpu_s": round(cpu, 3),
        "wall_s": round(wall, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=list(INSTANCES))
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--report", type=Path, default=Path("build/reports/minimalloc.json"))
    options = parser.parse_args()
    rows = []
    for name in options.names:
        rows.append(measure(name, options.limit))
        sys.stdout.write(
            f"{name}: {rows[-1]['arena_bytes']} of {CAPACITY} bytes, {rows[-1]['method']}, "
            f"{rows[-1]['cpu_s']} s CPU, {rows[-1]['wall_s']} s\n"
        )
    summary = {
        "instances": len(rows),
        "fits": sum(row["fits"] for row in rows),
        "slowest_wall_s": max(row["wall_s"] for row in rows),
        "slowest_cpu_s": max(row["cpu_s"] for row in rows),
    }
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1) + "\n")
    return 0 if summary["fits"] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
