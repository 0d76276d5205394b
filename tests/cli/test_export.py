"""``uif export``: what it writes, what it asks for, what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from .conftest import command, invoke


def test_writes_a_file_and_says_what_it_did(linear, tmp_path):
    path = tmp_path / "m.uif"
    result = invoke("export", linear, "-o", path, "--target", "cpu", "-O2")
    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 0
    assert result.stdout.startswith(f"wrote {path}")
    assert "KiB) in" in result.stdout
    assert "cpu:" in result.stdout
    assert "kernels" in result.stdout


@pytest.mark.parametrize("level", [0, 1, 3])
def test_levels(linear, tmp_path, level):
    result = invoke("export", linear, "-o", tmp_path / "m.uif", f"-O{level}", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert (body["schema"], body["schema_version"]) == ("uif.export", 2)
    assert body["reports"]["cpu"]["optimize_level"] == level
    assert body["bytes"] == (tmp_path / "m.uif").stat().st_size


@pytest.mark.parametrize(
    ("given", "said"),
    [("y=n,4", "there is no input 'y'"), ("x=n", "1 axes are given, the input has 2")],
)
def test_open_axes_of_no_input_and_of_another_rank(open_linear, tmp_path, given, said):
    result = invoke("export", open_linear, "-o", tmp_path / "m.uif", "--dynamic-shape", given)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "x: float32[batch, 4]" in result.stderr


def test_open_dimensions_are_asked_for(open_linear, tmp_path):
    path = tmp_path / "m.uif"
    asked = invoke("export", open_linear, "-o", path)
    assert asked.exit_code == 2
    assert "x: float32[batch, 4]" in asked.stderr
    assert "--input-shape 'x=1,4'" in asked.stderr
    assert not path.exists()
    result = invoke("export", open_linear, "-o", path, "--input-shape", "x=5,4")
    assert result.exit_code == 0, result.output
    shown = json.loads(invoke("inspect", path, "--json").stdout)
    assert shown["signature"]["inputs"][0]["shape"] == [5, 4]


def test_an_input_array_settles_the_shape(open_linear, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    path = tmp_path / "m.uif"
    result = invoke("export", open_linear, "-o", path, "--input", f"x=@{tmp_path}/x.npy")
    assert result.exit_code == 0, result.output
    shown = json.loads(invoke("inspect", path, "--json").stdout)
    assert shown["signature"]["inputs"][0]["shape"] == [3, 4]


def test_passes_can_be_left_out_and_watched(linear, tmp_path):
    temps = tmp_path / "temps"
    result = invoke(
        "export", linear, "-o", tmp_path / "m.uif", "--save-temps", temps,
        "--disable-fusion", "*", "--no-cache", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert list(temps.iterdir())
    reports = json.loads(result.stdout)["reports"]
    assert not any(kernel["cached"] for kernel in reports["cpu"]["kernels"])


def test_torch_program_files(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    program = torch.export.export(module, (torch.zeros(2, 4),))
    torch.export.save(program, tmp_path / "m.pt2")
    result = invoke("export", tmp_path / "m.pt2", "-o", tmp_path / "m.uif")
    assert result.exit_code == 0, result.output
    refused = invoke("export", tmp_path / "m.pt2", "--input-shape", "x=2,4")
    assert refused.exit_code == 2
    assert "fixes its own inputs" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "fragments"),
    [
        (["nothing.onnx"], 2, ["nothing.onnx"]),
        (["model.h5"], 2, ["neither .onnx nor .pt2", "torch.export.save"]),
        (["broken.onnx"], 2, ["broken.onnx", "remedy"]),
        (["good.onnx", "--target", "no-such-chip"], 2, ["no-such-chip", "uif targets list"]),
        (["good.onnx", "--target", "cpu", "--target", "cpu"], 2, ["target"]),
        (["good.onnx", "--disable-pass", "no-such-pass"], 2, ["no-such-pass"]),
        (["good.onnx", "-o", "missing/folder/m.uif"], 4, ["missing/folder"]),
        (["good.onnx", "-O4"], 2, ["4"]),
        (["good.onnx", "--input-shape", "x=9,9"], 2, ["contradicts", "float32[2, 4]"]),
    ],
)
def test_refusals(linear, tmp_path, monkeypatch, arguments, code, fragments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.onnx").write_bytes(linear.read_bytes())
    (tmp_path / "broken.onnx").write_bytes(linear.read_bytes()[: linear.stat().st_size // 2])
    (tmp_path / "model.h5").touch()
    before = sorted(tmp_path.iterdir())
    result = invoke("export", *arguments)
    assert result.exit_code == code, result.output
    for fragment in fragments:
        assert fragment in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_the_model_survives_a_slip_of_the_output_name(linear, tmp_path):
    own = tmp_path / "own.onnx"
    own.write_bytes(linear.read_bytes())
    result = invoke("export", own, "-o", own)
    assert result.exit_code == 2
    assert "UIF-USAGE-OUTPUT" in result.stderr
    assert own.read_bytes() == linear.read_bytes()


@pytest.mark.parametrize("verb", ["export", "inspect"])
def test_a_missing_model_is_told_once(tmp_path, verb):
    result = invoke(verb, tmp_path / "nofile.onnx")
    assert result.exit_code == 2
    assert result.stderr.count("nofile.onnx") == 1
    assert result.stderr.count("UIF-") == 1


def test_unsupported_operators_are_all_listed(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Mystery", ["x"], ["a"], name="first", domain="acme"),
        helper.make_node("Enigma", ["a"], ["y"], name="second", domain="acme"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, [2])]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    result = invoke("export", tmp_path / "m.onnx", "-o", tmp_path / "m.uif", "--json")
    assert result.exit_code == 3, result.output
    error = json.loads(result.stdout)["error"]
    assert {op["op"].split("::")[-1].split(".")[-1] for op in error["ops"]} == {
        "Mystery",
        "Enigma",
    }
    assert not (tmp_path / "m.uif").exists()


def test_progress_stays_off_stdout(linear, tmp_path):
    done = command("export", linear, "-o", tmp_path / "m.uif", "--json")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


def test_open_axes_stay_open(open_linear, tmp_path):
    path = tmp_path / "m.uif"
    result = invoke("export", open_linear, "-o", path, "--dynamic-shape", "x=n:1..6,4")
    assert result.exit_code == 0, result.output
    shown = json.loads(invoke("inspect", path, "--json").stdout)["signature"]["inputs"][0]
    assert (shown["shape"], shown["ranges"]) == (["n", 4], {"n": [1, 6]})
    for size, code in [(1, 0), (6, 0), (7, 2)]:
        np.save(tmp_path / "x.npy", np.zeros((size, 4), np.float32))
        ran = invoke("run", path, "--input", f"x=@{tmp_path}/x.npy")
        assert ran.exit_code == code, ran.output
    assert "axis 0 ('n') is 7" in ran.stderr


def test_all_axes_that_the_model_leaves_open(open_linear, tmp_path):
    path = tmp_path / "m.uif"
    result = invoke("export", open_linear, "-o", path, "--dynamic-shape", "auto", "--verify")
    assert result.exit_code == 0, result.output
    shown = json.loads(invoke("inspect", path, "--json").stdout)["signature"]["inputs"][0]
    assert shown["shape"] == ["batch", 4]


@pytest.mark.parametrize(
    "given", [["x=n:z,4"], ["x"], ["auto", "x=n,4"], ["x=n,4", "x=n,4"], ["x=n:5..2,4"]]
)
def test_open_axes_that_cannot_be_read(open_linear, tmp_path, given):
    options = [part for text in given for part in ("--dynamic-shape", text)]
    result = invoke("export", open_linear, "-o", tmp_path / "m.uif", *options)
    assert result.exit_code == 2
    assert "UIF-USAGE" in result.stderr


def test_operators_of_a_module_are_registered_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("export", "m.onnx", "--import", "no_such_module_here")
    assert done.exit_code == 2
    assert "--import no_such_module_here: ModuleNotFoundError" in done.stderr
