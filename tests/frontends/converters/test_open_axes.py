"""Open axes: extents that depend on sizes, and may be nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import uif_tvm


@pytest.mark.parametrize(
    ("begin", "end", "step"), [(0, -2, -1), (2, 1, 1), (-1, -3, 1), (1, 3, -1), (5, 0, -2)]
)
def test_an_end_before_the_begin_leaves_nothing(
    begin: int, end: int, step: int, tmp_path: Path
) -> None:
    numbers = {"begin": begin, "end": end, "axis": 0, "step": step}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", *numbers], ["y"])],
        "slice",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([number]), name) for name, number in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "m.uif"
    example = np.zeros((1, 3), np.float32)
    uif_tvm.export(model, example, path, optimize_level=0, dynamic_shapes="auto")
    engine = uif_tvm.load(path)
    for n in (1, 2, 3, 6):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        (result,) = engine.run({"x": x})
        np.testing.assert_array_equal(np.asarray(result), x[begin:end:step])


def test_an_extent_of_zero_stays_zero_beside_open_axes(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Unsqueeze", ["x", "axes"], ["y"])],
        "unsqueeze",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 0, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1]), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "m.uif"
    uif_tvm.export(model, np.zeros((1, 0, 5), np.float32), path, 0, dynamic_shapes="auto")
    (result,) = uif_tvm.load(path).run({"x": np.zeros((3, 0, 5), np.float32)})
    assert np.asarray(result).shape == (3, 1, 0, 5)


def test_indices_that_cover_a_part_of_an_open_axis(tmp_path: Path) -> None:
    places = np.array([[0, 2, 1], [1, 1, 0]])
    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["x", "places"], ["y"], axis=1)],
        "gather",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(places, "places")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "m.uif"
    uif_tvm.export(model, np.zeros((3, 4), np.float32), path, 0, dynamic_shapes="auto")
    engine = uif_tvm.load(path)
    for n in (2, 5):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        (result,) = engine.run({"x": x})
        np.testing.assert_array_equal(np.asarray(result), np.take_along_axis(x[:2], places, 1))
    with pytest.raises(uif_tvm.UifError):
        engine.run({"x": np.zeros((1, 4), np.float32)})
