"""Always-on counters of one engine; adding a run costs well under a microsecond."""

from __future__ import annotations

import resource
import sys
import threading
from collections import deque

#: Latencies kept for the median; older ones are forgotten.
WINDOW = 1024


class RunStats:
    """Latencies of an engine's runs; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._runs = 0
        self._first: float | None = None
        self._most_bytes = 0

    def add(self, seconds: float, nbytes: int = 0) -> None:
        """Record one finished run and the bytes of its results."""
        with self._lock:
            self._runs += 1
            self._most_bytes = max(self._most_bytes, nbytes)
            if self._first is None:
                self._first = seconds
            else:
                self._recent.append(seconds)

    @property
    def runs(self) -> int:
        """Finished runs so far."""
        return self._runs

    @property
    def most_bytes(self) -> int:
        """The most bytes that the results of one run took."""
        return self._most_bytes

    def snapshot(self) -> dict[str, float | int | None]:
        """Runs so far, first-run time apart, percentiles over the last ``WINDOW`` runs."""
        with self._lock:
            runs, first, recent = self._runs, self._first, sorted(self._recent)
        typical = recent or ([first] if first is not None else [])
        return {
            "runs": runs,
            "latency_ms": _percentile(typical, 50),
            "latency_p90_ms": _percentile(typical, 90),
            "latency_p99_ms": _percentile(typical, 99),
            "first_run_ms": None if first is None else first * 1e3,
        }


def _percentile(ordered: list[float], percent: int) -> float | None:
    """Nearest-rank percentile of sorted seconds, in milliseconds."""
    if not ordered:
        return None
    rank = max(0, -(-len(ordered) * percent // 100) - 1)
    return ordered[rank] * 1e3


def process_peak_mb() -> float:
    """Peak resident memory of this process, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
