"""Counters: percentiles by nearest rank, the first run apart, a bounded memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.runtime.stats import WINDOW, RunStats, process_peak_mb

seconds = st.floats(1e-6, 10)


@given(st.lists(seconds, min_size=2, max_size=50))
def test_percentiles_are_values_that_occurred(times):
    stats = RunStats()
    for value in times:
        stats.add(value)
    seen = stats.snapshot()
    later = np.array(times[1:])
    for key, percent in (("latency_ms", 50), ("latency_p90_ms", 90), ("latency_p99_ms", 99)):
        want = np.percentile(later, percent, method="inverted_cdf") * 1e3
        assert seen[key] == want
    assert seen["first_run_ms"] == times[0] * 1e3
    assert seen["runs"] == len(times)


def test_empty():
    assert RunStats().snapshot() == {
        "runs": 0,
        "latency_ms": None,
        "latency_p90_ms": None,
        "latency_p99_ms": None,
        "first_run_ms": None,
    }


def test_only_the_first_run():
    stats = RunStats()
    stats.add(0.5)
    assert stats.snapshot()["latency_ms"] == stats.snapshot()["first_run_ms"] == 500


def test_old_latencies_are_forgotten_but_runs_are_counted():
    stats = RunStats()
    for _ in range(10):
        stats.add(100.0)
    for _ in range(WINDOW):
        stats.add(0.001)
    assert stats.snapshot()["latency_p99_ms"] == 1.0
    assert stats.snapshot()["runs"] == 10 + WINDOW


def test_threads_lose_nothing():
    stats = RunStats()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(stats.add, [0.001] * 4000))
    assert stats.snapshot()["runs"] == 4000


def test_process_peak_is_what_the_system_counts():
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    kib = int(fields["VmHWM"].split()[0])
    assert process_peak_mb() == pytest.approx(kib / 1024, rel=0.05)
