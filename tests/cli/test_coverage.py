"""``uif coverage`` as users type it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.conftest import invoke, save_linear
from tests.selection import onnx_models as models
from uif_tvm.selection.coverage.schema import faults


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A model that runs, and one with an operator that nobody knows."""
    folder = tmp_path_factory.mktemp("two")
    good = save_linear(folder / "good.onnx")
    return folder, good, models.save(models.classifier(custom=True), folder, "custom.onnx")


@pytest.fixture(scope="module")
def text(two):
    folder, good, custom = two
    return invoke(
        "coverage", good, custom, "--jobs", "1", "--reproducers", folder / "bad",
        "--html", folder / "page.html", "--against", "onnxruntime", "--fail-on", "unsupported",
    )  # fmt: skip


def test_the_text_says_what_runs_and_what_blocks(text, two):
    said = text.stdout
    for line in ("good", "custom", "all", "MatMul", "native", "100%"):
        assert line in said
    assert "what blocks most models" in said
    assert "unsupported at import: test.vendor::Wobble(float32[2,8]) strength=3" in said
    assert "node wobble" in said
    assert f"reproducer: {two[0] / 'bad'}" in said
    assert "other engines on the same instances" in said
    assert "onnxruntime unsupported (ours: unsupported): test.vendor::Wobble" in said


def test_unsupported_operators_fail_where_they_must_not_be(text):
    assert text.exit_code == 3


def test_the_page_is_written(text, two):
    page = (two[0] / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Wobble" in page
    assert f"wrote {two[0] / 'page.html'}" in text.stdout


def test_json_is_one_well_formed_document(two):
    folder, _, custom = two
    result = invoke("coverage", custom, "--jobs", "1", "--no-reproducers", "--json")
    assert result.exit_code == 0  # not supported, but told so; nothing is wrong
    document = json.loads(result.stdout)
    assert document.pop("schema") == "uif.coverage"
    assert document.pop("schema_version") >= 1
    assert faults(document) == []
    assert document["summary"]["verdicts"]["unsupported"]["count"] == 1
    assert not list(folder.glob("uif-coverage-failures"))


def test_open_shapes_are_given_as_in_export(tmp_path):
    path = save_linear(tmp_path / "open.onnx", batch="batch")
    result = invoke("coverage", path)
    assert result.exit_code == 2
    assert "--input-shape 'x=1,4'" in result.stderr
    result = invoke("coverage", path, "--input-shape", "x=3,4", "--jobs", "1", "--json")
    assert result.exit_code == 0
    assert "float32[3,4]" in result.stdout


def test_inputs_of_one_of_several_models(tmp_path):
    first = save_linear(tmp_path / "first.onnx", batch="batch")
    second = save_linear(tmp_path / "second.onnx", batch="batch")
    np.save(tmp_path / "x.npy", np.ones((7, 4), np.float32))
    result = invoke(
        "coverage", first, second, "--input-shape", "x=3,4", "--input",
        f"second:x=@{tmp_path / 'x.npy'}", "--jobs", "1", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    shapes = [model["inputs"]["x"][1] for model in json.loads(result.stdout)["models"]]
    assert shapes == [[3, 4], [7, 4]]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["missing.onnx"], 2, "missing.onnx"),
        (["{good}", "--target", "nosuch"], 2, "no target 'nosuch'"),
        (["{good}", "--against", "tensorflow"], 2, "no engine 'tensorflow'"),
        (["{good}", "{custom}", "--input-shape", "zz=1"], 2, "no model has the input of 'zz=1'"),
        (["{good}", "--import", "no.such.module"], 2, "no module 'no.such.module'"),
        ([], 2, "MODELS"),
    ],
)
def test_what_cannot_be_meant(arguments, code, text, two):
    _, good, custom = two
    result = invoke("coverage", *(a.format(good=good, custom=custom) for a in arguments))
    assert result.exit_code == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr
