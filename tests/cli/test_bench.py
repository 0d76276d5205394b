"""``uif bench``: the shape of its report; what it says of time is not tested."""

from __future__ import annotations

import json
import re

import numpy as np

from .conftest import invoke


def test_json(compiled):
    result = invoke("bench", compiled, "--runs", "7", "--warmup", "2", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert (body["schema"], body["schema_version"]) == ("uif.bench", 2)
    latency = body["latency_ms"]
    assert latency["runs"] == 7
    assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"]
    assert latency["p99"] <= latency["max"]
    assert body["warmup_runs"] == 2
    assert body["threads"] == 1
    assert body["made_up_inputs"] == ["x"]
    assert body["first_run_ms"] > 0
    assert body["load_ms"] > 0
    assert body["peak_memory_mb"] > 0
    assert body["stats"]["runs"] == 1 + 2 + 7
    assert not [key for key in body["stats"] if "latency" in key]


def test_threads_are_those_that_ran(compiled, monkeypatch):
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = json.loads(invoke("bench", compiled, "--runs", "1", "--json").stdout)
    assert shown["threads"] == 1
    text = invoke("bench", compiled, "--runs", "1", "--warmup", "1")
    assert re.search(r"^  threads +1$", text.stdout, re.MULTILINE)
    assert re.search(r"1 after 1 warm-up run$", text.stdout, re.MULTILINE)
    assert re.search(r"^  peak memory +\S+ MiB$", text.stdout, re.MULTILINE)


def test_far_too_many_threads(compiled):
    result = invoke("bench", compiled, "--threads", "100000")
    assert result.exit_code == 2
    assert "UIF-USAGE-THREADS" in result.stderr


def test_text(compiled, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    result = invoke("bench", compiled, "--seconds", "0.05", "--input", f"x=@{tmp_path}/x.npy")
    assert result.exit_code == 0, result.output
    for word in ("median", "p90 / p99", "first run", "load", "peak memory"):
        assert word in result.stdout
    assert "made-up" not in result.stdout


def test_refusals(compiled, tmp_path):
    both = invoke("bench", compiled, "--runs", "1", "--seconds", "1")
    assert both.exit_code == 2
    assert "either --runs or --seconds" in both.stderr
    shape = invoke("bench", compiled, "--input-shape", "x=3,4")
    assert shape.exit_code == 2
    assert "contradicts" in shape.stderr
    assert invoke("bench", tmp_path / "missing.uif").exit_code == 4
