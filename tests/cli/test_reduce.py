"""``uif reduce`` as users type it."""

from __future__ import annotations

import json
import sys

import onnx
import pytest

from tests.cli.conftest import invoke
from tests.selection import onnx_models as models


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failing")
    return models.save(models.classifier(custom=True), folder)


def test_a_failing_model_becomes_one_node(failing, tmp_path):
    output = tmp_path / "small.onnx"
    result = invoke("reduce", failing, "-o", output)
    assert result.exit_code == 0, result.stderr
    assert "12 nodes reduced to 1 (test.vendor::Wobble)" in result.stdout
    assert "nodes left" in result.stdout
    assert [node.op_type for node in onnx.load(output).graph.node] == ["Wobble"]
    assert (tmp_path / "small.inputs.npz").exists()


def test_a_script_decides_and_json_tells(failing, tmp_path):
    script = tmp_path / "check.py"
    script.write_text(
        "import onnx, sys\n"
        "nodes = onnx.load(sys.argv[1]).graph.node\n"
        "sys.exit(0 if any(n.op_type == 'Softmax' for n in nodes) else 1)\n"
    )
    result = invoke(
        "reduce", failing, "--check", f"{sys.executable} {script} {{model}}",
        "-o", tmp_path / "s.onnx", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "uif.reduce"
    assert document["operators"] == ["Softmax"]
    assert document["complete"] is True
    assert [step["name"] for step in document["steps"]][:3] == [
        "constants computed", "outputs", "nodes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--check", "true"], "does not say where the model goes"),
        (["--check", "false {model}"], "does not show the fault"),
        (["--check", "run-fails"], "does not show the fault"),
        (["--target", "nosuch"], "no target 'nosuch'"),
    ],
)
def test_what_cannot_be_meant(arguments, text, failing, tmp_path):
    result = invoke("reduce", failing, "-o", tmp_path / "s.onnx", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert not (tmp_path / "s.onnx").exists()


def test_a_program_of_pytorch_is_refused(tmp_path):
    (tmp_path / "m.pt2").write_bytes(b"")
    result = invoke("reduce", tmp_path / "m.pt2")
    assert result.exit_code == 2
    assert "reduce takes ONNX models" in result.stderr
