"""The arithmetic of the comparison, and one small run of the whole of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.cli.conftest import save_linear
from uif_tvm.bench import machine, models, peers
from uif_tvm.errors import RunError


def row(engine, median, model="m", threads=1, error=None):
    body = {"model": model, "threads": threads, "engine": engine, "error": error}
    return body | {"median_ms": median, "min_ms": median, "round_medians_ms": [median, 2 * median]}


def test_ratios_are_to_the_best_peer():
    rows = peers.with_ratios([row("uif", 6.0), row("onnxruntime", 4.0), row("openvino", 5.0)])
    ours, ort, ov = rows
    assert ours["ratio_to_best"] == 1.5
    assert ours["best_peer"] == "onnxruntime"
    assert ours["ratio_to"] == {"onnxruntime": 1.5, "openvino": 1.2}
    assert ours["ratio_p10"] == ours["ratio_p90"] == 1.5
    assert (ort["ratio_to_best"], ov["ratio_to_best"]) == (1.0, 1.25)


def test_rows_without_times_or_peers_get_no_ratio():
    failed = {"engine": "uif", "error": "boom", "model": "m", "threads": 1}
    assert "ratio_to_best" not in peers.with_ratios([failed, row("openvino", 1.0)])[0]
    assert "ratio_to_best" not in peers.with_ratios([row("uif", 1.0)])[0]


def test_summary_counts_only_right_answers():
    rows = [
        *peers.with_ratios([row("uif", 2.0, "a"), row("openvino", 1.0, "a")]),
        *peers.with_ratios([row("uif", 1.0, "b", 2), row("openvino", 2.0, "b", 2)]),
        *peers.with_ratios([row("uif", 0.1, "c", error="wrong"), row("openvino", 9.0, "c")]),
    ]
    assert peers.summarise(rows) == {
        "geomean_vs_best": 1.0,
        "worst_model": "a",
        "worst_threads": 1,
        "worst_ratio": 2.0,
        "measured": 2,
        "failed": 1,
    }
    assert peers.summarise([])["geomean_vs_best"] is None


@pytest.fixture
def tiny_model(monkeypatch, tmp_path):
    """Stand the small linear model in for a network of the list."""
    path = save_linear(tmp_path / "linear.onnx")
    monkeypatch.setattr(models, "onnx_file", lambda name, folder: path)
    monkeypatch.setattr(models, "feed", lambda name: {"x": np.ones((2, 4), np.float32)})
    peak = machine.Peak({1: 100.0}, 32)
    monkeypatch.setattr(machine, "measure_peak", lambda threads: peak)


def run(tmp_path, *options):
    (tmp_path / "work").mkdir(exist_ok=True)
    report = tmp_path / "reports" / "bench.json"
    arguments = ["--models", "minilm_l6_128", "--threads", "1", "--rounds", "2"]
    places = ["--work-dir", str(tmp_path / "work"), "--report", str(report)]
    result = CliRunner().invoke(peers.main, [*arguments, *places, *options])
    return result, json.loads(report.read_text()) if report.exists() else None


def test_whole_comparison(tiny_model, tmp_path):
    result, body = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert [r["engine"] for r in body["rows"]] == ["uif", "onnxruntime", "openvino"]
    for entry in body["rows"]:
        assert {"model", "threads", "engine", "median_ms", "ratio_to_best"} <= set(entry)
        assert entry["max_abs_diff"] < 1e-5
    ours = body["rows"][0]
    assert body["summary"]["worst_ratio"] == ours["ratio_to_best"]
    assert body["summary"]["worst_model"] == "minilm_l6_128"
    assert body["machine"]["fma_peak_gflops"] == {"1": 100.0}
    assert "geometric mean" in result.stdout


def test_wrong_outputs_fail_the_run(tiny_model, tmp_path, monkeypatch):
    verdict = ({"onnxruntime": 0.0, "openvino": 0.5}, {"openvino": "outputs differ by 0.5"})
    monkeypatch.setattr(peers, "agree", lambda contestants, scratch: verdict)
    result, body = run(tmp_path, "--engines", "onnxruntime openvino")
    assert result.exit_code == 1
    assert body["summary"]["failed"] == 1
    assert body["rows"][1]["error"] == "outputs differ by 0.5"
    assert "differ" in result.stdout


def test_a_death_in_the_middle_is_a_row_not_a_crash(tiny_model, tmp_path, monkeypatch):
    def die(contestants, rounds):
        raise RunError("openvino died with code -11")

    monkeypatch.setattr(peers, "take_turns", die)
    result, body = run(tmp_path, "--engines", "onnxruntime openvino")
    assert result.exit_code == 1
    assert body["summary"]["failed"] == 2
    assert all("died with code -11" in entry["error"] for entry in body["rows"])


class Canned:
    """A contestant whose outputs are given."""

    def __init__(self, engine, *arrays):
        self.engine, self.arrays = engine, arrays

    def ask(self, do, file):
        assert do == "outputs"
        np.savez(file, **{f"out{i}": array for i, array in enumerate(self.arrays)})
        return {}


def test_agreement_is_judged_against_the_first_peer(tmp_path):
    reference = np.array([[1.0, 100.0]], np.float32)
    contestants = [
        Canned("uif", reference + np.float32(0.005)),
        Canned("onnxruntime", reference),
        Canned("openvino", reference * np.float32(1.1)),
    ]
    differences, wrong = peers.agree(contestants, tmp_path)
    assert differences["uif"] == pytest.approx(0.005, rel=1e-2)
    assert list(wrong) == ["openvino"]
    assert "up to 10" in wrong["openvino"]
    shape = Canned("uif", reference[0])
    assert "shapes" in peers.agree([shape, contestants[1]], tmp_path)[1]["uif"]


def test_not_a_number_never_agrees(tmp_path):
    bad = Canned("uif", np.array([np.nan, 1.0], np.float32))
    good = Canned("onnxruntime", np.array([1.0, 1.0], np.float32))
    assert "uif" in peers.agree([bad, good], tmp_path)[1]


def test_usage_mistakes(tmp_path):
    unknown = CliRunner().invoke(peers.main, ["--models", "alexnet"])
    assert unknown.exit_code == 2
    assert "resnet50" in unknown.output
