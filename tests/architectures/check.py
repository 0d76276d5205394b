"""``make architectures``: tiny ``transformers`` models of many kinds, compared with eager PyTorch.

    python -m tests.architectures.check [--archs FILE] [--levels "0 3"] [--jobs N] [NAME ...]

FILE defines ``REGISTRY``: name -> object with ``build(**kwargs)`` -> (module, inputs),
``inputs(seed)`` -> fresh inputs of the same shapes, and ``variants()`` -> [(label, kwargs)]. An
architecture is right when each of its variants is, at each level, on the inputs it was exported
with and on fresh ones. Each runs in a process of its own, so that a crash or a hang is one row of
the report. Writes build/reports/architectures.json; exit code 0 when all are right, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

HERE = Path(__file__).parent
#: Longest time for one architecture with all its variants and levels, in seconds.
TIMEOUT = 1200
RTOL, ATOL = 1e-3, 1e-4
#: Seeds of the fresh inputs.
FRESH = (1, 2)


def load_registry(path: Path) -> dict[str, Any]:
    """The ``REGISTRY`` that a Python file defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    registry: dict[str, Any] = module.REGISTRY
    return registry


def check_one(arch: Any, levels: list[int]) -> Iterator[dict[str, Any]]:
    """One row per variant and level."""
    for label, kwargs in arch.variants():
        module, inputs = arch.build(**kwargs)
        feeds = [inputs, *(arch.inputs(seed=seed) for seed in FRESH)]
        for level in levels:
            start = time.perf_counter()
            row = {"variant": label, "level": level, **_run(module, feeds, level)}
            yield row | {"seconds": round(time.perf_counter() - start, 1)}


def _run(module: Any, feeds: list[Any], level: int) -> dict[str, Any]:
    """Export with the first of ``feeds``, run them all, compare with eager PyTorch."""
    import torch

    import uif_tvm

    with torch.no_grad():
        wanted = [_arrays(module(*(x.clone() for x in feed))) for feed in feeds]
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", uif_tvm.errors.HostFallbackWarning)
        path = str(Path(scratch, "model.uif"))
        try:
            report = uif_tvm.export(module, feeds[0], path, level).report
            engine = uif_tvm.load(path)
            results = [engine.run(*(x.numpy() for x in feed)) for feed in feeds]
        except uif_tvm.UifError as error:
            status = "unsupported" if error.exit_code == 3 else "error"
            return {"status": status, "message": str(error)[:1000]}
    host = {p["op"]: p["count"] for p in report["placement"] if p["where"] == "host"}
    found = [
        f"inputs {number}: {fault}"
        for number, (have, want) in enumerate(zip(results, wanted, strict=True))
        if (fault := _fault(have, want))
    ]
    status = "wrong" if found else "right"
    return {"status": status, "message": "; ".join(found), "host": host}


def _arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    from torch.utils import _pytree as pytree

    return [leaf.numpy() for leaf in pytree.tree_leaves(result) if hasattr(leaf, "numpy")]


def _fault(have: list[Any], want: list[Any]) -> str:
    """How results depart from eager PyTorch's, or nothing."""
    if [(x.shape, x.dtype) for x in have] != [(x.shape, x.dtype) for x in want]:
        return f"{[(x.shape, x.dtype) for x in have]} for {[(x.shape, x.dtype) for x in want]}"
    for ours, reference in zip(have, want, strict=True):
        close = np.isclose(ours, reference, RTOL, ATOL, equal_nan=True)
        if not close.all():
            apart = float(np.abs(ours - reference).max())
            return f"{int((~close).sum())} of {close.size} values differ, by {apart:.3g} at most"
    return ""


def isolated(archs: Path, name: str, levels: list[int], jobs: int) -> dict[str, Any]:
    """All rows of one architecture, computed in a process of its own, and their verdict."""
    command = [sys.executable, "-m", "tests.architectures.check", "--archs", str(archs)]
    command += ["--levels", " ".join(map(str, levels)), "--one", name]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    env = os.environ | {"TVM_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=env
        )
        out, said, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        out = (expired.stdout or b"").decode(errors="replace")
        said, code = f"not done in {TIMEOUT} s", -1
    rows = [json.loads(line) for line in out.splitlines() if line.startswith('{"variant"')]
    if code:
        tail = said.strip().splitlines()[-1:] or ["no message"]
        status = "timeout" if code == -1 else "crash"
        rows.append({"variant": "", "level": None, "status": status, "message": tail[0][-500:]})
    right = bool(rows) and all(row["status"] == "right" for row in rows)
    worst = next((row["status"] for row in rows if row["status"] != "right"), "right")
    return {
        "arch": name,
        "status": worst if rows else "crash",
        "right": right,
        "seconds": round(time.perf_counter() - start, 1),
        "runs": rows,
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over architectures; ``right`` and ``total`` are what to watch."""
    return {
        "right": sum(row["right"] for row in rows),
        "total": len(rows),
        "by_status": dict(Counter(row["status"] for row in rows)),
        "all_native": sum(not any(run.get("host") for run in row["runs"]) for row in rows),
    }


def main() -> int:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--archs", type=Path, default=HERE / "hf_archs.py")
    parser.add_argument("--levels", default="0 3")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("build/reports/architectures.json"))
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    levels = [int(level) for level in args.levels.split()]
    registry = load_registry(args.archs.resolve())
    if args.one:
        for row in check_one(registry[args.one], levels):
            sys.stdout.write("\n" + json.dumps(row) + "\n")
            sys.stdout.flush()
        return 0
    unknown = set(args.names) - set(registry)
    if unknown:
        parser.error(f"not in {args.archs}: {', '.join(sorted(unknown))}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    rows = []
    with ThreadPoolExecutor(args.jobs) as pool:
        names = args.names or list(registry)
        for row in pool.map(lambda n: isolated(args.archs, n, levels, args.jobs), names):
            rows.append(row)
            colour = "green" if row["right"] else "red"
            fault = next((r for r in row["runs"] if r["status"] != "right"), {"message": ""})
            console.print(
                f"{row['arch']}: [{colour}]{row['status']}[/] ({row['seconds']} s)", end=" "
            )
            console.print(" ".join(fault["message"].split())[:400], markup=False)
    summary = summarise(rows)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "right": summary["right"],
        "total": summary["total"],
        "summary": summary,
        "rows": rows,
    }
    args.report.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"{summary['right']} of {summary['total']} right; {summary['by_status']}; "
                  f"report: {args.report}")  # fmt: skip
    return 0 if summary["right"] == summary["total"] else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
