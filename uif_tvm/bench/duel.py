"""Engines take turns, each in its own process, the others stopped.

Thread pools spin for a while after a run, so engines in one process, or in processes that run at
the same time, steal each other's cores. Here a process is stopped by signal whenever it is not its
turn: it cannot take a cycle from the one that is measured. Turns go round in small bursts, so that
drifts of the machine hit everybody alike.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from uif_tvm.bench.measure import Latency
from uif_tvm.errors import RunError

#: A turn lasts about so long, seconds, warm-up runs apart.
BURST_SECONDS = 0.25
MIN_BURST, MAX_BURST = 3, 200
#: Runs at the start of a turn that do not count: they wake the pool and warm the caches.
BURST_WARMUP = 2


class Contestant:
    """One engine's process, stopped except during its own requests.

    Raises:
        RunError: the engine could not load or run the model; the message is the engine's own.
    """

    def __init__(self, engine: str, model: Path, threads: int, feed: Path) -> None:
        self.engine = engine
        command = [sys.executable, "-m", "uif_tvm.bench.worker"]
        self._process = subprocess.Popen(
            [*command, engine, str(model), str(threads), str(feed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.start = self._receive()
        except BaseException:
            self.close()
            raise
        self._stop()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Wake the process, have it do ``request``, and stop it again."""
        if self._process.stdin is None:
            raise RunError(f"{self.engine} has no input")
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return self._receive()
        except BrokenPipeError:
            raise RunError(self._death()) from None
        finally:
            self._stop()

    def burst(self, runs: int, warmup: int = BURST_WARMUP) -> tuple[float, ...]:
        """Latencies of ``runs`` runs, milliseconds."""
        return tuple(self.ask(do="burst", runs=runs, warmup=warmup)["samples"])

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _stop(self) -> None:
        """Stop the process and wait until all its threads stand still, or it is gone."""
        self._process.send_signal(signal.SIGSTOP)
        ended = os.WSTOPPED | os.WEXITED
        with contextlib.suppress(ChildProcessError):
            event = os.waitid(os.P_PID, self._process.pid, ended | os.WNOWAIT)
            if event is not None and event.si_code == os.CLD_STOPPED:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RunError(self._death())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunError(f"{self.engine}: {answer['error']}")
        return answer

    def _death(self) -> str:
        code = self._process.wait(timeout=10)
        return f"{self.engine} died with code {code}"


@dataclass
class Result:
    """All latencies of one engine, by round."""

    rounds: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def latency(self) -> Latency:
        """Every sample of every round."""
        return Latency(tuple(sample for turn in self.rounds for sample in turn))

    def round_medians(self) -> list[float]:
        """The median of each round, for ratios between neighbours in time."""
        return [Latency(turn).median for turn in self.rounds]


def take_turns(
    contestants: Sequence[Contestant],
    rounds: int,
    on_round: Callable[[int], None] = lambda _: None,
) -> Mapping[str, Result]:
    """``rounds`` turns for each; who begins changes from round to round."""
    results = {contestant.engine: Result() for contestant in contestants}
    sizes: dict[str, int] = {}
    for contestant in contestants:
        typical = Latency(contestant.burst(MIN_BURST)).median
        runs = math.ceil(BURST_SECONDS * 1e3 / max(typical, 1e-3))
        sizes[contestant.engine] = min(MAX_BURST, max(MIN_BURST, runs))
    for turn in range(rounds):
        first = turn % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            results[contestant.engine].rounds.append(contestant.burst(sizes[contestant.engine]))
        on_round(turn + 1)
    return results
