"""The report: data first, and all of it plain."""

from __future__ import annotations

import json

import pytest

from uif_tvm.compiler.report import KernelChoice, Placement, ReportBuilder


def test_finish_is_plain_data_with_the_header_first():
    report = ReportBuilder()
    report.decide("fuse", "conv", True, "because", 1.5)
    report.decide("fuse", "pool", False, "too large")
    report.kernels.append(KernelChoice("k", ("a", "b"), "generic", "generic", declined=("x: y",)))
    report.placements.append(Placement("conv", "native", 3))
    report.passes.append("fuse")
    report.memory["weights"] = 12
    report.notes.append("note")
    data = report.finish(target="cpu", uif="1")
    assert list(data)[:2] == ["target", "uif"]
    again = json.loads(json.dumps(data))
    assert again["decisions"][0] == {
        "pass_name": "fuse",
        "subject": "conv",
        "fired": True,
        "reason": "because",
        "gain_us": 1.5,
        "bytes_saved": 0.0,
        "launches_saved": 0.0,
        "flops_saved": 0.0,
        "basis": "",
    }
    assert again["decisions"][1]["gain_us"] is None
    assert again["kernels"][0]["ops"] == ["a", "b"]
    assert again["placement"] == [
        {"op": "conv", "where": "native", "count": 3, "reason": "", "estimated_us": 0.0}
    ]
    assert (again["passes"], again["notes"]) == (["fuse"], ["note"])
    assert again["memory"] == {"weights": 12}


def test_finish_is_a_copy():
    report = ReportBuilder()
    data = report.finish()
    data["notes"].append("x")
    assert report.notes == []


def test_time_adds_up_also_when_the_body_fails():
    report = ReportBuilder()
    with report.timed("a"):
        pass
    first = report.seconds["a"]
    with pytest.raises(KeyError), report.timed("a"):
        raise KeyError
    assert report.seconds["a"] > first >= 0
