"""Whole runs in worker processes: verdicts, failures of every kind, reproducers, rankings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import uif_tvm
from tests.selection import onnx_models as models
from tests.selection.plugin import install
from uif_tvm.errors import ImportModelError, TargetError, UsageError
from uif_tvm.selection.coverage.report import ModelCoverage
from uif_tvm.selection.coverage.run import _tell_apart
from uif_tvm.selection.coverage.schema import faults
from uif_tvm.target.registry import list_targets

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two good models and one with an operator nobody knows, against ONNX Runtime."""
    folder = tmp_path_factory.mktemp("fleet")
    paths = [
        models.save(models.classifier(), folder, "good.onnx"),
        models.save(models.classifier(custom=True), folder, "custom.onnx"),
        models.save(models.branching(), folder, "branching.onnx"),
    ]
    steps = []
    report = uif_tvm.coverage(
        [str(path) for path in paths],
        inputs=[None, None, {"x": np.ones(4, np.float32)}],
        against=["onnxruntime"],
        jobs=1,
        reproducers=folder / "failures",
        progress=lambda *step: steps.append(step),
    )
    return report, folder, steps


def only(report, op):
    (result,) = [r for r in report.results.values() if r.instance.op == op]
    return result


def test_every_instance_has_a_verdict(fleet):
    report, _, steps = fleet
    wobble = only(report, f"{models.VENDOR}::Wobble")
    assert (wobble.verdict, wobble.stage) == ("unsupported", "import")
    assert only(report, "Exp").verdict == "native"
    assert only(report, "If").checked == "values"
    others = {r.verdict for r in report.results.values()} - {"unsupported"}
    assert others == {"native", "folded", "removed"}
    assert report.right
    assert faults(report.to_json()) == []
    assert ("trying operators", len(report.results), len(report.results)) in steps


def test_instances_are_tried_once_for_all_models(fleet):
    report, _, _ = fleet
    product = only(report, "MatMul")
    assert product.instance.count == 4
    used = [model.name for model, use in report.uses() if use.digest == product.instance.digest]
    assert used == ["good", "custom"]


def test_coverage_of_each_model(fleet):
    report, _, _ = fleet
    good, custom, branching = report.models
    assert report.coverage(good)["by_count"] == 1
    assert report.coverage(custom)["by_count"] == pytest.approx(11 / 12)
    assert report.coverage(branching)["by_count"] == 1
    (blocker,) = report.blockers()
    assert (blocker.op, blocker.models) == (f"{models.VENDOR}::Wobble", ("custom",))


def test_peers_take_the_same_instances(fleet):
    report, _, _ = fleet
    assert only(report, "Exp").peers["onnxruntime"]["status"] == "right"
    assert only(report, "Exp").peers["onnxruntime"]["ms"] > 0
    wobble = only(report, f"{models.VENDOR}::Wobble").peers["onnxruntime"]
    assert wobble["status"] == "unsupported"
    assert "Wobble" in wobble["detail"]


def test_the_reproducer_shows_the_failure_alone(fleet):
    report, folder, _ = fleet
    place = Path(only(report, f"{models.VENDOR}::Wobble").reproducer)
    assert place.parent == folder / "failures"
    (other,) = (folder / "failures").iterdir()
    assert other == place
    proto = onnx.load(place / "model.onnx")
    assert [node.op_type for node in proto.graph.node] == ["Wobble"]
    about = json.loads((place / "about.json").read_text())
    assert (about["verdict"], about["stage"]) == ("unsupported", "import")
    done = subprocess.run(
        [sys.executable, place / "repro.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "UIF-IMPORT-UNSUPPORTED" in done.stderr


def test_a_target_that_refuses_an_operator(tmp_path, monkeypatch):
    """The refusal of a vendor's target is found by asking it, in the workers too."""
    place = install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(ROOT)]))
    monkeypatch.syspath_prepend(str(place))
    list_targets.cache_clear()
    try:
        path = models.save(models.classifier(), tmp_path)
        report = uif_tvm.coverage(
            str(path), target="picky", jobs=1, reproducers=tmp_path / "failures"
        )
    finally:
        list_targets.cache_clear()
    softmax = only(report, "Softmax")
    assert softmax.verdict in ("unsupported", "host", "composed")
    assert "no-exp" in softmax.reason or "exponential" in softmax.reason
    assert only(report, "MatMul").verdict == "native"
    if softmax.verdict == "unsupported":
        assert "TARGET = 'picky'" in Path(softmax.reproducer, "repro.py").read_text()


def test_models_of_one_name_are_told_apart():
    entries = [ModelCoverage("model", f"/m/{f}/model.onnx") for f in ("a", "b", "b")]
    _tell_apart([*entries, ModelCoverage("other", "/m/other.onnx")])
    assert [entry.name for entry in entries] == ["a/model", "b/model#2", "b/model#3"]


def test_programs_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.drop = torch.nn.Dropout()

        def forward(self, x, i):
            y = torch.relu(self.linear(self.drop(x)))
            values, _ = torch.topk(y, 2)
            return torch.arange(4)[i] + values, torch.relu(y)

    example = (torch.randn(2, 4), torch.tensor([1, -1]))
    program = torch.export.export(Net().eval(), example)
    torch.export.save(program, tmp_path / "net.pt2")
    report = uif_tvm.coverage(tmp_path / "net.pt2", jobs=1, reproducers=None)
    ops = {row.op: row for row in report.operators()}
    assert ops["aten.relu.default"].count == 2
    assert ops["aten.relu.default"].instances == 1
    assert ops["aten.arange.start_step"].verdicts == {"folded": 1}
    assert ops["aten.topk.default"].verdicts == {"native": 1}
    assert report.coverage()["by_count"] == 1
    linear = only(report, "aten.linear.default")
    assert [info.role for info in linear.instance.inputs] == ["input", "constant", "constant"]
    assert linear.instance.flops == 2 * 2 * 4 * 4
    assert linear.checked == "values"


def test_several_models_of_which_one_cannot_be_read(tmp_path):
    good = models.save(models.with_function(), tmp_path, "good.onnx")
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    report = uif_tvm.coverage([good, bad], jobs=1, reproducers=None)
    assert [bool(model.error) for model in report.models] == [False, True]
    assert report.models[1].error["code"] == "UIF-IMPORT-PARSE"
    assert not report.right
    assert report.coverage()["by_count"] == 1
    with pytest.raises(ImportModelError, match="not an ONNX model"):
        uif_tvm.coverage(bad, jobs=1)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"models": []}, UsageError, "at least one model"),
        ({"models": "m.txt"}, UsageError, "cannot tell what"),
        ({"models": "missing.onnx"}, ImportModelError, "does not exist"),
        ({"target": "nosuch"}, TargetError, "no target 'nosuch'"),
        ({"against": ["tensorflow"]}, UsageError, "no engine 'tensorflow'"),
        ({"jobs": 0}, UsageError, "jobs must be"),
        ({"time_limit": 0}, UsageError, "time_limit must be"),
        ({"optimize_level": 9}, UsageError, "optimize_level must be"),
        ({"inputs": [None, None]}, UsageError, "2 sets of inputs for 1 models"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options, error, text, tmp_path):
    path = models.save(models.classifier(), tmp_path)
    with pytest.raises(error, match=text):
        uif_tvm.coverage(**({"models": str(path)} | options))
