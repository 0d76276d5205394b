"""The README says what the reports say."""

from __future__ import annotations

import json

import pytest

from tests.coverage import table


def test_the_readme_shows_the_results_as_they_are_kept():
    results = json.loads(table.RESULTS.read_text(encoding="utf-8"))
    readme = table.README.read_text(encoding="utf-8")
    assert table.updated(readme, table.render(results)) == readme, "run make coverage-table"


def test_reports_replace_results_and_missing_ones_leave_them(tmp_path):
    kept = {"cases": {"right": 1, "total": 2, "date": "2020-01-01"}}
    report = {"summary": {"passed": 9996, "total": 10000, "ort_passed": 5, "rows": []}}
    (tmp_path / "onnx-backend.json").write_text(json.dumps(report))
    results = table.collect(tmp_path, kept, "2021-01-01")
    assert results["cases"]["date"] == "2020-01-01"
    assert results["onnx-backend"] == {
        "passed": 9996,
        "total": 10000,
        "ort_passed": 5,
        "date": "2021-01-01",
    }
    text = table.render(results)
    assert "9996 of 10000 | 99.9% | ONNX Runtime in the same run: 5" in text


def test_a_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match="has no"):
        table.updated("text", "table")
