"""One engine in a process of its own, told what to do line by line.

Run as ``python -m uif_tvm.bench.worker ENGINE MODEL THREADS FEED.npz``. It reads JSON requests
from stdin and answers each with one JSON line on what was its stdout; whatever the engine itself
prints goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1


def main(engine: str, model: str, threads: str, feed_file: str) -> None:
    """Answer requests until stdin ends."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        import numpy as np

        from uif_tvm.bench import measure
        from uif_tvm.bench.engines import open_engine

        with np.load(feed_file, allow_pickle=False) as archive:
            feed = {name: np.ascontiguousarray(archive[name]) for name in archive.files}
        start = time.perf_counter()
        run = open_engine(engine, Path(model), int(threads))
        load_ms = (time.perf_counter() - start) * 1e3
        first_run_ms = measure.time_call(lambda: run(feed))
    except Exception as error:
        # The driver shows it; an engine may raise anything.
        _answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _answer(answers, {"load_ms": load_ms, "first_run_ms": first_run_ms})
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            if request["do"] == "outputs":
                arrays: dict[str, Any] = {f"out{i}": np.array(a) for i, a in enumerate(run(feed))}
                np.savez(request["file"], **arrays)
                _answer(answers, {})
            else:
                latency = measure.sample(
                    lambda: run(feed), runs=request["runs"], warmup=request["warmup"]
                )
                _answer(answers, {"samples": latency.samples})
        except Exception as error:
            _answer(answers, {"error": f"{type(error).__name__}: {error}"})


def _answer(answers: IO[str], body: dict[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()


def _die_with_parent() -> None:
    """A stopped worker would otherwise outlive a driver that was killed (Linux only)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
