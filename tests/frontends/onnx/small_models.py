"""Small models that between them touch most parts of the importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

F32 = 1
I64 = 7
BOOL = 9


def build(
    nodes: Sequence[Any],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: Sequence[str],
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> Any:
    """A ``ModelProto``; outputs carry no declared shape."""
    import onnx
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *[helper.make_opsetid(d, 1) for d in domains]]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    model.ir_version = 10
    return model


def perceptron() -> tuple[Any, dict[str, Any]]:
    """Two layers."""
    from onnx import helper as h

    rng = np.random.default_rng(0)
    nodes = [
        h.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1, name="first"),
        h.make_node("Relu", ["a"], ["r"]),
        h.make_node("MatMul", ["r", "w2"], ["m"]),
        h.make_node("Softmax", ["m"], ["y"], axis=-1),
    ]
    weights = {
        "w1": rng.standard_normal((8, 4)).astype(np.float32),
        "b1": rng.standard_normal(8).astype(np.float32),
        "w2": rng.standard_normal((8, 3)).astype(np.float32),
    }
    x = rng.standard_normal((2, 4)).astype(np.float32)
    return build(nodes, {"x": (F32, ["n", 4])}, ["y"], weights), {"x": x}


def convolution() -> tuple[Any, dict[str, Any]]:
    """Convolution, pooling, shape arithmetic."""
    from onnx import helper as h

    rng = np.random.default_rng(1)
    nodes = [
        h.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        h.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        h.make_node("Shape", ["p"], ["s"]),
        h.make_node("Gather", ["s", "zero"], ["n"]),
        h.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        h.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        h.make_node("Reshape", ["p", "target"], ["y"]),
    ]
    weights = {
        "w": rng.standard_normal((4, 2, 3, 3)).astype(np.float32),
        "zero": np.array(0, np.int64),
        "axis": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
    }
    x = rng.standard_normal((1, 2, 6, 6)).astype(np.float32)
    return build(nodes, {"x": (F32, ["n", 2, "h", "w"])}, ["y"], weights), {"x": x}


def recurrent() -> tuple[Any, dict[str, Any]]:
    """A bidirectional LSTM and a Slice of its result."""
    from onnx import helper as h

    rng = np.random.default_rng(2)
    nodes = [
        h.make_node("LSTM", ["x", "w", "r", "b"], ["s"], hidden_size=4, direction="bidirectional"),
        h.make_node("Slice", ["s", "from", "to", "axes"], ["y"]),
    ]
    weights = {
        "w": rng.standard_normal((2, 16, 3)).astype(np.float32),
        "r": rng.standard_normal((2, 16, 4)).astype(np.float32),
        "b": rng.standard_normal((2, 32)).astype(np.float32),
        "from": np.array([-1], np.int64),
        "to": np.array([9], np.int64),
        "axes": np.array([0], np.int64),
    }
    x = rng.standard_normal((5, 1, 3)).astype(np.float32)
    return build(nodes, {"x": (F32, [5, 1, 3])}, ["y"], weights), {"x": x}


def branching() -> tuple[Any, dict[str, Any]]:
    """If on an input, branches reading outer values; a Loop of known length."""
    import onnx
    from onnx import helper as h

    def side(name: str, op: str) -> Any:
        node = h.make_node(op, ["x", "k"], [f"{name}_out"])
        return h.make_graph([node], name, [], [onnx.ValueInfoProto(name=f"{name}_out")])

    body = h.make_graph(
        [h.make_node("Mul", ["v", "k"], ["v2"]), h.make_node("Identity", ["go"], ["go2"])],
        "body",
        [
            h.make_tensor_value_info("i", I64, []),
            h.make_tensor_value_info("go", BOOL, []),
            h.make_tensor_value_info("v", F32, [3]),
        ],
        [onnx.ValueInfoProto(name="go2"), onnx.ValueInfoProto(name="v2")],
    )
    nodes = [
        h.make_node("If", ["c"], ["z"], then_branch=side("t", "Add"), else_branch=side("e", "Sub")),
        h.make_node("Loop", ["three", "", "z"], ["y"], body=body),
    ]
    weights = {"k": np.array(2, np.float32), "three": np.array(3, np.int64)}
    inputs = {"c": (BOOL, []), "x": (F32, [3])}
    model = build(nodes, inputs, ["y"], weights)
    return model, {"c": np.array(True), "x": np.arange(3, dtype=np.float32)}


def function_call() -> tuple[Any, dict[str, Any]]:
    """A local function with an attribute, and an operator that ONNX defines by a body."""
    from onnx import helper as h

    inner = h.make_node("LeakyRelu", ["a"], ["b"])
    reference = inner.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    function = h.make_function(
        "local", "Leaky", ["a"], ["b"], [inner], [h.make_opsetid("", 17)], ["slope"]
    )
    nodes = [
        h.make_node("Leaky", ["x"], ["m"], domain="local", slope=0.5),
        h.make_node("MeanVarianceNormalization", ["m"], ["y"], axes=[1]),
    ]
    model = build(nodes, {"x": (F32, [2, 3])}, ["y"], functions=[function], domains=["local"])
    return model, {"x": np.array([[-1, 2, 3], [4, -5, 6]], np.float32)}


ALL = (perceptron, convolution, recurrent, branching, function_call)
