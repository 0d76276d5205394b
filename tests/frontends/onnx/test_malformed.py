"""Malformed models: the error names the node, or the part of the model, and the rule broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.harness import execute
from tests.frontends.onnx.small_models import F32, I64, build
from uif_tvm.errors import ImportModelError, UifError
from uif_tvm.frontends.onnx import import_onnx

Broken = Callable[[], Any]
X = {"x": (F32, [2, 4])}


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op_type, inputs, outputs, **attributes)


def culprit(op_type: str, inputs: list[str], **attributes: Any) -> Any:
    """A model of one node called ``culprit``."""
    return build([node(op_type, inputs, ["y"], name="culprit", **attributes)], X, ["y"])


def subgraph(outputs: list[str], nodes: list[Any] = []) -> Any:  # noqa: B006 - never changed
    from onnx import helper

    values = [helper.make_tensor_value_info(name, F32, None) for name in outputs]
    return helper.make_graph(nodes, "sub", [], values)


def attribute_of_wrong_type() -> Any:
    model = culprit("Softmax", ["x"], axis=1)
    model.graph.node[0].attribute[0].type = 3
    return model


def attribute_twice() -> Any:
    model = culprit("Softmax", ["x"], axis=1)
    model.graph.node[0].attribute.add().CopyFrom(model.graph.node[0].attribute[0])
    return model


def cycle() -> Any:
    return build([node("Add", ["x", "b"], ["a"], name="culprit"), node("Neg", ["a"], ["b"])],
                 X, ["b"])  # fmt: skip


def two_definitions() -> Any:
    return build([node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"], name="culprit")], X, ["y"])


def too_few_branch_outputs() -> Any:
    bare, full = subgraph([]), subgraph(["z"], [node("Neg", ["x"], ["z"])])
    return build(
        [node("If", ["c"], ["y"], name="culprit", then_branch=bare, else_branch=full)], X, ["y"],
        {"c": np.array(True)},
    )  # fmt: skip


def deep_nesting() -> Any:
    inner = node("Neg", ["x"], ["y"])
    for _ in range(25):
        graph = subgraph(["y"], [inner])
        inner = node("If", ["c"], ["y"], then_branch=graph, else_branch=subgraph(["x"]))
    return build([inner], X, ["y"], {"c": np.array(True)})


def function_recursion() -> Any:
    from onnx import helper

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    first, second = (
        helper.make_function(
            "own", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="own")], opsets
        )
        for name, other in (("One", "Two"), ("Two", "One"))
    )
    return build([node("One", ["x"], ["y"], domain="own")], X, ["y"], functions=[first, second],
                 domains=["own"])  # fmt: skip


def weight(**changes: Any) -> Any:
    """A product with a weight ``w`` of which some fields are changed."""
    model = build([node("MatMul", ["x", "w"], ["y"])], X, ["y"], {"w": np.ones((4, 3), np.float32)})
    tensor = model.graph.initializer[0]
    for name, value in changes.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        else:
            setattr(tensor, name, value)
    return model


def huge(op_type: str, *shape: int, **attributes: Any) -> Any:
    return build(
        [node(op_type, ["s"], ["y"], name="culprit", **attributes)], {}, ["y"],
        {"s": np.array(shape, np.int64)},
    )  # fmt: skip


def huge_input() -> Any:
    return build([node("Neg", ["x"], ["y"])], {"x": (F32, [2**40, 2**40])}, ["y"])


def opset(version: int) -> Any:
    model = culprit("Neg", ["x"])
    model.opset_import[0].version = version
    return model


def ir_version(version: int) -> Any:
    model = culprit("Neg", ["x"])
    model.ir_version = version
    return model


BROKEN: dict[str, tuple[Broken, list[str]]] = {
    "missing attribute": (lambda: culprit("Concat", ["x", "x"]), ["culprit", "'axis' is missing"]),
    "attribute type": (attribute_of_wrong_type, ["culprit", "'axis' has the wrong type"]),
    "attribute twice": (attribute_twice, ["culprit", "'axis' is given twice"]),
    "type clash": (
        lambda: build([node("Add", ["x", "w"], ["y"], name="culprit")], X, ["y"],
                      {"w": np.ones(4, np.int64)}), ["culprit", "int64"]),
    "shape clash": (
        lambda: build([node("Add", ["x", "w"], ["y"], name="culprit")], X, ["y"],
                      {"w": np.ones(5, np.float32)}), ["culprit", "5"]),
    "dangling input": (lambda: culprit("Neg", ["nowhere"]), ["culprit", "'nowhere'"]),
    "dangling output": (lambda: build([node("Neg", ["x"], ["a"])], X, ["y"]), ["'y'"]),
    "cycle": (cycle, ["culprit", "'b'", "cycle"]),
    "two definitions": (two_definitions, ["culprit", "'y'", "defined already"]),
    "unknown operator": (lambda: culprit("Nope", ["x"]), ["Nope", "culprit"]),
    "unknown domain": (lambda: culprit("Neg", ["x"], domain="else.where"),
                       ["else.where::Neg", "culprit"]),
    "too many inputs": (lambda: culprit("Neg", ["x", "x"]), ["culprit", "has 2 inputs"]),
    "too few inputs": (lambda: culprit("Add", ["x"]), ["culprit", "has 1 inputs"]),
    "axis out of range": (lambda: culprit("Softmax", ["x"], axis=7), ["culprit", "axis 7"]),
    "opset of the future": (lambda: opset(999), ["999", "not known"]),
    "negative opset": (lambda: opset(-1), ["-1", "not known"]),
    "format of the future": (lambda: ir_version(2**40), ["IR version", str(2**40)]),
    "no format": (lambda: ir_version(0), ["IR version", "0"]),
    "branch outputs": (too_few_branch_outputs, ["culprit"]),
    "function recursion": (function_recursion, ["calls itself"]),
    "dims beyond the data": (lambda: weight(dims=[4, 4]), ["'w'"]),
    "negative dims": (lambda: weight(dims=[-4, 3]), ["'w'"]),
    "enormous dims": (lambda: weight(dims=[2**40, 2**40]), ["'w'"]),
    "truncated data": (lambda: weight(raw_data=b"123"), ["'w'"]),
    "unknown element type": (lambda: weight(data_type=99), ["element type 99"]),
    "terabytes by ConstantOfShape": (lambda: huge("ConstantOfShape", 2**40, 16), ["culprit"]),
    "terabytes by an input": (huge_input, ["Neg", "more than any machine holds"]),
    "two open dims": (
        lambda: build([node("Reshape", ["x", "s"], ["y"], name="culprit")], X, ["y"],
                      {"s": np.array([-1, -1], np.int64)}), ["culprit"]),
    "reshape to another size": (
        lambda: build([node("Reshape", ["x", "s"], ["y"], name="culprit")], X, ["y"],
                      {"s": np.array([3, 3], np.int64)}), ["culprit"]),
    "index outside": (
        lambda: build([node("Gather", ["x", "i"], ["y"], name="culprit")], X, ["y"],
                      {"i": np.array([9], np.int64)}), ["culprit", "outside"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_the_rule_is_named(kind: str) -> None:
    make, parts = BROKEN[kind]
    with pytest.raises(UifError) as caught:
        import_onnx(make())
    text = str(caught.value)
    assert caught.value.stage == "import", text
    assert caught.value.hint, text
    for part in parts:
        assert part in text, f"{part!r} not in {text}"
    for noise in ("Traceback", "Check failed", "AssertionError", "KeyError", "InternalError"):
        assert noise not in text, text


def test_deep_nesting_is_taken() -> None:
    import_onnx(deep_nesting())


def test_outputs_may_repeat() -> None:
    model = culprit("Neg", ["x"])
    model.graph.output.add().CopyFrom(model.graph.output[0])
    assert len(import_onnx(model).signature.outputs) == 2


def test_names_that_are_no_text() -> None:
    """Protobuf takes any bytes for a name; reading them as text then fails."""
    data = bytearray(culprit("Neg", ["x"]).SerializeToString())
    data[data.index(b"\x0a\x01x") + 2] = 0xFF
    with pytest.raises(ImportModelError):
        import_onnx(bytes(data))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_in_attributes_and_sizes(value: float) -> None:
    for op_type, attributes in (("LeakyRelu", {"alpha": value}), ("Elu", {"alpha": value})):
        import_onnx(culprit(op_type, ["x"], **attributes))
    resize = build(
        [node("Resize", ["i", "", "s"], ["y"], name="culprit")],
        {"i": (F32, [1, 1, 2, 2])}, ["y"], {"s": np.array([1, 1, value, 1], np.float32)},
    )  # fmt: skip
    with pytest.raises(UifError, match="culprit"):
        import_onnx(resize)


@pytest.mark.parametrize("sizes", [[2**50, 2, 4], [2**60, 2, 4], [2**31, 2**31, 8], [-1, 2, 4]])
def test_sizes_at_run_time_are_checked(sizes: list[int]) -> None:
    """Products beyond 64 bits would give a small buffer for a large loop."""
    model = build([node("Expand", ["x", "s"], ["y"])], {**X, "s": (I64, [3])}, ["y"])
    x = np.zeros((2, 4), np.float32)
    imported = import_onnx(model, {"x": x, "s": np.array([3, 2, 4])})
    (y,) = execute(imported, {"x": x, "s": np.array([5, 2, 4])})
    assert y.shape == (5, 2, 4)
    with pytest.raises(RuntimeError):
        execute(imported, {"x": x, "s": np.array(sizes)})


@pytest.mark.parametrize(
    "example",
    [
        (),
        [np.zeros((2, 4), np.float32)] * 2,
        {"y": np.zeros((2, 4), np.float32)},
        {"x": None},
        np.zeros((2, 5), np.float32),
        np.zeros((2, 4), np.float64),
        np.zeros((2, 4), np.complex64),
        "text",
        object(),
        {"x": [[1.0], [1.0, 2.0]]},
        {"x": np.array([["a"] * 4] * 2)},
        lambda: None,
        7,
    ],
)
def test_examples_of_the_wrong_kind(example: Any) -> None:
    with pytest.raises(UifError) as caught:
        import_onnx(culprit("Neg", ["x"]), example)
    assert "'x'" in str(caught.value)


def test_complex_inputs_are_refused() -> None:
    with pytest.raises(UifError, match="complex"):
        import_onnx(build([node("Neg", ["x"], ["y"])], {"x": (14, [2])}, ["y"]))


@pytest.mark.parametrize(
    "attributes",
    [
        {"num_scan_inputs": 2**40},
        {"num_scan_inputs": 0},
        {"num_scan_inputs": 1, "scan_input_axes": [0, 0]},
    ],
)
def test_scans_that_do_not_fit(attributes: dict[str, Any]) -> None:
    from onnx import helper

    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", ["a", "b"], ["c"]), node("Neg", ["c"], ["d"])], "b",
        [value("a", F32, [4]), value("b", F32, [4])], [value("c", F32, [4]), value("d", F32, [4])],
    )  # fmt: skip
    scan = node("Scan", ["s", "x"], ["y", "z"], name="culprit", body=body, **attributes)
    model = build([scan], {"s": (F32, [4]), **X}, ["y", "z"])
    with pytest.raises(UifError, match="culprit"):
        import_onnx(model)
