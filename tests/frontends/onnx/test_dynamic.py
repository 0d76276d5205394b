"""One import, many sizes: models with open axes compute what those with fixed ones do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.onnx.harness import run_model, runner
from uif_tvm.errors import ImportModelError, UsageError
from uif_tvm.frontends.onnx import import_onnx
from uif_tvm.signature import DimRange

RNG = np.random.default_rng(0)
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence["int | str | None"]


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Shape],
    weights: dict[str, Any] | None = None,
    kind: int = FLOAT,
) -> Any:
    """A model whose result is ``y``."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name="y")],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in (weights or {}).items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(proto: Any, shapes: Sequence[Sequence[Sequence[int]]], dynamic: Any = "auto") -> Any:
    """Import once without an example and run on inputs of every shape; returns the import."""
    imported = import_onnx(proto, None, dynamic_shapes=dynamic)
    run = runner(imported)
    names = [spec.name for spec in imported.signature.inputs]
    for row in shapes:
        feed = {
            name: RNG.standard_normal(shape).astype(np.float32)
            for name, shape in zip(names, row, strict=True)
        }
        (want,) = run_model(proto, feed)
        (have,) = run(feed)
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
        assert have.dtype == want.dtype
    return imported


node = helper.make_node
X4 = {"x": ("n", 2, "h", "w")}
SIZES = [[(1, 2, 5, 6)], [(3, 2, 8, 9)]]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
        {"ceil_mode": 1, "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"strides": [3, 2], "pads": [0, 1, 2, 1]},
        {"dilations": [2, 1], "strides": [2, 2]},
    ],
    ids=str,
)
def test_windows(op: str, attributes: dict[str, Any]) -> None:
    check(model([node(op, ["x"], ["y"], kernel_shape=[3, 2], **attributes)], X4), SIZES)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_convolutions_of_the_same_size(mode: str) -> None:
    w = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)
    conv = node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[2, 2])
    check(model([conv], X4, {"w": w}), SIZES)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "transform", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
def test_resize_by_scales(mode: str, transform: str) -> None:
    resize = node(
        "Resize", ["x", "", "s"], ["y"], mode=mode, coordinate_transformation_mode=transform
    )
    scales = np.array([1, 1, 2, 1.5], np.float32)
    check(model([resize], X4, {"s": scales}), SIZES)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_to_the_size_of_another(mode: str) -> None:
    nodes = [
        node("Shape", ["z"], ["size"], start=2),
        node("Shape", ["x"], ["lead"], end=2),
        node("Concat", ["lead", "size"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode),
    ]
    inputs = {**X4, "z": ("a", "b", "c", "d")}
    shapes = [[(1, 2, 5, 6), (1, 1, 10, 3)], [(2, 2, 4, 4), (1, 3, 4, 9)]]
    check(model(nodes, inputs), shapes)


def test_float_shape_arithmetic() -> None:
    """floor(0.5 n) + 1 as exporters write it; where it is exact, no kernel computes it."""
    nodes = [
        node("Shape", ["x"], ["dims"]),
        node("Gather", ["dims", "last"], ["d"], axis=0),
        node("Cast", ["d"], ["f"], to=FLOAT),
        node("Mul", ["f", "half"], ["g"]),
        node("Floor", ["g"], ["k"]),
        node("Cast", ["k"], ["i"], to=INT),
        node("Slice", ["x", "zero", "i", "last"], ["y"]),
    ]
    weights = {
        "last": np.array([1], np.int64),
        "half": np.array(0.5, np.float32),
        "zero": np.array([0], np.int64),
    }
    made = check(model(nodes, {"x": ("n", "m")}, weights), [[(2, 5)], [(1, 8)], [(3, 2)]])
    assert "m // T.int64(2)" in str(made.signature.outputs[0].shape[1])


def test_constants_that_are_no_small_fraction_are_left_to_the_device() -> None:
    nodes = [
        node("Shape", ["x"], ["dims"]),
        node("Cast", ["dims"], ["f"], to=FLOAT),
        node("Mul", ["f", "third"], ["g"]),
        node("Ceil", ["g"], ["k"]),
        node("Cast", ["k"], ["i"], to=INT),
        node("ConstantOfShape", ["i"], ["y"]),
    ]
    weights = {"third": np.array(0.3, np.float32)}
    check(model(nodes, {"x": ("n", "m")}, weights), [[(2, 5)], [(7, 10)]])


@pytest.mark.parametrize("count", [2, 3])
def test_splits_into_equal_parts(count: int) -> None:
    parts = [f"p{i}" for i in range(count)]
    nodes = [
        node("Split", ["x"], parts, axis=1, num_outputs=count),
        node("Neg", [parts[-1]], ["last"]),
        node("Concat", [*parts[:-1], "last"], ["y"], axis=1),
    ]
    check(model(nodes, {"x": ("n", "m")}), [[(2, 7)], [(1, 6)], [(3, 12)]])


def test_reshapes_copy_and_infer() -> None:
    nodes = [node("Reshape", ["x", "to"], ["y"])]
    weights = {"to": np.array([0, -1, 2], np.int64)}
    check(model(nodes, {"x": ("n", "m", 4)}, weights), [[(2, 3, 4)], [(1, 5, 4)]])


def test_tiles_expands_and_ranges() -> None:
    nodes = [
        node("Shape", ["x"], ["dims"]),
        node("Gather", ["dims", "one"], ["m"], axis=0),
        node("Range", ["zero", "m", "one"], ["r"]),
        node("Cast", ["r"], ["f"], to=FLOAT),
        node("Add", ["x", "f"], ["s"]),
        node("Tile", ["s", "twice"], ["y"]),
    ]
    weights = {
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "twice": np.array([2, 1], np.int64),
    }
    check(model(nodes, {"x": ("n", "m")}, weights), [[(2, 7)], [(1, 3)]])


def test_attention_over_an_open_sequence() -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["x", "t"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["y"]),
    ]
    check(model(nodes, {"x": ("batch", "seq", 8)}), [[(2, 5, 8)], [(1, 1, 8)], [(3, 17, 8)]])


