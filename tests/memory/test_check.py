"""The memory report on a small model, and what makes it fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.memory import check
from tests.memory.subjects import COMPARED, Subject, find, names


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Three convolutions with a residual: what a plan can share is known."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), f"w{i}")
        for i in range(3)
    ]
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], **pads),
        helper.make_node("Conv", ["a", "w1"], ["b"], **pads),
        helper.make_node("Conv", ["b", "w2"], ["c"], **pads),
        helper.make_node("Add", ["a", "c"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"], axis=1),
    ]
    shape = [1, 8, 20, 20]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, shape)], [info("y", 1, shape)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path_factory.mktemp("memory") / "m.onnx"
    onnx.save(model, str(path))
    return Subject(str(path), {"x": rng.standard_normal(shape).astype(np.float32)}, path)


@pytest.mark.parametrize("level", [2, 3])
def test_a_measured_model_is_within_its_bounds(subject: Subject, level: int) -> None:
    row = check.measure(subject, level)
    one = 4 * 8 * 20 * 20
    # Of three convolutions around one residual two results live at once, and nothing lives alone.
    assert 2 * one <= row["bound_bytes"] <= row["arena_bytes"] <= 1.1 * row["bound_bytes"]
    assert row["tvm_bytes"] >= row["bound_bytes"]
    assert row["planned_peak"] >= row["arena_bytes"] + one
    assert row["measured_peak"] == pytest.approx(row["planned_peak"], rel=0.05)
    assert 3 <= row["kernels"] <= 6


def row(**changes: Any) -> dict[str, Any]:
    made = {
        "model": COMPARED[0], "level": 2, "status": "measured", "message": "", "methods": [],
        "arena_bytes": 1024, "bound_bytes": 1024, "tvm_bytes": 2048, "ort_bytes": None,
        "planned_peak": 2000, "measured_peak": 2000, "kernels": 50,
        "peers": {"onnxruntime": {"nodes": 58}, "openvino": {"nodes": 57}},
    }  # fmt: skip
    return made | changes


def test_a_good_report_is_within_the_goals() -> None:
    summary = check.summarise([row(), row(level=3, arena_bytes=1040)])
    assert check.within_goals(summary)
    assert summary["arena_over_bound_worst"] == pytest.approx(1040 / 1024)
    assert summary["tvm_over_arena_geomean"] == pytest.approx(2 * (1024 / 1040) ** 0.5)
    assert summary["ort_over_arena_geomean"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"arena_bytes": 1200},
        {"arena_bytes": 1050},
        {"bound_bytes": 0},
        {"measured_peak": 2200},
        {"kernels": 58},
        {"peers": {"onnxruntime": {"nodes": 58}, "openvino": {"error": "no"}}},
        {"status": "failed", "arena_bytes": None},
    ],
)
def test_what_misses_a_goal_fails(changes: dict[str, Any]) -> None:
    assert not check.within_goals(check.summarise([row(**changes)]))


def test_other_models_may_have_more_kernels_than_peers() -> None:
    assert not check.outnumbers(row(model="corpus:x/A", kernels=100))


def test_a_model_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TIMEOUT", 120)
    failed = check.isolated("bench:no_such_model", 2)
    assert failed["status"] == "failed"
    assert "no_such_model" in failed["message"]
    joined = check.joined("bench:no_such_model", 2, failed, {})
    assert check.summarise([joined])["failed"] == ["bench:no_such_model -O2"]


def test_the_report_covers_corpus_architectures_and_benchmarks() -> None:
    found = names()
    assert set(COMPARED) <= set(found)
    assert sum(name.startswith("corpus:") for name in found) > 60
    assert sum(name.startswith("arch:") for name in found) > 30
    module = find("arch:bert")
    assert module.onnx is None


def test_the_table_shows_every_row() -> None:
    made = check.table([row(), check.joined("m", 2, {"status": "failed", "message": "no"}, {})])
    assert made.row_count == 2
