"""FLOPs of graphs that can be counted by hand."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from uif_tvm.bench.flops import count


def value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def count_of(tmp_path, nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    return count(tmp_path / "m.onnx")


def test_convolution_with_stride_and_groups(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4, group=2)
    inputs = [value("x", [1, 8, 10, 10]), value("w", [6, 4, 3, 3])]
    flops = count_of(tmp_path, [node], inputs, [value("y", [1, 6, 5, 5])])
    assert flops == 2 * (6 * 5 * 5) * (4 * 3 * 3)


def test_batched_matmul_and_transposed_gemm(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["ab"]),
        helper.make_node("Gemm", ["c", "d"], ["cd"], transA=1),
        helper.make_node("Relu", ["cd"], ["y"]),
    ]
    inputs = [value("a", [2, 3, 5]), value("b", [2, 5, 7]), value("c", [4, 3]), value("d", [4, 6])]
    flops = count_of(tmp_path, nodes, inputs, [value("ab", [2, 3, 7]), value("y", [3, 6])])
    assert flops == 2 * (2 * 3 * 7) * 5 + 2 * (3 * 6) * 4


def test_unknown_shapes_count_nothing(tmp_path):
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    inputs = [value("a", ["n", 4]), value("b", [4, 4])]
    assert count_of(tmp_path, [node], inputs, [value("y", ["n", 4])]) == 0
