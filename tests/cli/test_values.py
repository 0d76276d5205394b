"""Sequences, optionals and texts on the command line."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from .conftest import invoke


def save(path, nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


@pytest.fixture
def sequences(tmp_path):
    """``y = concat(xs)`` and ``ys = insert(xs, xs[0])``."""
    kind = helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(TensorProto.FLOAT, [None, 2])
    )
    save(
        tmp_path / "s.onnx",
        [
            helper.make_node("ConcatFromSequence", ["xs"], ["y"], axis=0),
            helper.make_node("SequenceInsert", ["xs", "y"], ["ys"]),
        ],
        [helper.make_value_info("xs", kind)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2]),
            helper.make_value_info("ys", kind),
        ],
    )
    for name, rows in (("a", 1), ("b", 3)):
        np.save(tmp_path / f"{name}.npy", np.full((rows, 2), rows, np.float32))
    return tmp_path


def test_items_are_inputs_and_outputs_by_place(sequences):
    given = [f"--input=xs[{i}]=@{sequences / name}.npy" for i, name in enumerate("ab")]
    done = invoke("export", sequences / "s.onnx", "-o", sequences / "s.uif", *given)
    assert done.exit_code == 0, done.output
    done = invoke("run", sequences / "s.uif", *given, "--output-dir", sequences / "out")
    assert done.exit_code == 0, done.output
    files = json.loads((sequences / "out" / "outputs.json").read_text())["outputs"]
    assert sorted(files) == ["y", "ys[0]", "ys[1]", "ys[2]"]
    have = np.load(sequences / "out" / files["ys[2]"])
    np.testing.assert_array_equal(have, np.float32([[1, 1], [3, 3], [3, 3], [3, 3]]))
    done = invoke("bench", sequences / "s.uif", "--runs", "2", "--warmup", "0")
    assert done.exit_code == 0, done.output
    assert "xs[0], xs[1]" in done.stdout


def test_a_sequence_without_items_is_asked_for(sequences):
    done = invoke("export", sequences / "s.onnx", "-o", sequences / "s.uif")
    assert done.exit_code == 2
    assert "--input 'xs[0]=@FILE.npy'" in done.stderr


def test_texts(tmp_path):
    shape = [3]
    save(
        tmp_path / "t.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.STRING, shape)],
        [helper.make_tensor_value_info("y", TensorProto.STRING, shape)],
    )
    np.save(tmp_path / "x.npy", np.array(["a", "ü", ""]))
    done = invoke("export", tmp_path / "t.onnx", "-o", tmp_path / "t.uif")
    assert done.exit_code == 0, done.output
    done = invoke(
        "run", tmp_path / "t.uif", f"--input=x=@{tmp_path / 'x.npy'}", "--output-dir", tmp_path
    )
    assert done.exit_code == 0, done.output
    assert "string" in done.stdout
    assert np.load(tmp_path / "y.npy").tolist() == ["a", "ü", ""]


def test_verification_follows_the_structure(sequences):
    given = [f"--input=xs[{i}]=@{sequences / name}.npy" for i, name in enumerate("ab")]
    done = invoke("export", sequences / "s.onnx", "-o", sequences / "s.uif", "--verify", *given)
    assert done.exit_code == 0, done.output
    assert "outputs agree on the example inputs" in done.stdout
