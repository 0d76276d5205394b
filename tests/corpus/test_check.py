"""The corpus runner on a small corpus of its own: right, unsupported, wrong and damaged models."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import WILD_NAME, save_linear
from tests.corpus import check

ROOT = Path(__file__).parents[2]


def entry(name: str, model: Path, cache: Path, io: str) -> dict[str, object]:
    """A corpus entry whose model already lies in the cache."""
    place = cache / "local" / f"{name}.onnx"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(model.read_bytes())
    return {
        "id": name,
        "package": "local",
        "version": "1",
        "file": place.name,
        "sha256": hashlib.sha256(place.read_bytes()).hexdigest(),
        "quantised": False,
        "cases": {"A": {"io": io, "reference_noise": 0.0}},
    }


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("UIF_CORPUS_DIR", str(cache))
    linear = save_linear(tmp_path / "linear.onnx")
    x = np.ones((2, 4), np.float32)
    names = {"inputs": ["x"], "outputs": ["y", WILD_NAME]}
    np.savez(tmp_path / "in.npz", meta=json.dumps(names), in0=x)
    off = np.full((2, 3), 1e3, np.float32)
    np.savez(tmp_path / "off.npz", meta=json.dumps(names), in0=x, out0=off, out1=off)
    np.savez(
        tmp_path / "one.npz", meta=json.dumps({"inputs": ["x"], "outputs": ["y"]}), in0=x, out0=x
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mystery", ["x"], ["y"], domain="acme")],
        "g",
        [value("x", TensorProto.FLOAT, [2, 4])],
        [value("y", TensorProto.FLOAT, [2, 4])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    strange = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(strange, tmp_path / "mystery.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"\x00junk")
    rows = [
        entry("good", linear, cache, "in.npz"),
        entry("off", linear, cache, "off.npz"),
        entry("mystery", tmp_path / "mystery.onnx", cache, "one.npz"),
        entry("junk", tmp_path / "junk.onnx", cache, "one.npz"),
    ]
    path = tmp_path / "corpus.json"
    path.write_text(json.dumps(rows))
    return path


def test_statuses(corpus, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.corpus.check", "--corpus", str(corpus)]
    done = subprocess.run(
        [*command, "--levels", "2", "--report", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    body = json.loads(report.read_text())
    rows = {row["id"]: row for row in body["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "good": "right",
        "off": "wrong",
        "mystery": "unsupported",
        "junk": "error",
    }
    assert all(
        set(row) >= {"id", "case", "level", "status", "stage", "message"} for row in rows.values()
    )
    assert "Mystery" in rows["mystery"]["message"]
    assert rows["junk"]["stage"] == "import"
    summary = body["summary"]
    assert (summary["right"], summary["total"], summary["honest"]) == (1, 4, 2)


@pytest.fixture
def open_corpus(tmp_path, monkeypatch):
    """A model with an open batch, and cases of two sizes of it."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("UIF_CORPUS_DIR", str(cache))
    row = entry("open", save_linear(tmp_path / "l.onnx", batch="batch"), cache, "A.npz")
    names = {"inputs": ["x"], "outputs": ["y"]}
    for case, size in (("A", 2), ("B", 5)):
        x = np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)
        np.savez(tmp_path / f"{case}.npz", meta=json.dumps(names), in0=x)
        row["cases"][case] = {"io": f"{case}.npz", "reference_noise": 0.0}
    path = tmp_path / "corpus.json"
    path.write_text(json.dumps([row]))
    return path


@pytest.mark.parametrize("mode", ["dynamic", "auto"])
def test_one_file_must_be_right_for_all_cases(open_corpus, mode):
    rows = check.check_all(json.loads(open_corpus.read_text()), open_corpus, [0, 2], [mode])
    assert [(row["case"], row["level"], row["mode"]) for row in rows] == [
        (case, level, mode) for level in (0, 2) for case in "AB"
    ]
    assert {row["status"] for row in rows} == {"right"}, rows
    assert check.summarise(rows)["by_mode"][mode]["right"] == 4


def test_models_of_one_case_have_no_open_axes_to_check(corpus):
    rows = json.loads(corpus.read_text())[:1]
    assert check.check_all(rows, corpus, [2], ["dynamic", "auto"]) == []


def test_a_crash_is_a_row(corpus, monkeypatch):
    monkeypatch.setattr(check.sys, "executable", "/bin/false")
    (row,) = check.isolated(corpus, "good", ["A"], 2)
    assert row["status"] == "crash"
    assert "exit code 1" in row["message"]


def test_shipped_list_is_complete():
    rows = json.loads((check.HERE / "corpus.json").read_text())
    assert len({row["id"] for row in rows}) == len(rows) >= 38
    for row in rows:
        for case in row["cases"].values():
            with np.load(check.HERE / case["io"], allow_pickle=False) as archive:
                names = json.loads(str(archive["meta"]))
                assert {f"in{i}" for i in range(len(names["inputs"]))} <= set(archive.files)
