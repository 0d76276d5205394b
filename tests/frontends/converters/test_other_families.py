"""Control flow, sequences, resampling, regions, transforms, trees, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, run_model, single
from tests.frontends.onnx.small_models import BOOL, F32, branching, build

F = np.float32
RNG = np.random.default_rng(0)


def data(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


def check_runtime(model: Any, inputs: dict[str, Any], **kwargs: Any) -> None:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, inputs, session.run(None, inputs), **kwargs)


@pytest.mark.parametrize("condition", [True, False])
def test_if_takes_the_branch_of_the_run(condition: bool) -> None:
    model, inputs = branching()
    check_runtime(model, {**inputs, "c": np.array(condition)})


def test_branches_of_different_shapes() -> None:
    import onnx
    from onnx import helper as h

    def side(name: str, repeat: int) -> Any:
        node = h.make_node("Concat", ["x"] * repeat, [name], axis=0)
        return h.make_graph([node], name, [], [onnx.ValueInfoProto(name=name)])

    nodes = [
        h.make_node("If", ["c"], ["z"], then_branch=side("t", 2), else_branch=side("e", 3)),
        h.make_node("Neg", ["z"], ["y"]),
    ]
    model = build(nodes, {"c": (BOOL, []), "x": (F32, [2])}, ["y"])
    x = data(2)
    for condition, repeat in ((True, 2), (False, 3)):
        (got,) = run_model(model, {"c": np.array(condition), "x": x})
        np.testing.assert_allclose(got, -np.concatenate([x] * repeat))


def test_sequences() -> None:
    from onnx import helper as h

    nodes = [
        h.make_node("SplitToSequence", ["x"], ["s"], axis=0),
        h.make_node("SequenceAt", ["s", "last"], ["a"]),
        h.make_node("SequenceInsert", ["s", "a", "first"], ["t"]),
        h.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    weights = {"last": np.array(-1, np.int64), "first": np.array(0, np.int64)}
    x = data(3, 2)
    model = build(nodes, {"x": (F32, [3, 2])}, ["y"], weights)
    check(model, {"x": x}, expected=[np.concatenate([x[2:], x])])


@pytest.mark.parametrize(
    ("scales", "attributes"),
    [
        ([1, 1, 2.5, 2.5], {"mode": "nearest"}),
        ([1, 1, 1.5, 1.5], {"mode": "nearest", "nearest_mode": "floor"}),
        ([1, 1, 2, 3], {"mode": "linear"}),
        ([1, 1, 0.6, 0.6], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ([1, 1, 2, 2], {"mode": "cubic", "cubic_coeff_a": -0.5}),
        ([1, 1, 2, 2], {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}),
    ],
)
def test_resize(scales: list[float], attributes: dict[str, Any]) -> None:
    x = data(1, 2, 5, 5)
    check_runtime(*single("Resize", [x, None, np.array(scales, F)], constants=[2], **attributes))


def test_resize_to_sizes() -> None:
    sizes = np.array([1, 2, 7, 3], np.int64)
    check_runtime(
        *single("Resize", [data(1, 2, 5, 5), None, None, sizes], constants=[3], mode="linear")
    )


def test_regions_and_boxes() -> None:
    rois = np.array([[1.2, 1.7, 6.3, 7.9], [0, 0, 4.4, 5.1]], F)
    check_runtime(
        *single(
            "RoiAlign",
            [data(1, 1, 10, 10), rois, np.array([0, 0], np.int64)],
            opset=16,
            output_height=3,
            output_width=3,
            sampling_ratio=2,
        )
    )
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], F)
    scores = np.array([[[0.9, 0.75, 0.6]]], F)
    check_runtime(*single("NonMaxSuppression", [boxes, scores, np.array([2]), np.array([0.5], F)]))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(padding: str) -> None:
    grid = RNG.uniform(-1.3, 1.3, (1, 3, 2, 2)).astype(F)
    check_runtime(*single("GridSample", [data(1, 2, 4, 5), grid], opset=16, padding_mode=padding))


def test_transforms() -> None:
    check(*single("DFT", [data(1, 10, 3, 1)], opset=17, axis=1, onesided=1), rtol=1e-3, atol=1e-4)
    check(*single("DFT", [data(1, 10, 3, 2)], opset=17, axis=1, inverse=1), rtol=1e-3, atol=1e-4)
    signal, window = data(1, 64, 1), np.hanning(16).astype(F)
    step = np.array(8, np.int64)
    check(*single("STFT", [signal, step, window], opset=17, constants=[1, 2]), rtol=1e-3, atol=1e-4)


def test_scaler_and_trees() -> None:
    x = data(5, 2)
    model, inputs = single("Scaler", [x], domain="ai.onnx.ml", offset=[1.0, 2.0], scale=[0.5, 3.0])
    check(model, inputs, expected=[(x - np.array([1, 2], F)) * np.array([0.5, 3], F)])
    model, inputs = single(
        "TreeEnsembleRegressor",
        [x],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * 5,
        nodes_nodeids=[0, 1, 2, 3, 4],
        nodes_featureids=[0, 1, 0, 0, 0],
        nodes_values=[0.0, 0.3, 0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 3, 0, 0, 0],
        nodes_falsenodeids=[2, 4, 0, 0, 0],
        target_treeids=[0, 0, 0],
        target_nodeids=[2, 3, 4],
        target_ids=[0, 0, 0],
        target_weights=[1.0, 2.0, 3.0],
    )
    wanted = np.where(x[:, 0] <= 0, np.where(x[:, 1] > F(0.3), 2, 3), 1).astype(F)
    check(model, inputs, expected=[wanted[:, None]])


def test_random_numbers_have_their_distribution_and_repeat() -> None:
    model, inputs = single(
        "RandomNormalLike", [np.zeros((100, 200), F)], mean=3.0, scale=2.0, seed=1.0
    )
    (first,), (second,) = run_model(model, inputs), run_model(model, inputs)
    assert np.array_equal(first, second)
    assert abs(first.mean() - 3) < 0.05
    assert abs(first.std() - 2) < 0.05
    assert len(np.unique(first)) > 19_000
    model, inputs = single("RandomUniformLike", [np.zeros(20_000, F)], low=-1.0, high=1.0)
    (drawn,) = run_model(model, inputs)
    assert -1 <= drawn.min() < -0.99
    assert 0.99 < drawn.max() <= 1


def test_drawn_classes_have_their_chances() -> None:
    chances = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], F)
    with np.errstate(divide="ignore"):
        model, inputs = single(
            "Multinomial", [np.log(chances)], opset=22, sample_size=20_000, seed=3.0
        )
    (drawn,) = run_model(model, inputs)
    assert drawn.dtype == np.int32
    for row, wanted in zip(drawn, chances, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20_000, wanted, atol=0.02)
