"""``uif inspect``, for compiled files and for ONNX models."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from uif_tvm.cli.inspect import memory_text

from .conftest import WILD_NAME, invoke


def test_memory_that_depends_on_open_dimensions_is_unknown():
    assert memory_text({"weights": 2048, "activations": 1024}) == (
        "weights 2 KiB, activations 1 KiB"
    )
    assert "activations unknown" in memory_text({"weights": 2048})


def test_onnx(linear, open_linear):
    body = json.loads(invoke("inspect", linear, "--json").stdout)
    assert body["op_histogram"] == {"MatMul": 1, "Add": 1, "Relu": 1, "Neg": 1}
    assert body["weight_bytes"] == 4 * (12 + 3)
    assert body["opsets"] == {"ai.onnx": 17}
    assert body["signature"]["inputs"] == [{"name": "x", "shape": [2, 4], "dtype": "float32"}]
    text = invoke("inspect", open_linear)
    assert text.exit_code == 0
    assert "x: float32[batch, 4]" in text.stdout
    assert "MatMul" in text.stdout


def test_uif(compiled):
    result = invoke("inspect", compiled, "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert [row["id"] for row in body["targets"]] == ["cpu"]
    assert body["targets"][0]["runs_here"] is True
    assert body["reports"]["cpu"]["kernels"]
    assert [spec["name"] for spec in body["signature"]["outputs"]] == ["y", WILD_NAME]
    text = invoke("inspect", compiled, "--all")
    assert text.exit_code == 0, text.output
    for word in ("inputs", "kernels", "memory", "runs here", "decisions", "x: float32[2, 4]"):
        assert word in text.stdout


def test_refusals(compiled, tmp_path):
    (tmp_path / "junk.onnx").write_bytes(b"\x00junk")
    (tmp_path / "junk.uif").write_bytes(b"\x00junk")
    (tmp_path / "m.pt2").touch()
    assert invoke("inspect", tmp_path / "junk.onnx").exit_code == 2
    assert invoke("inspect", tmp_path / "junk.uif").exit_code == 1
    assert invoke("inspect", tmp_path / "missing.onnx").exit_code == 2
    assert invoke("inspect", tmp_path / "missing.uif").exit_code == 4
    pt2 = invoke("inspect", tmp_path / "m.pt2")
    assert pt2.exit_code == 2
    assert "uif export" in pt2.stderr
    other = invoke("inspect", compiled, "--target", "other")
    assert other.exit_code == 2
    assert "cpu" in other.stderr


@pytest.mark.parametrize("position", [0, 10, 100, -1, -30])
def test_flipped_bits_are_noticed(compiled, tmp_path, position):
    data = bytearray(compiled.read_bytes())
    data[position] ^= 0x10
    (tmp_path / "m.uif").write_bytes(data)
    assert invoke("inspect", tmp_path / "m.uif").exit_code == 1


def test_weights_in_constants_and_branches_are_counted(tmp_path):
    """``Constant`` nodes and the weights of ``If`` bodies are weights too; bodies' ops are ops."""
    value = helper.make_tensor_value_info
    tensor = numpy_helper.from_array(np.zeros((3, 4), np.float32), "t")
    inner = numpy_helper.from_array(np.zeros(5, np.float32), "u")
    outs = [value("z", TensorProto.FLOAT, [5])]
    body = helper.make_graph([helper.make_node("Neg", ["u"], ["z"])], "body", [], outs, [inner])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=tensor),
        helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
    ]
    flag, y = value("flag", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, [5])
    graph = helper.make_graph(nodes, "g", [flag], [y])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    shown = json.loads(invoke("inspect", tmp_path / "m.onnx", "--json").stdout)
    assert shown["weight_bytes"] == 4 * (12 + 5 + 5)
    assert shown["op_histogram"] == {"Neg": 2, "Constant": 1, "If": 1}
