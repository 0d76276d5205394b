"""Arrays in and out of the runtime: aligned, not copied, kept alive."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.conftest import DTYPES
from uif_tvm.runtime.ffi import runtime
from uif_tvm.runtime.tensors import (
    ALIGNMENT,
    aligned,
    aligned_empty,
    numpy_dtype,
    to_numpy,
    to_tensor,
)

FFI = runtime()
VIEW = FFI.get_global_func("runtime.TVMTensorCreateView")


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple), st.sampled_from(DTYPES))
def test_aligned_empty(shape, dtype):
    made = aligned_empty(shape, numpy_dtype(dtype))
    assert (made.shape, made.dtype) == (shape, numpy_dtype(dtype))
    assert made.ctypes.data % ALIGNMENT == 0
    assert made.flags.c_contiguous
    assert made.flags.writeable
    made[...] = np.ones(shape).astype(made.dtype)
    assert (made == 1).all()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), st.integers(0, 64))
def test_aligned_copies_only_what_it_must(shape, offset):
    size = int(np.prod(shape)) * 4
    base = aligned_empty((size + 64,), np.dtype(np.uint8))
    array = np.ndarray(shape, np.float32, buffer=base.data, offset=offset)
    array[...] = 3
    made = aligned(array)
    assert made.ctypes.data % ALIGNMENT == 0
    np.testing.assert_array_equal(made, array)
    assert (made is array) == (offset % ALIGNMENT == 0 and array.size > 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (1, 1)])
@pytest.mark.parametrize("writeable", [True, False])
def test_there_and_back_over_the_same_memory(dtype, shape, writeable):
    array = aligned_empty(shape, numpy_dtype(dtype))
    array[...] = np.ones(shape).astype(array.dtype)
    array.flags.writeable = writeable
    tensor = to_tensor(FFI, VIEW, array)
    assert (str(tensor.dtype), tuple(tensor.shape)) == (dtype, shape)
    back = to_numpy(FFI, VIEW, tensor, array.dtype)
    assert (back.dtype, back.shape) == (array.dtype, shape)
    np.testing.assert_array_equal(back, array)
    if array.size:
        assert back.ctypes.data == array.ctypes.data


def test_result_keeps_the_tensor_alive():
    made = to_numpy(FFI, VIEW, FFI.from_dlpack(np.full(100_000, 5.0)), np.dtype(np.float64))
    gc.collect()
    np.full(100_000, 1.0)
    assert (made == 5).all()
