"""An axis of size 0 has no element to clamp to: reads give zero and touch nothing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import uif_tvm


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(("op", "shape"), [("Gather", (2,)), ("GatherElements", (2, 4))])
def test_reading_an_empty_tensor(op, shape, level, tmp_path):
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "i"], ["y"], axis=0)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [0, 4]),
            helper.make_tensor_value_info("i", TensorProto.INT64, list(shape)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x, index = np.zeros((0, 4), np.float32), np.ones(shape, np.int64)
    path = tmp_path / "m.uif"
    uif_tvm.export(model, {"x": x, "i": index}, path, optimize_level=level)
    (out,) = uif_tvm.load(path).run(x, index)
    np.testing.assert_array_equal(out, np.zeros((2, 4), np.float32))
