"""ONNX's bundled backend node tests, run in worker processes that may crash.

python tests/frontends/onnx/backend.py [--jobs N] [--filter TEXT] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 90


def load_cases() -> list[Any]:
    """All node test cases; they are built in memory and deterministic."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


def judge(case: Any) -> tuple[str, str]:
    """(status, message) of one case: right, wrong, refused or crashed."""
    from tests.frontends.onnx.harness import execute
    from uif_tvm.errors import UifError
    from uif_tvm.frontends.onnx import import_onnx

    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        if any(isinstance(value, list | type(None)) for value in [*inputs, *outputs]):
            return "refused", "sequences and optionals do not cross the border of a model"
        given = {n: dense(v) for n, v in zip(names, inputs, strict=False)}
        outputs = [dense(value) for value in outputs]
        try:
            imported = import_onnx(case.model, given)
        except UifError as exc:
            return "refused", str(exc)
        except Exception as exc:
            return "escaped", f"{type(exc).__name__}: {exc}"
        try:
            results = execute(imported, given)
        except Exception as exc:
            return "failed", f"{type(exc).__name__}: {str(exc)[-400:]}"
        for ours, theirs in zip(results, outputs, strict=True):
            message = compare(ours, theirs, case)
            if message:
                return "wrong", message
    return "right", ""


def dense(value: Any) -> Any:
    """An array; small floats and integers come as ``TensorProto``."""
    from onnx import TensorProto, numpy_helper

    is_proto = isinstance(value, TensorProto)
    return numpy_helper.to_array(value) if is_proto else np.asarray(value)


def compare(ours: Any, theirs: Any, case: Any) -> str:
    """What is wrong with an output, or nothing."""
    theirs = np.asarray(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
    if "bernoulli" in case.name or "random" in case.name:
        return ""
    if theirs.dtype.kind in "biu":
        return "" if np.array_equal(ours, theirs) else "integers differ"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    if np.allclose(a, b, rtol=case.rtol, atol=max(case.atol, 1e-7), equal_nan=True):
        return ""
    with np.errstate(all="ignore"):
        return f"largest difference {np.nanmax(np.abs(a - b)) if a.size else 0}"


def _work(connection: Any) -> None:
    cases = {case.name: case for case in load_cases()}
    connection.send(None)
    while True:
        name = connection.recv()
        if name is None:
            return
        connection.send(judge(cases[name]))


class Worker:
    """One process; replaced when it crashes or hangs."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start a fresh process and wait until it has loaded the cases."""
        self.pipe, child = mp.Pipe()
        self.process = mp.get_context("spawn").Process(target=_work, args=(child,), daemon=True)
        self.process.start()
        child.close()
        self.pipe.recv()

    def run(self, name: str) -> tuple[str, str]:
        """Judge one case."""
        self.pipe.send(name)
        try:
            if self.pipe.poll(SECONDS):
                return self.pipe.recv()
            status = ("timeout", f"{SECONDS} s")
        except (EOFError, ConnectionResetError):
            self.process.join()
            status = ("crashed", f"exit code {self.process.exitcode}")
        self.process.kill()
        self.start()
        return status


def main() -> int:
    """Run all cases and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--out", type=Path, default=Path("build/reports/onnx-backend.json"))
    args = parser.parse_args()
    number, shards = (int(part) for part in args.shard.split("/"))
    names = [case.name for case in load_cases() if args.filter in case.name][number::shards]
    worker, rows, started = Worker(), [], time.monotonic()
    for name in names:
        status, message = worker.run(name)
        rows.append({"id": name, "status": status, "message": message})
    worker.process.kill()
    counts = Counter(row["status"] for row in rows)
    summary = {**counts, "total": len(rows), "seconds": round(time.monotonic() - started)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1))
    sys.stdout.write(f"{summary}\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    sys.exit(main())
