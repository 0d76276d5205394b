"""Small ONNX models with what is hard about real ones: bodies, functions, folding, custom ops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
VENDOR = "test.vendor"


def tensor(name: str, kind: int, shape: Sequence[Any]) -> Any:
    """A declared input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, value: Any, dtype: Any = np.float32) -> Any:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    functions: Sequence[Any] = (),
    opset: int = 18,
) -> Any:
    """A model that imports the default operators, and those of VENDOR."""
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), list(weights))
    return helper.make_model(
        graph,
        functions=list(functions),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(VENDOR, 1)],
        ir_version=9,
    )


def save(proto: Any, folder: Path, name: str = "model.onnx") -> Path:
    """Write it and return its path."""
    path = folder / name
    onnx.save(proto, path)
    return path


def weights(*shape: int, seed: int = 0) -> Any:
    """Seeded normal values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def classifier(custom: bool = False, wrong_shape: bool = False) -> Any:
    """MatMul, Add, Relu twice, a settled Reshape, Softmax; with an operator nobody knows in the
    middle where ``custom``.
    """
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], name="batch"),
        helper.make_node("Concat", ["batch", "minus"], ["target"], name="target", axis=0),
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Add", ["a", "b"], ["c"], name="bias"),
        helper.make_node("Relu", ["c"], ["d"], name="act1"),
        helper.make_node("Dropout", ["d"], ["e"], name="drop"),
        helper.make_node("Wobble", ["e"], ["f"], name="wobble", domain=VENDOR, strength=3)
        if custom
        else helper.make_node("Identity", ["e"], ["f"], name="same"),
        helper.make_node("MatMul", ["f", "w2"], ["g"], name="second"),
        helper.make_node("Relu", ["g"], ["h"], name="act2"),
        helper.make_node("Reshape", ["h", "target"], ["i"], name="flat"),
        helper.make_node("Softmax", ["i"], ["y"], name="probabilities", axis=-1),
    ]
    declared = [tensor("x", FLOAT, [2, 8])]
    made = model(
        nodes,
        declared,
        [tensor("y", FLOAT, [2, 8])],
        [
            constant("w1", weights(8, 8)),
            constant("w2", weights(8, 8, seed=1)),
            constant("b", weights(8, seed=2)),
            constant("zero", [0], np.int64),
            constant("minus", [-1], np.int64),
        ],
    )
    if custom:  # what its exporter knows about the value, and nobody else does
        made.graph.value_info.append(tensor("f", FLOAT, [2, 8]))
    return made


def branching() -> Any:
    """``y = x > 0 ? relu(x) + w : neg(x)``, decided by the sum of x at run time."""
    then = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["t1"], name="then_relu"),
            helper.make_node("Add", ["t1", "w"], ["t2"], name="then_add"),
        ],
        "then",
        [],
        [tensor("t2", FLOAT, [4])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e1"], name="else_neg")],
        "else",
        [],
        [tensor("e1", FLOAT, [4])],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], name="positive"),
        helper.make_node("If", ["c"], ["r"], name="choose", then_branch=then, else_branch=other),
        helper.make_node("Exp", ["r"], ["y"], name="exp"),
    ]
    return model(
        nodes,
        [tensor("x", FLOAT, [4])],
        [tensor("y", FLOAT, [4])],
        [constant("w", [1, 2, 3, 4]), constant("zero", 0)],
    )


def looping(trips: int = 5) -> Any:
    """``trips`` times ``s = tanh(s * x)``, with every s stacked."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["s_in", "x"], ["m"], name="loop_mul"),
            helper.make_node("Tanh", ["m"], ["s_out"], name="loop_tanh"),
            helper.make_node("Identity", ["go_in"], ["go_out"], name="loop_go"),
            helper.make_node("Identity", ["s_out"], ["scan"], name="loop_scan"),
        ],
        "body",
        [tensor("i", INT64, []), tensor("go_in", BOOL, []), tensor("s_in", FLOAT, [3])],
        [tensor("go_out", BOOL, []), tensor("s_out", FLOAT, [3]), tensor("scan", FLOAT, [3])],
    )
    nodes = [helper.make_node("Loop", ["n", "go", "x"], ["last", "all"], name="loop", body=body)]
    return model(
        nodes,
        [tensor("x", FLOAT, [3])],
        [tensor("last", FLOAT, [3]), tensor("all", FLOAT, [trips, 3])],
        [constant("n", trips, np.int64), constant("go", True, bool)],
    )


def with_function() -> Any:
    """A local function ``test.vendor::Scaled(x) = sigmoid(x * factor)``, called twice."""
    function = helper.make_function(
        VENDOR,
        "Scaled",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["f"], name="factor"),
            helper.make_node("Mul", ["a", "f"], ["m"], name="scale"),
            helper.make_node("Sigmoid", ["m"], ["b"], name="squash"),
        ],
        [helper.make_opsetid("", 18)],
        ["factor"],
    )
    attribute = function.node[0].attribute.add()
    attribute.name, attribute.ref_attr_name = "value_float", "factor"
    attribute.type = onnx.AttributeProto.FLOAT
    nodes = [
        helper.make_node("Scaled", ["x"], ["u"], name="one", domain=VENDOR, factor=2.0),
        helper.make_node("Scaled", ["u"], ["y"], name="two", domain=VENDOR, factor=3.0),
    ]
    return model(
        nodes, [tensor("x", FLOAT, [2, 3])], [tensor("y", FLOAT, [2, 3])], functions=[function]
    )
