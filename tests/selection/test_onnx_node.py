"""One node as a model: operands, sequences, names that bodies read; two evaluators agree."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.selection.onnx_models import branching, looping
from uif_tvm.selection.onnx_node import (
    Evaluator,
    Operand,
    Setting,
    by_reference,
    flat_results,
    node_model,
    outer_names,
)

SETTING = Setting({"": 18}, 9)


def operand(value, fixed=False):
    return Operand(np.asarray(value), fixed)


def test_fixed_operands_become_initializers_and_absent_ones_stay_absent():
    node = helper.make_node("Clip", ["a", "", "c"], ["r"], name="clip")
    given = [operand(np.ones(3, np.float32)), None, operand(np.float32(0.5), fixed=True)]
    proto, feeds = node_model(node, SETTING, given, {}, [np.full(3, 0.5, np.float32)])
    onnx.checker.check_model(proto, full_check=True)
    assert list(proto.graph.node[0].input) == ["x0", "", "x2"]
    assert [i.name for i in proto.graph.initializer] == ["x2"]
    assert list(feeds) == ["x0"]
    (result,) = by_reference(proto, feeds)
    np.testing.assert_array_equal(result, [0.5, 0.5, 0.5])


def test_sequences_are_taken_apart_at_the_border():
    node = helper.make_node("ConcatFromSequence", ["s"], ["r"], axis=0)
    parts = [np.ones(2, np.float32), np.zeros(1, np.float32)]
    proto, feeds = node_model(node, SETTING, [Operand(parts, False)], {})
    assert sorted(feeds) == ["x0_0", "x0_1"]
    np.testing.assert_array_equal(by_reference(proto, feeds)[0], [1, 1, 0])

    split = helper.make_node("SplitToSequence", ["a"], ["s"], axis=0)
    whole = [operand(np.arange(2, dtype=np.float32))]
    proto, feeds = node_model(split, SETTING, whole, {}, [[np.zeros(1), np.ones(1)]])
    assert [o.name for o in proto.graph.output] == ["y0_0", "y0_1"]
    values = by_reference(proto, feeds)
    assert [v.tolist() for v in values] == [[0.0], [1.0]]
    assert list(flat_results(split, [[np.zeros(1), np.ones(1)]])) == ["y0_0", "y0_1"]


def test_bodies_read_what_is_around_them():
    graph = branching().graph
    node = next(n for n in graph.node if n.op_type == "If")
    assert outer_names(node) == ["x", "w"]
    x = np.array([1, -2, 3, 4], np.float32)
    outer = {"x": operand(x), "w": operand(np.ones(4, np.float32), fixed=True)}
    results, by = Evaluator()(node, SETTING, [operand(True)], outer)
    np.testing.assert_array_equal(results[0], np.maximum(x, 0) + 1)
    assert by == "onnxruntime"
    proto, feeds = node_model(node, SETTING, [operand(True)], outer, results)
    assert sorted(feeds) == ["operand_0", "x"]
    # Shapes stay open: the other branch may not fit those of this run.
    assert not any(
        dim.HasField("dim_value") for i in proto.graph.input for dim in i.type.tensor_type.shape.dim
    )


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Conv", [np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)], {}),
        ("TopK", [np.array([3.0, 1.0, 2.0], np.float32), np.array([2])], {}),
        ("NonZero", [np.array([[0, 1], [2, 0]], np.float32)], {}),
        ("Cast", [np.array([1.5], np.float32)], {"to": onnx.TensorProto.INT64}),
    ],
)
def test_evaluators_agree(op, arrays, attributes):
    outputs = ["r", "i"] if op == "TopK" else ["r"]
    node = helper.make_node(op, [f"a{i}" for i in range(len(arrays))], outputs, **attributes)
    given = [operand(array) for array in arrays]
    fast, by = Evaluator()(node, SETTING, given, {})
    slow, other = Evaluator(runtime=False)(node, SETTING, given, {})
    assert (by, other) == ("onnxruntime", "reference")
    for left, right in zip(fast, slow, strict=True):
        np.testing.assert_allclose(left, right)


def test_types_the_runtime_lacks_go_to_the_reference():
    import ml_dtypes

    node = helper.make_node("Add", ["a", "b"], ["r"])
    ones = operand(np.ones(2, ml_dtypes.bfloat16))
    (result,), by = Evaluator()(node, SETTING, [ones, ones], {})
    assert by == "reference"
    assert result.astype(np.float32).tolist() == [2, 2]


def test_a_loop_keeps_its_own_names():
    (node,) = looping().graph.node
    x = operand(np.ones(3, np.float32))
    results, _ = Evaluator()(node, SETTING, [operand(5), operand(True), x], {"x": x})
    assert [r.shape for r in results] == [(3,), (5, 3)]
