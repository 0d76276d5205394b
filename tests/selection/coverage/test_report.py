"""Shares, rankings and the JSON document, from verdicts made by hand."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from typing import ClassVar

import pytest

from uif_tvm.selection.coverage.html import render
from uif_tvm.selection.coverage.instance import OpInstance
from uif_tvm.selection.coverage.report import CoverageReport, ModelCoverage, Result, Use
from uif_tvm.selection.coverage.schema import faults


def result(digest, op, verdict, ms=None, roofline=0.1, **more):
    instance = OpInstance(digest, op, 18, nodes=[f"{op}<1>"], count=1, notes=more.pop("notes", []))
    return Result(instance, verdict, ms=ms, roofline_ms=roofline, **more)


def made():
    """Two models: one has an operator that is not supported, both have one on the host."""
    results = {
        "a": result("a", "Conv", "native", ms=2.0),
        "b": result("b", "Reshape", "folded"),
        "c": result("c", "Odd", "unsupported", roofline=0.3, stage="import", reason="no converter"),
        "d": result("d", "Slow", "host", ms=1.0, reason="no-kernel"),
        "e": result("e", "If", "native", ms=50.0, notes=["body"]),
        "f": result("f", "Relu", "not-taken"),
    }
    models = [
        ModelCoverage(
            "one", "one.onnx", {"Conv": 3, "Odd": 1, "Slow": 1, "If": 1, "Reshape": 4, "Relu": 9},
            uses=[
                Use("a", 3, 3.0, ("x",)), Use("b", 4, 4.0, ()), Use("c", 1, 1.0, ()),
                Use("d", 1, 1.0, ()), Use("e", 1, 1.0, ()), Use("f", 9, 0.0, ()),
            ],
        ),
        ModelCoverage("two", "two.onnx", {"Slow": 2}, uses=[Use("d", 2, 10.0, ())]),
    ]  # fmt: skip
    return CoverageReport("cpu", 2, 1, models, results)


def test_shares_by_nodes_and_by_time():
    report = made()
    shares = report.shares(report.models[0])
    assert shares["native"]["count"] == 4
    assert shares["native"]["by_count"] == pytest.approx(0.4)  # of 10: not-taken ones left out
    assert shares["not-taken"]["by_count"] == 0
    # 3 x 2 ms measured, 1 ms on the host; Odd: 0.3 ms bound, scaled by measured over bounds.
    scale = (2.0 + 1.0 + 50.0) / 0.3
    odd = 0.3 * scale
    assert shares["unsupported"]["ms"] == pytest.approx(odd)
    assert shares["native"]["by_time"] == pytest.approx(6 / (6 + 1 + odd))


def test_coverage_leaves_out_what_does_not_run():
    report = made()
    one = report.coverage(report.models[0])
    assert one["by_count"] == pytest.approx(0.9)
    assert one["native_by_count"] == pytest.approx(0.8)
    assert report.coverage(report.models[1])["by_count"] == 1
    assert report.coverage(report.models[1])["native_by_count"] == 0


def test_a_model_without_timed_operators_has_no_share_of_time():
    report = CoverageReport(
        "cpu", 2, 1, [ModelCoverage("m", "m", uses=[Use("b", 1, 1.0, ())])],
        {"b": result("b", "Reshape", "folded")},
    )  # fmt: skip
    assert report.coverage()["by_time"] is None
    assert report.coverage()["by_count"] == 1


def test_what_blocks_most_comes_first():
    first, second = made().blockers()
    assert (first.op, first.verdict, first.models) == ("Odd", "unsupported", ("one",))
    assert (second.op, second.models, second.count) == ("Slow", ("one", "two"), 3)
    assert second.reason == "no-kernel"


def test_top_by_nodes_and_by_time():
    report = made()
    by_count = [(row[0].instance.op, row[1]) for row in report.top("count", 3)]
    assert by_count == [("Relu", 9), ("Reshape", 4), ("Conv", 3)]
    ops = [row[0].instance.op for row in report.top("time")]
    assert ops == ["Odd", "Slow", "Conv"]
    assert [row[3] for row in report.top("time")] == ["roofline", "measured", "measured"]


def test_right_is_about_faults_and_not_about_support():
    report = made()
    assert report.right
    report.results["a"].verdict = "failed"
    assert not report.right


def test_operators_by_kind():
    rows = {row.op: row for row in made().operators()}
    assert rows["Slow"].verdicts == {"host": 3}
    assert rows["Conv"].count == 3
    assert sum(row.share for row in rows.values()) == pytest.approx(1)


def test_the_document_is_well_formed_and_survives_json():
    document = made().to_json()
    assert faults(document) == []
    assert faults(json.loads(json.dumps(document))) == []
    assert document["summary"]["models"] == 2


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda d: d.pop("target"), "report.target is missing"),
        (lambda d: d["models"][0].update(name=3), "report.models[0].name is int"),
        (lambda d: d["instances"][1].update(extra=1), "report.instances[1].extra is not known"),
        (lambda d: d["summary"].update(nodes="4"), "report.summary.nodes is str"),
        (lambda d: d["models"][0]["uses"][0].pop("calls"), "uses[0].calls is missing"),
    ],
)
def test_a_spoilt_document_is_found_out(spoil, fault):
    document = copy.deepcopy(made().to_json())
    spoil(document)
    assert any(fault in line for line in faults(document))


def test_the_page_is_well_formed_and_replaces_an_older_one(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    made().write_html(path)

    class Balanced(HTMLParser):
        open_tags: ClassVar[list[str]] = []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "input", "br"):
                self.open_tags.append(tag)

        def handle_endtag(self, tag):
            assert self.open_tags.pop() == tag

    parser = Balanced()
    parser.feed(path.read_text())
    assert parser.open_tags == []


def test_the_page_stands_alone_and_escapes_names():
    report = made()
    report.models[0].name = "<script>alert(1)</script>"
    page = render(report)
    assert "<script>alert" not in page
    assert "http" not in page.replace("https://www.w3.org", "")
    for op in ("Conv", "Odd", "Slow"):
        assert op in page
    assert page.count("<table") == page.count("</table>") == 4
