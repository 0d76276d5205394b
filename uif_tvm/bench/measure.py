"""Repeated calls, timed one by one, and what their distribution looks like."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from uif_tvm.errors import UsageError

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Latency:
    """Latencies of single calls, milliseconds, in the order they were taken."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise UsageError("no call was measured", code="UIF-USAGE-BENCH")

    def percentile(self, q: float) -> float:
        """The ``q``-th percentile (0-100), interpolated between neighbouring samples."""
        ordered = sorted(self.samples)
        position = (len(ordered) - 1) * q / 100
        low = math.floor(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    @property
    def median(self) -> float:
        """Half of the calls were faster."""
        return self.percentile(50)

    def to_json(self) -> dict[str, float | int]:
        """Percentiles, extremes, mean and spread, milliseconds."""
        mean = sum(self.samples) / len(self.samples)
        variance = sum((sample - mean) ** 2 for sample in self.samples) / len(self.samples)
        return {
            "runs": len(self.samples),
            "mean": mean,
            "std": math.sqrt(variance),
            "min": min(self.samples),
            "max": max(self.samples),
            **{f"p{q}": self.percentile(q) for q in PERCENTILES},
        }


def time_call(call: Callable[[], object]) -> float:
    """Milliseconds that one ``call()`` takes."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e6


def sample(
    call: Callable[[], object],
    *,
    runs: int | None = None,
    seconds: float | None = None,
    warmup: int = 3,
    min_runs: int = 10,
    on_run: Callable[[int], None] | None = None,
) -> Latency:
    """Time ``call`` again and again, the first ``warmup`` calls thrown away.

    Args:
        call: what to measure.
        runs: exactly so many measured calls; or
        seconds: as many as fit in so much time, at least ``min_runs``.
        warmup: calls beforehand that do not count.
        min_runs: see ``seconds``.
        on_run: told the number of measured calls so far, outside of the timed part.
    """
    if (runs is None) == (seconds is None):
        raise UsageError("give either runs or seconds", code="UIF-USAGE-BENCH")
    for _ in range(warmup):
        call()
    samples: list[float] = []
    with _no_garbage_collection():
        end = time.perf_counter() + (seconds or 0.0)
        while len(samples) < (runs or min_runs) or (runs is None and time.perf_counter() < end):
            samples.append(time_call(call))
            if on_run is not None:
                on_run(len(samples))
    return Latency(tuple(samples))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a call would be counted as the engine's."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    if not values:
        raise UsageError("geometric mean of nothing", code="UIF-USAGE-BENCH")
    return math.exp(sum(math.log(value) for value in values) / len(values))
