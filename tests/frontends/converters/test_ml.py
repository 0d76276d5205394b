"""ai.onnx.ml: preparation of features, look-ups, trees, labels as texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import uif_tvm
from tests.frontends.onnx.harness import check, run_model, single
from uif_tvm.errors import ImportModelError, UnsupportedError

F = np.float32
RNG = np.random.default_rng(5)


def ml(op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Any:
    model, given = single(op, inputs, outputs, domain="ai.onnx.ml", **attributes)
    if op in ("LabelEncoder", "TreeEnsemble"):
        model.opset_import[1].version = 4 if op == "LabelEncoder" else 5
    return model, given


def check_runtime(model: Any, inputs: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, inputs, session.run(None, inputs))


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    x = np.array([[1, 2, -4], [0, 0, 0], [np.inf, 1, 1], [3, 3, 3]], F)
    model, inputs = ml("Normalizer", [x], norm=norm)
    with np.errstate(all="ignore"):
        divisor = {"MAX": x.max(1), "L1": np.abs(x).sum(1), "L2": np.sqrt((x * x).sum(1))}[norm]
        wanted = np.where(divisor[:, None] == 0, x, x / divisor[:, None])
    check(model, inputs, expected=[wanted])


def test_features() -> None:
    x = np.array([[1, np.nan, -1], [0.5, 2, 7]], F)
    check_runtime(*ml("Binarizer", [x[:, :1]], threshold=0.5))
    model, inputs = ml(
        "Imputer", [x], imputed_value_floats=[9.0, 8.0, 7.0], replaced_value_float=float("nan")
    )
    check_runtime(model, inputs)
    model, inputs = ml("Imputer", [np.array([[1, -1], [0, 7]], np.int64)], imputed_value_int64s=[5],
                       replaced_value_int64=-1)  # fmt: skip
    check_runtime(model, inputs)
    check_runtime(*ml("ArrayFeatureExtractor", [x, np.array([2, 0], np.int64)]))
    check_runtime(*ml("OneHotEncoder", [np.array([3, 7, 4], np.int64)], cats_int64s=[7, 3, 1]))
    model, inputs = ml("FeatureVectorizer", [x, np.zeros((2, 1), F)], inputdimensions=[3, 1])
    check(model, inputs, expected=[np.concatenate([x, np.zeros((2, 1), F)], 1)])


def test_labels_by_number_and_nan() -> None:
    x = np.array([[3, -1, 8], [9, 2**40, 3]], np.int64)
    keys = [9, 3, 2**40, -1]
    check_runtime(*ml("LabelEncoder", [x], keys_int64s=keys, values_floats=[1.5, -2.0, 0.0, 4.0]))
    x = np.array([np.nan, 1.5, -0.0, 2.0], F)
    model, inputs = ml(
        "LabelEncoder", [x], keys_floats=[float("nan"), 0.0, 1.5], values_int64s=[7, 8, 9],
        default_int64=-5,
    )  # fmt: skip
    check(model, inputs, expected=[np.array([7, 9, 8, -5])])


def test_texts_of_labels_leave_the_model(tmp_path: Any) -> None:
    x = np.array([4, 1, 6], np.int64)
    model, inputs = ml("LabelEncoder", [x], keys_int64s=[1, 4], values_strings=["one", "four"],
                       default_string="?")  # fmt: skip
    uif_tvm.export(model, inputs, tmp_path / "m.uif", fallback_mode="error")
    (names,) = uif_tvm.load(tmp_path / "m.uif").run(inputs)
    assert names.tolist() == ["four", "one", "?"]


def test_look_ups_without_values_are_refused() -> None:
    model, inputs = ml("LabelEncoder", [np.zeros(2, np.int64)], keys_int64s=[1, 2])
    with pytest.raises(ImportModelError, match="no values are given"):
        run_model(model, inputs)


@pytest.mark.parametrize("aggregate", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trees_with_sets_of_members(aggregate: int, dtype: Any) -> None:
    from onnx import helper
    from onnx.helper import np_dtype_to_tensor_dtype as code

    def tensor(name: str, values: list[float], kind: Any = dtype) -> Any:
        return helper.make_tensor(name, code(np.dtype(kind)), [len(values)], values)

    x = np.array([[1.2, 3.4, -0.12], [1.66, 10, 4], [np.nan, 12, 1], [12, 2, 9]], dtype)
    model, inputs = ml(
        "TreeEnsemble", [x],
        n_targets=2, aggregate_function=aggregate, post_transform=0, tree_roots=[0, 3],
        nodes_modes=tensor("modes", [0, 6, 0, 1], np.uint8),
        nodes_splits=tensor("splits", [3.14, 0.0, 4.2, 10.0]),
        nodes_featureids=[0, 0, 0, 1],
        nodes_truenodeids=[1, 0, 3, 0], nodes_falsenodeids=[2, 1, 2, 2],
        nodes_trueleafs=[0, 1, 1, 1], nodes_falseleafs=[0, 1, 1, 1],
        leaf_targetids=[0, 1, 1, 0],
        leaf_weights=tensor("weights", [5.23, 12.12, -12.23, 7.21]),
        membership_values=tensor("members", [1.2, 3.7, 8.0, np.nan]),
    )  # fmt: skip
    wanted = np.zeros((4, 2))
    for row, (a, b, _) in zip(wanted, x, strict=True):
        if a <= dtype(3.14):
            row[0 if a in (dtype(1.2), dtype(3.7), dtype(8.0)) else 1] += (
                5.23 if a == dtype(1.2) else 12.12
            )
        else:
            row[0 if a <= 4.2 else 1] += 7.21 if a <= 4.2 else -12.23
        row[0 if b < 10 else 1] += 5.23 if b < 10 else -12.23
    check(model, inputs, expected=[(wanted / (1 if aggregate else 2)).astype(dtype)])


def test_trees_in_a_circle_are_refused() -> None:
    from onnx import helper

    model, inputs = ml(
        "TreeEnsemble", [np.zeros((1, 1), F)], n_targets=1, tree_roots=[0],
        nodes_modes=helper.make_tensor("m", 2, [1], [0]),
        nodes_splits=helper.make_tensor("s", 1, [1], [0.0]),
        nodes_featureids=[0], nodes_truenodeids=[0], nodes_falsenodeids=[0],
        nodes_trueleafs=[0], nodes_falseleafs=[1], leaf_targetids=[0],
        leaf_weights=helper.make_tensor("w", 1, [1], [1.0]),
    )  # fmt: skip
    with pytest.raises(ImportModelError, match="cycle"):
        run_model(model, inputs)


@pytest.mark.parametrize("mode", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_post_transforms_of_linear_models(mode: str) -> None:
    x = RNG.standard_normal((5, 3)).astype(F)
    x[0] = 0
    weights = {"coefficients": [0.1, 0.2, -0.3, 0.4, 0.0, 0.1], "intercepts": [0.5, 0.0]}
    model, inputs = ml("LinearRegressor", [x], targets=2, post_transform=mode, **weights)
    check_runtime(model, inputs)
    model, inputs = ml(
        "LinearClassifier", [x], 2, classlabels_ints=[4, 9], post_transform=mode, **weights
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    labels, scores = session.run(None, inputs)
    if mode != "PROBIT":  # where NaN decides about labels
        check(model, inputs, [labels, scores])
    else:
        np.testing.assert_allclose(run_model(model, inputs)[1], scores, rtol=1e-4)


def test_classifiers_that_the_reference_gets_wrong_stay_refused(tmp_path: Any) -> None:
    model, inputs = ml(
        "SVMClassifier", [RNG.standard_normal((2, 3)).astype(F)], 2,
        coefficients=[0.5, -0.3, 0.2, 0.1, 0.7, 0.2, -0.2, 0.4], kernel_params=[0.3, 0.1, 2.0],
        kernel_type="RBF", classlabels_ints=[0, 1, 2], rho=[0.1, 0.2, 0.3],
        support_vectors=[0.1] * 12, vectors_per_class=[2, 1, 1],
        prob_a=[-1.0, -0.5, 0.3], prob_b=[0.1, 0.2, -0.1],
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="without probabilities"):
        uif_tvm.export(model, inputs, tmp_path / "m.uif", fallback_mode="host")