def test_recurrence_over_open_steps() -> None:
    rng = np.random.default_rng(2)
    weights = {
        "w": rng.standard_normal((1, 9, 4)).astype(np.float32),
        "r": rng.standard_normal((1, 9, 3)).astype(np.float32),
    }
    gru = node("GRU", ["x", "w", "r"], ["y"], hidden_size=3)
    check(model([gru], {"x": ("steps", "batch", 4)}, weights), [[(5, 2, 4)], [(1, 1, 4)]])


def squeezed(size: int) -> Any:
    """``x.squeeze(1)`` as TorchScript exports it: an If on the extent."""
    then = helper.make_graph(
        [node("Squeeze", ["x", "axis"], ["a"])], "t", [], [onnx.ValueInfoProto(name="a")]
    )
    other = helper.make_graph(
        [node("Identity", ["x"], ["b"])], "e", [], [onnx.ValueInfoProto(name="b")]
    )
    nodes = [
        node("Shape", ["x"], ["dims"]),
        node("Gather", ["dims", "at"], ["d"], axis=0),
        node("Equal", ["d", "one"], ["is_one"]),
        node("If", ["is_one"], ["s"], then_branch=then, else_branch=other),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    weights = {
        "axis": np.array([1], np.int64),
        "at": np.array(1, np.int64),
        "one": np.array(1, np.int64),
        "w": np.ones((3, 2), np.float32),
    }
    proto = model(nodes, {"x": ("n", "m", 3)}, weights)
    return import_onnx(proto, np.zeros((2, size, 3), np.float32), dynamic_shapes="auto")


@pytest.mark.parametrize(("size", "shape"), [(1, (4, 2)), (5, (4, 5, 2))])
def test_branches_of_different_rank_go_the_example_s_way(size: int, shape: Any) -> None:
    made = squeezed(size)
    run = runner(made)
    (have,) = run({"x": np.ones((4, size, 3), np.float32)})
    np.testing.assert_array_equal(have, np.full(shape, 3, np.float32))
    with pytest.raises(Exception, match="match_cast"):
        run({"x": np.ones((4, 6 - size, 3), np.float32)})


def test_squeezing_whatever_is_one_goes_by_the_example() -> None:
    proto = model([node("Squeeze", ["x"], ["y"])], {"x": ("n", "m")})
    made = import_onnx(proto, np.zeros((1, 4), np.float32), dynamic_shapes="auto")
    run = runner(made)
    assert run({"x": np.ones((1, 6), np.float32)})[0].shape == (6,)
    with pytest.raises(Exception, match="match_cast"):
        run({"x": np.ones((2, 6), np.float32)})


def test_names_and_ranges_reach_the_signature() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ("batch size", None, 3)})
    (auto,) = import_onnx(proto, None, dynamic_shapes="auto").signature.inputs
    assert auto.shape == ("batch_size", "x_1", 3)
    chosen = {"x": {0: ("n", 1, 8), -2: "m"}}
    (spec,) = import_onnx(proto, None, dynamic_shapes=chosen).signature.inputs
    assert spec.shape == ("n", "m", 3)
    assert spec.ranges == (DimRange("n", 1, 8), DimRange("m"))


