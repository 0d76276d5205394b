"""Arrays of every element type survive the trip to disk."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.selection.arrays import dtype_name, load_arrays, save_arrays

TYPES = [
    "bool int8 uint8 int16 int32 int64 uint64 float16 float32 float64 complex64".split(),
    [getattr(ml_dtypes, n) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")],
]


@pytest.mark.parametrize("dtype", [np.dtype(kind) for row in TYPES for kind in row], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_round_trip(dtype, shape, tmp_path):
    array = np.ones(shape, np.float32).astype(dtype)
    save_arrays(tmp_path / "a.npz", {"x": array})
    (name, back), *_ = load_arrays(tmp_path / "a.npz").items()
    assert (name, back.dtype, back.shape) == ("x", dtype, shape)
    assert back.tobytes() == array.tobytes()


def test_text_is_text(tmp_path):
    save_arrays(tmp_path / "a.npz", {"t": np.array(["ab", "ü"], object)})
    back = load_arrays(tmp_path / "a.npz")["t"]
    assert back.tolist() == ["ab", "ü"]
    assert dtype_name(back) == "string"


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="\0/\\"), min_size=1))
def test_any_name(name, tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "a.npz"
    save_arrays(path, {name: np.arange(3)})
    assert load_arrays(path)[name].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["a/b:0", "a::float32", "x::bfloat16", "weird::", "file"])
def test_names_that_look_like_ours(name, tmp_path):
    save_arrays(tmp_path / "a.npz", {name: np.arange(3.0, dtype=np.float32)})
    back = load_arrays(tmp_path / "a.npz")
    assert list(back) == [name]
    assert back[name].dtype == np.float32
