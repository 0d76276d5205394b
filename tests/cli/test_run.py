"""``uif run``: right numbers in files, and messages in terms of the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from .conftest import WILD_NAME, command, invoke


@pytest.fixture
def x(tmp_path):
    array = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    return array


def test_outputs_are_right(compiled, linear, tmp_path, x):
    out = tmp_path / "out"
    done = command("run", compiled, "--input", f"x=@{tmp_path}/x.npy", "--output-dir", out)
    assert done.returncode == 0, done.stderr
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(linear).graph.initializer}
    expected = np.maximum(x @ weights["w"] + weights["b"], 0)
    files = json.loads((out / "outputs.json").read_text())["outputs"]
    assert files["y"] == "y.npy"
    np.testing.assert_allclose(np.load(out / files["y"]), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.load(out / files[WILD_NAME]), -expected, rtol=1e-5, atol=1e-6)
    assert {p.parent for p in tmp_path.rglob("*.npy")} == {tmp_path, out}
    assert "y.npy" in done.stdout
    assert "2x3" in done.stdout


def test_json(compiled, tmp_path, x):
    result = invoke("run", compiled, "--input", f"x=@{tmp_path}/x.npy", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert body["schema"] == "uif.run"
    assert [row["name"] for row in body["outputs"]] == ["y", WILD_NAME]
    assert body["outputs"][0]["shape"] == [2, 3]
    assert body["outputs"][0]["min"] >= 0
    assert body["stats"]["runs"] == 1


def test_nothing_is_made_up(compiled):
    result = invoke("run", compiled)
    assert result.exit_code == 2
    assert "x: float32[2, 4]" in result.stderr
    assert "--input 'x=@FILE.npy'" in result.stderr


def test_unknown_names(compiled, tmp_path, x):
    result = invoke("run", compiled, "--input", f"z=@{tmp_path}/x.npy")
    assert result.exit_code == 2
    assert "no input 'z'" in result.stderr
    assert "x: float32[2, 4]" in result.stderr


@pytest.mark.parametrize(
    "array", [np.zeros((2, 5), np.float32), np.zeros((2, 4), np.complex64)], ids=["shape", "dtype"]
)
def test_arrays_that_do_not_fit(compiled, tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    result = invoke("run", compiled, "--input", f"x=@{tmp_path}/x.npy")
    assert result.exit_code == 2, result.output
    assert "UIF-RUN-" in result.stderr
    assert "x" in result.stderr


def test_damaged_and_missing_files(compiled, tmp_path, x):
    torn = tmp_path / "torn.uif"
    torn.write_bytes(compiled.read_bytes()[:-100])
    result = invoke("run", torn, "--input", f"x=@{tmp_path}/x.npy")
    assert result.exit_code == 1
    assert "UIF-ARTIFACT" in result.stderr
    missing = invoke("run", tmp_path / "missing.uif", "--input", f"x=@{tmp_path}/x.npy")
    assert missing.exit_code == 4
    assert "missing.uif" in missing.stderr


def test_a_model_is_no_compiled_file(linear):
    result = invoke("run", linear)
    assert result.exit_code == 2
    assert "this is an ONNX model: run uif export first" in result.stderr


def test_wrong_target(compiled, tmp_path, x):
    result = invoke("run", compiled, "--target", "other", "--input", f"x=@{tmp_path}/x.npy")
    assert result.exit_code in (1, 2)
    assert "other" in result.stderr
    assert "cpu" in result.stderr


def test_unwritable_output_folder(compiled, tmp_path, x):
    (tmp_path / "file").touch()
    result = invoke(
        "run", compiled, "--input", f"x=@{tmp_path}/x.npy", "--output-dir", tmp_path / "file"
    )
    assert result.exit_code == 4
    assert "cannot write outputs" in result.stderr


def test_a_deployment_machine_needs_no_model_framework(compiled, tmp_path, x):
    """Running works where every package that ``uif`` does not depend on cannot be imported."""
    absent = "torch onnx onnxruntime scipy safetensors psutil google.protobuf transformers PIL"
    arguments = ["run", str(compiled), "--input", f"x=@{tmp_path}/x.npy", "--json"]
    code = (
        "import sys, uif_command\n"
        f"sys.modules.update(dict.fromkeys({absent.split()}))\n"
        f"sys.argv = ['uif', *{arguments}]\n"
        "uif_command.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [2, 3]