def test_the_example_settles_what_is_not_open() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ("n", "m")})
    made = import_onnx(proto, np.zeros((2, 5), np.float32), dynamic_shapes={"x": {0: "n"}})
    assert made.signature.inputs[0].shape == ("n", 5)


@pytest.mark.parametrize(
    ("dynamic", "word"),
    [
        ({"z": {0: "n"}}, "no input 'z'"),
        ({"x": {7: "n"}}, "no axis 7"),
        ({"x": {2: "c"}}, "fixes axis 2"),
        ({"x": {0: "not a name"}}, "no name"),
        ({"x": {0: ("n", 5, 2)}}, "empty"),
        ({"x": {0: ("n", 1, 4), 1: ("n", 1, 5)}}, "two ranges"),
        ({"x": ["n", "m"]}, "3 axes"),
        ({"x": {0: 3.5}}, "is no name"),
        ({"x": "n"}, "dict by axis"),
        (7, "neither a mapping"),
    ],
)
def test_what_cannot_be_meant_is_refused(dynamic: Any, word: str) -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ("n", "m", 3)})
    with pytest.raises(UsageError, match=word) as caught:
        import_onnx(proto, np.zeros((2, 2, 3), np.float32), dynamic_shapes=dynamic)
    assert caught.value.code == "UIF-USAGE-DYNAMIC"


def test_examples_must_lie_in_the_range_and_agree() -> None:
    proto = model([node("Add", ["x", "z"], ["y"])], {"x": ("n",), "z": ("n",)})
    with pytest.raises(ImportModelError, match="outside"):
        import_onnx(
            proto, [np.zeros(9, np.float32)] * 2, dynamic_shapes={"x": {0: ("n", 1, 8)}, "z": ["n"]}
        )
    arrays = [np.zeros(3, np.float32), np.zeros(4, np.float32)]
    with pytest.raises(ImportModelError, match="'n' is 3"):
        import_onnx(proto, arrays, dynamic_shapes={"x": ["n"], "z": ["n"]})


def test_one_name_for_different_extents_is_taken_for_two_dimensions() -> None:
    proto = model([node("Concat", ["x", "z"], ["y"], axis=0)], {"x": ("dim",), "z": ("dim",)})
    arrays = [np.zeros(3, np.float32), np.zeros(4, np.float32)]
    made = import_onnx(proto, arrays, dynamic_shapes="auto")
    assert [spec.shape for spec in made.signature.inputs] == [("dim",), ("dim_2",)]


def test_dimensions_equal_only_at_run_time_are_checked() -> None:
    proto = model([node("Add", ["x", "z"], ["y"])], {"x": ("n", "m"), "z": ("n", "k")})
    made = check(proto, [[(2, 3), (2, 3)], [(1, 6), (1, 6)]])
    with pytest.raises(Exception, match="match_cast"):
        runner(made)({"x": np.ones((2, 3), np.float32), "z": np.ones((2, 4), np.float32)})


def test_open_axes_without_a_word_still_need_an_example() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ("n", 3)})
    with pytest.raises(ImportModelError, match="not static") as caught:
        import_onnx(proto)
    assert "dynamic_shapes" in str(caught.value.hint)


def test_question_marks_name_no_dimension():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["?", "?"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    example = np.zeros((2, 3), np.float32)
    (spec,) = import_onnx(made, {"x": example}, dynamic_shapes="auto").signature.inputs
    assert len(set(spec.shape)) == 2
