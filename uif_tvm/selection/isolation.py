"""Tasks in processes of their own, which may crash or hang without taking anything along.

A worker (:mod:`uif_tvm.selection.worker`) takes one task after another, so that imports are paid
once. One that dies or runs over the time limit is replaced; what it was doing is the answer.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Any, Literal

from uif_tvm.errors import UsageError

#: Seconds a fresh worker may take to import what it needs, on a busy machine.
START_SECONDS = 120.0
#: Threads of every library inside a worker: measured times are for one thread.
WORKER_THREADS = 1
_STDERR_TAIL = 2000


@dataclass(frozen=True)
class Outcome:
    """How one task ended.

    Args:
        how: ``done``; ``error`` (the task raised); ``crash`` (the process died); ``timeout``.
        value: the task's result when done.
        detail: the error, the signal or the limit, in words.
    """

    how: Literal["done", "error", "crash", "timeout"]
    value: dict[str, Any] = field(default_factory=dict)
    detail: str = ""


class Pool:
    """Up to ``jobs`` workers, started as they are needed. Use it as a context manager.

    Args:
        jobs: workers.
        imports: modules that each imports first, as those that register operators.
    """

    def __init__(self, jobs: int, imports: Sequence[str] = ()) -> None:
        self.jobs = jobs
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="uif-task")
        self._all: list[_Worker] = []
        for _ in range(jobs):
            worker = _Worker(imports)
            self._all.append(worker)
            self._idle.put(worker)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.stop()

    def run(self, task: str, seconds: float, **arguments: Any) -> Outcome:
        """One task, here and now; ``seconds`` does not count a worker's start."""
        worker = self._idle.get()
        try:
            return worker.run(task, seconds, arguments)
        finally:
            self._idle.put(worker)

    def run_all(
        self, tasks: Sequence[tuple[str, float, dict[str, Any]]]
    ) -> Iterator[tuple[int, Outcome]]:
        """Many tasks at once; yields (index, outcome) as they end."""
        futures: dict[Future[Outcome], int] = {
            self._threads.submit(self._call, task, seconds, arguments): index
            for index, (task, seconds, arguments) in enumerate(tasks)
        }
        pending = set(futures)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=futures.__getitem__):
                yield futures[future], future.result()

    def _call(self, task: str, seconds: float, arguments: dict[str, Any]) -> Outcome:
        return self.run(task, seconds, **arguments)


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._imports = imports
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, task: str, seconds: float, arguments: dict[str, Any]) -> Outcome:
        """Send one task and wait for its answer."""
        process = self._started()
        if process is None:
            return Outcome("crash", detail=f"the worker process did not start: {self._said()}")
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:  # Popen was asked for both
            return Outcome("crash", detail="the worker process has no pipes")
        try:
            stdin.write(json.dumps({"task": task, "arguments": arguments}).encode() + b"\n")
            stdin.flush()
            line = _read_line(stdout, seconds)
        except OSError:
            line = b""
        if line is None:
            self._kill()
            return Outcome("timeout", detail=f"not done in {seconds:g} s")
        if not line:
            return Outcome("crash", detail=self._death(process))
        answer = json.loads(line)
        return Outcome(answer["how"], answer.get("value", {}), answer.get("detail", ""))

    def stop(self) -> None:
        """End the process; later tasks are not started."""
        self._stopped = True
        self._kill()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _started(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            if self._process is not None and self._process.poll() is None:
                return self._process
            if self._stderr is None:
                self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as this)
            self._stderr.seek(0)
            self._stderr.truncate()
            threads = dict.fromkeys(("OMP_NUM_THREADS", "TVM_NUM_THREADS"), str(WORKER_THREADS))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "uif_tvm.selection.worker", *self._imports],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**os.environ, **threads},
                start_new_session=True,
            )
        stdout = self._process.stdout
        ready = _read_line(stdout, START_SECONDS) if stdout is not None else None
        if ready:
            return self._process
        self._kill()
        return None

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _death(self, process: subprocess.Popen[bytes]) -> str:
        """How a process that closed its pipe ended."""
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self._kill()
        if code < 0:
            with suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}: {self._said()}"
        return f"exit code {code}: {self._said()}"

    def _said(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _STDERR_TAIL))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-3:]) or "it said nothing"


def _read_line(pipe: IO[bytes], seconds: float) -> bytes | None:
    """One line; empty when the other side is gone, ``None`` when the time is up."""
    deadline = time.monotonic() + seconds
    parts: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        part = os.read(pipe.fileno(), 1 << 16)
        if not part:
            return b""
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)


def check_imports(modules: Sequence[str]) -> None:
    """Refuse modules that workers could not import.

    Raises:
        UsageError: there is none of that name.
    """
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise UsageError(
                f"there is no module {module!r} to import",
                code="UIF-USAGE-IMPORT",
                hint="name it as Python does (package.module), and put its folder on PYTHONPATH",
            )
