"""Worker processes that may crash or hang: the test at hand is blamed, the rest goes on."""

from __future__ import annotations

import multiprocessing as mp
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from tests.onnx_backend.judge import CRASHED, HUNG, Verdict, judge

#: One job: arguments of ``judge``.
Job = tuple[Any, ...]
Work = Callable[..., Verdict]


def run_jobs(
    jobs: Iterable[Job], processes: int, seconds: float, work: Work = judge
) -> Iterator[tuple[Job, Verdict, float]]:
    """(job, verdict, seconds) of each job as they end.

    Args:
        processes: how many work at a time.
        seconds: after which a job counts as hung and its process is killed.
        work: importable by name, called in the workers.
    """
    waiting: SimpleQueue[Job | None] = SimpleQueue()
    done: SimpleQueue[tuple[Job, Verdict, float]] = SimpleQueue()
    count = 0
    for job in jobs:
        waiting.put(job)
        count += 1
    threads = [
        threading.Thread(target=_serve, args=(waiting, done, seconds, work), daemon=True)
        for _ in range(processes)
    ]
    for thread in threads:
        waiting.put(None)
        thread.start()
    for _ in range(count):
        yield done.get()


def _serve(
    waiting: SimpleQueue[Job | None],
    done: SimpleQueue[tuple[Job, Verdict, float]],
    seconds: float,
    work: Work,
) -> None:
    worker = _Worker(work)
    while (job := waiting.get()) is not None:
        start = time.monotonic()
        done.put((job, worker.run(job, seconds), time.monotonic() - start))
    worker.stop()


class _Worker:
    """One process; replaced when it crashes or hangs."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._process: Any = None
        self._pipe: Any = None

    def run(self, job: Job, seconds: float) -> Verdict:
        """Have one job done."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send(job)
            if self._pipe.poll(seconds):
                verdict: Verdict = self._pipe.recv()
                return verdict
            verdict = Verdict(HUNG, f"no answer within {seconds:g} s")
        except (EOFError, OSError):
            self._process.join()
            verdict = Verdict(CRASHED, f"exit code {self._process.exitcode}")
        self.stop()
        return verdict

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        self._pipe, theirs = mp.Pipe()
        context = mp.get_context("spawn")
        self._process = context.Process(target=_loop, args=(theirs, self._work), daemon=True)
        self._process.start()
        theirs.close()
        # Loading the tests is no part of any of them.
        self._pipe.recv()


def _loop(pipe: Connection, work: Work) -> None:
    if work is judge:
        import tvm  # noqa: F401

        from tests.onnx_backend.cases import load_cases

        load_cases()
    pipe.send(None)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(work(*job))
