"""Arrays in and out: zero-copy between NumPy and the runtime's tensors.

DLPack through NumPy refuses read-only arrays and ml_dtypes' types; both matter here (mapped
weights are read-only, bfloat16 is ordinary), so tensors are made from integer aliases of the
same memory and viewed under their real type. Complex numbers are pairs of real ones to the
compiled code: an axis of two more.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from uif_tvm.runtime.strings import TEXT

Array = np.ndarray[Any, Any]

#: What TVM's code generator assumes of every buffer.
ALIGNMENT = 64

#: Types that NumPy itself lacks, by their common name.
_EXTENDED = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
        "int4",
        "uint4",
        "int2",
        "uint2",
    )
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a common name such as ``float32`` or ``bfloat16``; texts are objects."""
    if name == TEXT:
        return np.dtype(object)
    return _EXTENDED.get(name) or np.dtype(name)


def is_extended(dtype: np.dtype[Any]) -> bool:
    """Whether DLPack through NumPy does not know ``dtype``."""
    return dtype.isbuiltin != 1 and dtype.name in _EXTENDED


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised C-contiguous array whose data starts at a multiple of 64 bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    # Not by slicing: an empty slice starts at the array's first byte, aligned or not. The strides
    # of an array without elements mean nothing to NumPy, but kernels check them.
    strides = [dtype.itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return np.ndarray(
        shape,
        dtype,
        buffer=raw.data,
        offset=-raw.ctypes.data % ALIGNMENT,
        strides=strides[: len(shape)],
    )


def aligned(array: Array) -> Array:
    """``array`` itself when the runtime can take its memory, else an aligned copy."""
    if array.size and array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def to_tensor(ffi: Any, create_view: Callable[..., Any], array: Array) -> Any:
    """``array`` (see :func:`aligned`) as a runtime tensor over the same memory.

    The tensor does not own the memory: the caller keeps ``array`` alive while it is used.
    """
    if array.dtype.kind == "c":
        parts = array.view(array.real.dtype).reshape(*array.shape, 2)
        return to_tensor(ffi, create_view, parts)
    extended = is_extended(array.dtype)
    if array.flags.writeable and not extended:
        return ffi.from_dlpack(array, require_alignment=ALIGNMENT, require_contiguous=True)
    bits = np.dtype(f"uint{8 * array.dtype.itemsize}") if extended else array.dtype
    size = max(array.nbytes, 1)
    memory = memoryview((ctypes.c_uint8 * size).from_address(array.ctypes.data))
    alias = np.ndarray(array.shape, bits, buffer=memory, strides=array.strides)
    tensor = ffi.from_dlpack(alias, require_alignment=ALIGNMENT, require_contiguous=True)
    if extended:
        tensor = create_view(tensor, ffi.Shape(array.shape), array.dtype.name, 0)
    return tensor


def to_numpy(ffi: Any, create_view: Callable[..., Any], tensor: Any, dtype: np.dtype[Any]) -> Array:
    """A runtime tensor as an array that keeps it alive, no copy."""
    if dtype.kind == "c":
        return np.from_dlpack(tensor).view(dtype)[..., 0]
    if is_extended(dtype):
        tensor = create_view(tensor, ffi.Shape(tensor.shape), f"uint{8 * dtype.itemsize}", 0)
        return np.from_dlpack(tensor).view(dtype)
    return np.from_dlpack(tensor)
