"""``uif bench``: the shape of its report; what it says of time is not tested."""

from __future__ import annotations

import json

import numpy as np

from .conftest import invoke


def test_json(compiled):
    result = invoke("bench", compiled, "--runs", "7", "--warmup", "2", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert (body["schema"], body["schema_version"]) == ("uif.bench", 1)
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
