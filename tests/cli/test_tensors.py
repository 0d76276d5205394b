"""Arrays on the command line: reading, making up, and writing under any name."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.cli import tensors
from uif_tvm.errors import ArtifactIOError, UsageError
from uif_tvm.signature import TensorSpec


def test_reads_npy_and_npz(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "two.npz", a=x, b=x + 1)
    np.savez(tmp_path / "one.npz", whatever=x + 2)
    arrays = tensors.read_inputs(
        [f"x=@{tmp_path}/x.npy", f"b=@{tmp_path}/two.npz", f"c=@{tmp_path}/one.npz"]
    )
    assert [float(arrays[name][0, 0]) for name in ("x", "b", "c")] == [0, 1, 2]


def test_names_may_contain_the_separator(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1))
    assert list(tensors.read_inputs([f'{{"a=@b": 1}}=@{tmp_path}/x.npy'])) == ['{"a=@b": 1}']


def refused(text: str, *fragments: str) -> None:
    with pytest.raises(UsageError) as caught:
        tensors.read_inputs([text])
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_refusals_of_inputs(tmp_path):
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "junk.npy").write_bytes(b"not an array")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "junk.npz").write_bytes(b"PK\x03\x04 torn")
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    refused("no-at-sign", "NAME=@FILE")
    refused("=@x.npy", "NAME=@FILE")
    refused(f"x=@{tmp_path}/missing.npy", "no file", "numpy.save")
    refused(f"x=@{tmp_path}", "not a .npy")
    refused(f"x=@{tmp_path}/pickled.npy", "object arrays are not accepted")
    refused(f"x=@{tmp_path}/junk.npy", "not a .npy")
    refused(f"x=@{tmp_path}/empty.npy", "not a .npy")
    refused(f"x=@{tmp_path}/junk.npz", "not a .npy")
    refused(f"x=@{tmp_path}/two.npz", "'a', 'b'", "numpy.savez")


def test_an_input_given_twice_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1))
    with pytest.raises(UsageError, match="twice"):
        tensors.read_inputs([f"x=@{tmp_path}/x.npy"] * 2)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("x=1,3,224,224", (1, 3, 224, 224)), ("x=2x5", (2, 5)), ("x=", ()), ("a=b=7", (7,))],
)
def test_shapes(text, shape):
    assert list(tensors.read_shapes([text]).values()) == [shape]


@pytest.mark.parametrize("text", ["x", "x=a,b", "x=-1,3", "x=1.5", "=3"])
def test_bad_shapes(text):
    with pytest.raises(UsageError, match="--input-shape"):
        tensors.read_shapes([text])


SPECS = (
    TensorSpec("ids", ("batch", 128), "int64"),
    TensorSpec("mask", ("batch", "?"), "bool"),
    TensorSpec("scale", (), "float32"),
)


def test_every_open_dimension_is_named_with_the_option_that_settles_it():
    with pytest.raises(UsageError) as caught:
        tensors.complete_shapes(SPECS, {}, {})
    text = str(caught.value)
    assert "ids: int64[batch, 128]" in text
    assert "--input-shape 'ids=1,128'" in text
    assert "--input-shape 'mask=1,1'" in text
    assert "scale" not in text


def test_shapes_are_completed_and_checked():
    shapes = {"ids": (4, 128), "mask": (4, 9)}
    assert tensors.complete_shapes(SPECS, shapes, {}) == {**shapes, "scale": ()}
    given_mask = tensors.complete_shapes(SPECS, {"ids": (4, 128)}, {"mask": np.ones((4, 9))})
    assert set(given_mask) == {"ids", "scale"}
    for wrong in ((4, 127), (4,)):
        with pytest.raises(UsageError, match=r"declares ids: int64\[batch, 128\]"):
            tensors.complete_shapes(SPECS, {**shapes, "ids": wrong}, {})
    with pytest.raises(UsageError, match="no input 'idz'"):
        tensors.complete_shapes(SPECS, {**shapes, "idz": (1,)}, {})


def test_made_up_inputs_are_repeatable_and_of_the_right_kind():
    specs = (*SPECS, TensorSpec("half", (3,), "bfloat16"))
    shapes = {"ids": (4, 128), "mask": (4, 9), "scale": (), "half": (3,)}
    first, second = (tensors.synthesise(specs, shapes) for _ in range(2))
    for spec in specs:
        assert first[spec.name].shape == shapes[spec.name]
        np.testing.assert_array_equal(first[spec.name], second[spec.name])
    assert set(np.unique(first["ids"])) == {0, 1}
    assert first["half"].dtype == ml_dtypes.bfloat16


@given(st.text(), st.text())
def test_file_names_are_safe_and_tell_names_apart(first, second):
    files = [tensors.safe_file_name(name) for name in (first, second)]
    for file in files:
        assert file
        assert file not in (".", "..")
        assert Path(file).name == file
        assert len(file.encode()) <= tensors.MAX_NAME
        assert file.isascii()
        assert not set(file) & set('/\\:*?"<>|')
    assert (first == second) == (files[0] == files[1])


def test_file_names_people_can_read():
    assert tensors.safe_file_name("logits") == "logits"
    assert tensors.safe_file_name("../etc/x") == "%2E.%2Fetc%2Fx"


def test_outputs_are_written_under_any_name(tmp_path):
    names = ["y", "Y", "../up", "a/b", '{"a": 1}', "", "n" * 400, "outputs.json"]
    arrays = [np.full((2,), index, np.float32) for index in range(len(names))]
    files = tensors.write_outputs(tmp_path / "deep" / "out", names, arrays)
    folder = tmp_path / "deep" / "out"
    assert sorted(p.name for p in folder.iterdir()) == sorted([*files.values(), "outputs.json"])
    assert len({file.lower() for file in files.values()}) == len(names)
    assert json.loads((folder / "outputs.json").read_text())["outputs"] == files
    for name, array in zip(names, arrays, strict=True):
        np.testing.assert_array_equal(np.load(folder / files[name]), array)
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]


def test_outputs_of_small_floats_are_widened(tmp_path):
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    files = tensors.write_outputs(tmp_path, ["y"], [array])
    loaded = np.load(tmp_path / files["y"])
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, [1.5, -2])


def test_zero_dimensional_outputs_stay_so(tmp_path):
    files = tensors.write_outputs(tmp_path, ["y"], [np.array(3.0)])
    assert np.load(tmp_path / files["y"]).shape == ()


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactIOError, match="cannot write outputs") as caught:
        tensors.write_outputs(tmp_path / "file" / "out", ["y"], [np.zeros(1)])
    assert caught.value.exit_code == 4
    assert "--output-dir" in str(caught.value.hint)
