"""Sampling and statistics; no test here depends on how fast anything is."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.bench.measure import Latency, geomean, sample
from uif_tvm.errors import UsageError

positive = st.floats(1e-3, 1e6)


@given(st.lists(positive, min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(samples, q):
    assert Latency(tuple(samples)).percentile(q) == pytest.approx(np.percentile(samples, q))


@given(st.lists(positive, min_size=1, max_size=50))
def test_json_is_ordered_and_complete(samples):
    body = Latency(tuple(samples)).to_json()
    assert body["runs"] == len(samples)
    assert body["min"] <= body["p50"] <= body["p90"] <= body["p99"] <= body["max"]
    assert body["mean"] == pytest.approx(np.mean(samples))
    assert body["std"] == pytest.approx(np.std(samples), abs=1e-6 * max(samples))


def test_counts_calls_and_leaves_warmup_out():
    calls: list[int] = []
    seen: list[int] = []
    latency = sample(lambda: calls.append(1), runs=5, warmup=2, on_run=seen.append)
    assert len(calls) == 7
    assert len(latency.samples) == 5
    assert seen == [1, 2, 3, 4, 5]


def test_by_time_still_takes_the_least_number():
    assert len(sample(lambda: None, seconds=1e-9, min_runs=4).samples) == 4


def test_collector_is_off_while_measuring_and_on_again_afterwards():
    states: list[bool] = []
    sample(lambda: states.append(gc.isenabled()), runs=2, warmup=0)
    assert states == [False, False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        sample(lambda: 1 // 0, runs=1, warmup=0)
    assert gc.isenabled()


def test_refusals():
    for kwargs in ({}, {"runs": 1, "seconds": 1.0}):
        with pytest.raises(UsageError, match="either"):
            sample(lambda: None, **kwargs)
    with pytest.raises(UsageError, match="no call"):
        Latency(())
    with pytest.raises(UsageError, match="nothing"):
        geomean([])


@given(st.lists(positive, min_size=1, max_size=20))
def test_geomean(values):
    assert geomean(values) == pytest.approx(math.exp(np.mean(np.log(values))))
