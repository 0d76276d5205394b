"""Which instances a model consists of: counts, calls, roles, what is settled or not reached."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.selection import onnx_models as models
from uif_tvm.errors import ImportModelError
from uif_tvm.selection.arrays import load_arrays, save_arrays
from uif_tvm.selection.coverage.capture_onnx import capture
from uif_tvm.selection.coverage.instance import OpInstance
from uif_tvm.selection.coverage.walk import NOT_TAKEN


def taken_apart(proto, folder, inputs=None):
    """Instances by operator, and the whole answer."""
    path = models.save(proto, folder)
    feeds = None
    if inputs is not None:
        feeds = str(folder / "in.npz")
        save_arrays(folder / "in.npz", inputs)
    answer = capture(str(path), feeds, str(folder / "instances"), [])
    found: dict[str, list[OpInstance]] = {}
    for data in answer["instances"]:
        instance = OpInstance.from_json(data)
        found.setdefault(instance.op, []).append(instance)
    return found, answer


def test_equal_nodes_are_one_instance_with_its_places(tmp_path):
    found, answer = taken_apart(models.classifier(), tmp_path)
    (product,) = found["MatMul"]
    assert (product.count, product.calls, product.nodes) == (2, 2.0, ["first", "second"])
    assert [str(i) for i in product.inputs] == ["float32[2,8]", "float32[8,8] const"]
    assert product.flops == 2 * 2 * 8 * 8
    assert product.bytes == 4 * (16 + 64 + 16)
    assert answer["histogram"]["MatMul"] == 2
    assert sum(answer["histogram"].values()) == 12


def test_shape_arithmetic_is_settled_and_its_value_decides(tmp_path):
    found, _ = taken_apart(models.classifier(), tmp_path)
    for op in ("Shape", "Gather", "Concat"):
        assert "settled" in found[op][0].notes
    (reshape,) = found["Reshape"]
    assert "settled" not in reshape.notes
    assert str(reshape.inputs[1]) == "int64[2]=[2,-1]"


def test_the_folder_has_all_that_is_needed_to_try_an_instance(tmp_path):
    found, _ = taken_apart(models.classifier(), tmp_path)
    folder = tmp_path / "instances" / found["Softmax"][0].digest
    feeds, expected = load_arrays(folder / "inputs.npz"), load_arrays(folder / "expected.npz")
    x = feeds["x0"]
    np.testing.assert_allclose(
        expected["y0"], np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-6
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_both_branches_are_walked_and_only_one_costs(sign, tmp_path):
    x = sign * np.ones(4, np.float32)
    found, answer = taken_apart(models.branching(), tmp_path, {"x": x})
    taken, other = ("Add", "Neg") if sign > 0 else ("Neg", "Add")
    assert (found[taken][0].count, found[taken][0].calls) == (1, 1.0)
    assert (found[other][0].count, found[other][0].calls) == (1, 0.0)
    assert found["Relu"][0].nodes == ["choose:then/then_relu"]
    assert "body" in found["If"][0].notes
    assert set(answer["histogram"].values()) == {1}


def test_a_branch_that_can_never_be_taken_is_left_out(tmp_path):
    proto = models.branching()
    proto.graph.node[0].CopyFrom(helper.make_node("Shape", ["x"], ["shape"], name="sum"))
    proto.graph.node[1].CopyFrom(
        helper.make_node("Greater", ["shape", "izero"], ["c"], name="positive")
    )
    proto.graph.initializer.append(models.constant("izero", [0], np.int64))
    found, _ = taken_apart(proto, tmp_path)
    assert "Add" in found
    assert "Neg" not in found


def test_a_branch_not_taken_need_not_fit(tmp_path):
    proto = models.branching()
    branch = next(a.g for a in proto.graph.node[2].attribute if a.name == "else_branch")
    branch.node[0].CopyFrom(helper.make_node("Add", ["x", "wide"], ["e1"], name="else_neg"))
    proto.graph.initializer.append(models.constant("wide", np.ones((2, 7))))
    found, _ = taken_apart(proto, tmp_path, {"x": np.ones(4, np.float32)})
    (misfit,) = [i for i in found["Add"] if i.obstacle]
    assert (misfit.obstacle, misfit.calls) == (NOT_TAKEN, 0.0)


def test_bodies_of_loops_count_once_and_cost_every_time(tmp_path):
    found, answer = taken_apart(models.looping(5), tmp_path, {"x": np.ones(3, np.float32)})
    assert (found["Tanh"][0].count, found["Tanh"][0].calls) == (1, 5.0)
    assert answer["histogram"] == {"Loop": 1, "Mul": 1, "Tanh": 1, "Identity": 2}
    assert found["Mul"][0].nodes == ["loop/loop_mul"]


def test_a_loop_that_never_runs_still_has_operators(tmp_path):
    found, _ = taken_apart(models.looping(0), tmp_path, {"x": np.ones(3, np.float32)})
    assert (found["Tanh"][0].count, found["Tanh"][0].calls) == (1, 0.0)


def test_local_functions_are_expanded(tmp_path):
    found, answer = taken_apart(models.with_function(), tmp_path)
    assert answer["functions"] == {f"{models.VENDOR}::Scaled": 2}
    assert answer["histogram"] == {"Mul": 2, "Sigmoid": 2}
    assert found["Mul"][0].count == 2


def test_an_operator_nobody_knows_is_an_instance_and_the_walk_goes_on(tmp_path):
    found, _ = taken_apart(models.classifier(custom=True), tmp_path)
    (custom,) = found[f"{models.VENDOR}::Wobble"]
    assert (custom.expected_by, custom.obstacle) == ("", "")
    assert custom.attributes == {"strength": "3"}
    assert "no-reference" in custom.notes
    assert "made-up-inputs" in found["Softmax"][0].notes
    folder = tmp_path / "instances" / custom.digest
    assert not (folder / "expected.npz").exists()


def test_what_hangs_on_an_unknown_value_says_so(tmp_path):
    node = [
        helper.make_node("Wobble", ["x"], ["a", "b"], name="two", domain=models.VENDOR),
        helper.make_node("Relu", ["b"], ["y"], name="after"),
    ]
    proto = models.model(
        node, [models.tensor("x", models.FLOAT, [2])], [models.tensor("y", models.FLOAT, ["n"])]
    )
    found, _ = taken_apart(proto, tmp_path)
    assert found["Relu"][0].obstacle == "its operand 'b' is not known"


def test_results_that_a_node_leaves_out(tmp_path):
    weights_of_state = models.weights(1, 12, 3)
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["all", "", "cell"], name="cell", hidden_size=3),
        helper.make_node("Add", ["cell", "cell"], ["y"], name="twice"),
    ]
    proto = models.model(
        nodes,
        [models.tensor("x", models.FLOAT, [4, 1, 2])],
        [models.tensor("y", models.FLOAT, [1, 1, 3]), models.tensor("all", models.FLOAT, None)],
        [models.constant("w", models.weights(1, 12, 2)), models.constant("r", weights_of_state)],
    )
    found, _ = taken_apart(proto, tmp_path)
    assert str(found["Add"][0].inputs[0]) == "float32[1,1,3]"
    (cell,) = found["LSTM"]
    assert [info.shape for info in cell.outputs] == [(4, 1, 1, 3), (1, 1, 3)]
    expected = load_arrays(tmp_path / "instances" / cell.digest / "expected.npz")
    assert {name: array.shape for name, array in expected.items()} == {
        "y0": (4, 1, 1, 3), "y2": (1, 1, 3),
    }  # fmt: skip


def test_dead_nodes_are_not_met(tmp_path):
    proto = models.classifier()
    proto.graph.node.append(helper.make_node("Exp", ["a"], ["unused"], name="dead"))
    found, _ = taken_apart(proto, tmp_path)
    assert "Exp" not in found


def test_open_shapes_need_values_and_wrong_ones_are_named(tmp_path):
    proto = models.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [models.tensor("x", models.FLOAT, ["n", 3])],
        [models.tensor("y", models.FLOAT, ["n", 3])],
    )
    with pytest.raises(ImportModelError, match="'x' has an open shape"):
        taken_apart(proto, tmp_path)
    with pytest.raises(ImportModelError, match=r"shape \[2, 4\], not \[None, 3\]"):
        taken_apart(proto, tmp_path, {"x": np.ones((2, 4), np.float32)})
    with pytest.raises(ImportModelError, match="given as float64"):
        taken_apart(proto, tmp_path, {"x": np.ones((2, 3))})
    with pytest.raises(ImportModelError, match="'z' the model has no such input"):
        taken_apart(proto, tmp_path, {"z": np.ones(2, np.float32)})
    found, _ = taken_apart(proto, tmp_path, {"x": np.ones((2, 3), np.float32)})
    assert str(found["Relu"][0].inputs[0]) == "float32[2,3]"


def test_weights_may_lie_in_another_file(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save_model(
        models.classifier(), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    answer = capture(str(path), None, str(tmp_path / "instances"), [])
    (product,) = [i for i in answer["instances"] if i["op"] == "MatMul"]
    alone = onnx.load(tmp_path / "instances" / product["digest"] / "model.onnx")
    (weight,) = alone.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), models.weights(8, 8))


def one_relu(name, shape, constant=False):
    """``y = relu(x)`` with every name made from ``name``."""
    nodes = [helper.make_node("Relu", [f"{name}_x"], [f"{name}_y"], name=f"{name}_node")]
    return models.model(
        nodes,
        [] if constant else [models.tensor(f"{name}_x", models.FLOAT, shape)],
        [models.tensor(f"{name}_y", models.FLOAT, shape)],
        [models.constant(f"{name}_x", np.ones(shape))] if constant else [],
    )


@settings(max_examples=15, deadline=None)
@given(
    names=st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=2, max_size=2),
    shape=st.lists(st.integers(1, 4), max_size=3),
    grow=st.booleans(),
)
def test_digests_follow_what_is_computed_and_not_what_it_is_called(
    names, shape, grow, tmp_path_factory
):
    def digest(name, extents, constant=False):
        folder = tmp_path_factory.mktemp("d")
        found, _ = taken_apart(one_relu(name, extents, constant), folder)
        return found["Relu"][0].digest

    other = [*shape, 2] if grow else shape
    assert (digest(names[0], shape) == digest(names[1], other)) is (not grow)
    assert digest(names[0], shape) != digest(names[0], shape, constant=True)
