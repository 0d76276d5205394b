"""One instance through the public flow, and the rule by which results are compared."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.selection import onnx_models as models
from tests.selection.coverage.test_capture_onnx import taken_apart
from uif_tvm.selection.arrays import load_arrays, save_arrays
from uif_tvm.selection.coverage.verify import compare, verify


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    found, _ = taken_apart(models.classifier(custom=True), folder)
    return folder / "instances", found


def verdict(parts, op, **options):
    folder, found = parts
    (instance,) = found[op]
    given = {"target": "cpu", "level": 2, "op": op, "notes": instance.notes} | options
    return verify(str(folder / instance.digest), **given)


def test_what_runs_is_native_checked_and_timed(parts):
    row = verdict(parts, "Softmax")
    assert (row["verdict"], row["checked"]) == ("native", "values")
    assert row["ms"] > 0
    assert row["kernels"]


def test_settled_operators_are_folded_and_dropout_needs_nothing(parts):
    assert verdict(parts, "Concat")["verdict"] == "folded"
    row = verdict(parts, "Dropout")
    assert (row["verdict"], row["checked"]) == ("removed", "values")


def test_unknown_operators_are_unsupported_at_import(parts):
    row = verdict(parts, f"{models.VENDOR}::Wobble")
    assert (row["verdict"], row["stage"]) == ("unsupported", "import")
    assert row["code"] == "UIF-IMPORT-UNSUPPORTED"
    assert row["reason"]


def test_the_import_alone_can_be_asked_for(parts):
    assert verdict(parts, "Softmax", until="import")["checked"] == "imported"
    assert verdict(parts, f"{models.VENDOR}::Wobble", until="import")["verdict"] == "unsupported"


def test_wrong_results_fail_numerically_where_the_reference_agrees_with_the_expected(
    parts, tmp_path, monkeypatch
):
    folder, found = parts
    source = folder / found["Softmax"][0].digest
    for name in ("model.onnx", "inputs.npz"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    shifted = {n: a + np.float32(0.5) for n, a in load_arrays(source / "expected.npz").items()}
    save_arrays(tmp_path / "expected.npz", shifted)
    # ONNX's reference sides with us: then the expected results are what is wrong.
    row = verify(str(tmp_path), "cpu", 2, "Softmax", [])
    assert row["verdict"] == "native"
    assert "departs from ONNX" in row["remark"]
    monkeypatch.setattr("uif_tvm.selection.coverage.verify.second_opinion", lambda folder: None)
    row = verify(str(tmp_path), "cpu", 2, "Softmax", [])
    assert (row["verdict"], row["stage"]) == ("failed", "numeric")
    assert "16 of 16 values" in row["reason"]


def test_random_results_are_compared_by_type(tmp_path):
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise")
    shape = [models.tensor("x", models.FLOAT, [3])], [models.tensor("y", models.FLOAT, [3])]
    found, _ = taken_apart(models.model([node], *shape), tmp_path)
    (instance,) = found["RandomNormalLike"]
    assert instance.notes == ["random"]
    folder = tmp_path / "instances" / instance.digest
    row = verify(str(folder), "cpu", 2, instance.op, instance.notes)
    assert (row["verdict"] in ("native", "composed", "host"), row["checked"]) == (True, "types")


ONES = np.ones(200, np.float32)


@pytest.mark.parametrize(
    ("have", "want", "op", "fault"),
    [
        ([ONES], [ONES], "", None),
        ([ONES * 1.0005], [ONES], "", None),
        ([ONES * 1.002], [ONES], "", "200 of 200 values"),
        ([ONES.astype(np.float64)], [ONES], "", "float64"),
        ([ONES[:5]], [ONES], "", "float32[5]"),
        ([], [ONES], "", "0 outputs instead of 1"),
        ([np.array([np.nan], np.float32)], [np.array([np.nan], np.float32)], "", None),
        ([np.array([1, 2])], [np.array([1, 3])], "", "1 of 2 values differ"),
        ([np.array([1, 2], np.uint8)], [np.array([1, 3], np.uint8)], "Add", "1 of 2"),
        ([np.array(["a", "b"])], [np.array(["a", "b"], object)], "", None),
        ([np.array(["a", "c"])], [np.array(["a", "b"], object)], "", "other texts"),
    ],
)
def test_compare(have, want, op, fault):
    found = compare(have, want, op)
    assert (found is None) if fault is None else (fault in found)


def test_roundings_may_flip_but_rarely_and_by_one_step():
    want = np.zeros(1000, np.uint8)
    one, many, far = want.copy(), want.copy(), want.copy()
    one[0], many[:50], far[0] = 1, 1, 2
    assert compare([one], [want], "QuantizeLinear") is None
    assert compare([one], [want], "Relu") is not None
    assert compare([many], [want], "QuantizeLinear") is not None
    assert compare([far], [want], "QuantizeLinear") is not None


def test_operators_that_quantise_inside_are_judged_by_distance():
    want = np.linspace(-1, 1, 500, dtype=np.float32)
    op = "com.microsoft::DynamicQuantizeLSTM"
    noise = np.float32(0.01) * np.cos(np.arange(500, dtype=np.float32))
    assert compare([want + noise], [want], op) is None
    assert compare([want + noise], [want], "LSTM") is not None
    assert compare([want + 3 * noise], [want], op) is not None
    assert compare([np.full_like(want, np.nan)], [want], op) is not None


def test_only_types_where_values_mean_nothing():
    assert compare([ONES], [ONES * 7], values=False) is None
    assert "instead of" in str(compare([ONES], [ONES[:3]], values=False))
