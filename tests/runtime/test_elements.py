"""Declared and stored element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from uif_tvm.runtime.elements import (
    element_name,
    from_stored,
    is_stored,
    stored_dtype,
    to_stored,
)
from uif_tvm.runtime.strings import Strings
from uif_tvm.runtime.tensors import numpy_dtype

SMALL = [
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
def test_round_trip_over_bytes(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(numpy_dtype(dtype))
    stored = to_stored(array)
    assert is_stored(dtype)
    assert str(stored.dtype) == stored_dtype(dtype)
    assert stored.dtype.itemsize == 1
    back = from_stored(stored, dtype)
    assert back.dtype == array.dtype
    assert back.shape == shape
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))


def test_signed_integers_keep_their_sign():
    array = np.array([-8, 7, -1], ml_dtypes.int4)
    np.testing.assert_array_equal(to_stored(array), np.array([-8, 7, -1], np.int8))


def test_texts_need_their_table():
    table, texts = Strings(), np.array([["a", ""], ["b", "a"]])
    assert element_name(texts) == element_name(texts.astype(object)) == "string"
    ids = to_stored(texts, table)
    np.testing.assert_array_equal(ids, [[1, 0], [2, 1]])
    np.testing.assert_array_equal(from_stored(ids, "string", table), texts)
    for call in (lambda: to_stored(texts), lambda: from_stored(ids, "string")):
        with pytest.raises(ValueError, match="table"):
            call()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
def test_others_are_themselves(dtype):
    array = np.zeros((2,), numpy_dtype(dtype))
    assert stored_dtype(dtype) == dtype
    assert not is_stored(dtype)
    assert to_stored(array) is array
    assert from_stored(array, dtype) is array
