"""``TensorProto`` to NumPy, with sizes checked before anything is allocated.

External data stays inside the model's folder: the location is resolved component by component,
symbolic links and hard links out of it included, and the byte range must lie in the file and
agree with the tensor's dimensions. Large ranges are memory-mapped.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.onnx.values import Array
from uif_tvm.runtime.strings import TEXT

MAX_ELEMENTS = 1 << 40
MMAP_FROM = 1 << 20
"""Bytes from which external data is memory-mapped instead of read."""


def _fail(tensor: Any, text: str, hint: str | None = None) -> ImportModelError:
    return ImportModelError(
        f"tensor {tensor.name!r}: {text}",
        code="UIF-IMPORT-TENSOR",
        op=tensor.name,
        hint=hint or "the model file is damaged: export it again",
    )


def numpy_dtype(data_type: int, what: str) -> np.dtype[Any]:
    """NumPy (or ml_dtypes) dtype of an ONNX element type; ``object`` for texts.

    Raises:
        ImportModelError: no such element type.
    """
    from onnx import helper

    try:
        dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(data_type))
        return dtype
    except (KeyError, ValueError, TypeError) as exc:
        raise ImportModelError(
            f"{what}: element type {data_type} does not exist",
            code="UIF-IMPORT-TENSOR",
            hint="the model file is damaged, or made for a newer onnx",
        ) from exc


def dtype_name(data_type: int, what: str) -> str:
    """Name of an ONNX element type as signatures write it: ``float32``, ``string`` ...

    Raises:
        ImportModelError: no such element type.
    """
    dtype = numpy_dtype(data_type, what)
    return TEXT if dtype.kind == "O" else dtype.name


def packed_bytes(data_type: int, count: int) -> int:
    """Bytes of ``count`` elements in ONNX's raw form (4-bit and 2-bit types are packed)."""
    from onnx import TensorProto

    bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4}
    for name, width in (("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2)):
        if hasattr(TensorProto, name):
            bits[getattr(TensorProto, name)] = width
    if data_type in bits:
        return -(-count * bits[data_type] // 8)
    return count * numpy_dtype(data_type, "tensor").itemsize


def to_numpy(tensor: Any, folder: Path | None) -> Array:
    """The tensor's elements.

    Raises:
        ImportModelError: sizes disagree, or external data is missing or leads outside.
    """
    from onnx import TensorProto, numpy_helper

    dims = [int(dim) for dim in tensor.dims]
    if any(dim < 0 for dim in dims):
        raise _fail(tensor, f"negative dimension in {dims}")
    count = math.prod(dims)
    if count > MAX_ELEMENTS:
        raise _fail(tensor, f"{dims} is more than any machine holds")
    dtype = numpy_dtype(tensor.data_type, f"tensor {tensor.name!r}")
    if tensor.HasField("segment"):
        raise _fail(tensor, "segmented tensors are not allowed in a model")
    text = dtype.kind == "O"
    if text and (tensor.data_location == TensorProto.EXTERNAL or tensor.HasField("raw_data")):
        raise _fail(tensor, "texts cannot be stored as raw data")
    expected = packed_bytes(tensor.data_type, count)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, folder, dims, dtype, expected)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != expected:
            raise _fail(
                tensor, f"{len(tensor.raw_data)} bytes of data where {dims} needs {expected}"
            )
    else:
        stored = max(
            len(tensor.float_data),
            len(tensor.double_data),
            len(tensor.int64_data),
            len(tensor.uint64_data),
            len(tensor.int32_data),
            len(tensor.string_data),
        )
        wanted = {"complex64": 2 * count, "complex128": 2 * count}.get(str(dtype), count)
        if expected < count * dtype.itemsize:
            wanted = expected
        if stored != wanted:
            raise _fail(tensor, f"{stored} elements of data where {dims} needs {wanted}")
    try:
        return np.asarray(numpy_helper.to_array(tensor)).reshape(dims)
    except (ValueError, TypeError, KeyError, OverflowError) as exc:
        raise _fail(tensor, f"unreadable: {exc}") from exc


def _external(
    tensor: Any, folder: Path | None, dims: list[int], dtype: np.dtype[Any], expected: int
) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(tensor, folder, entries.get("location", ""))
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(expected)))
    except ValueError as exc:
        raise _fail(tensor, f"offset or length is not a number: {exc}") from exc
    size = path.stat().st_size
    if offset < 0 or length < 0 or offset + length > size:
        raise _fail(
            tensor,
            f"bytes {offset}..{offset + length} lie outside {path.name} ({size} bytes)",
            hint="the data file is truncated or belongs to another model",
        )
    if length != expected:
        raise _fail(tensor, f"{length} bytes of external data where {dims} needs {expected}")
    if expected == 0:
        return np.empty(dims, dtype)
    if packed_bytes(tensor.data_type, 8) != 8 * dtype.itemsize:
        import onnx

        copy = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=dims)
        with path.open("rb") as file:
            file.seek(offset)
            copy.raw_data = file.read(length)
        return np.asarray(onnx.numpy_helper.to_array(copy)).reshape(dims)
    little = dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype
    if length >= MMAP_FROM and offset % dtype.itemsize == 0:
        return np.memmap(path, little, "r", offset, tuple(dims))
    with path.open("rb") as file:
        file.seek(offset)
        return np.frombuffer(file.read(length), little).reshape(dims)


def _inside(tensor: Any, folder: Path | None, location: str) -> Path:
    """The external file, which must be a regular file inside the model's folder."""
    hint = "external data must lie beside the model, under a relative path without '..'"
    if folder is None:
        raise _fail(
            tensor,
            "external data, but the model was not read from a file",
            hint="pass the path of the .onnx file, or call onnx.load(path) which reads the data",
        )
    pure = PurePosixPath(location)
    if (
        not location
        or "\0" in location
        or "\\" in location
        or pure.is_absolute()
        or ".." in pure.parts
        or ":" in pure.parts[0]
    ):
        raise _fail(tensor, f"external data location {location!r} is not allowed", hint=hint)
    path = folder / pure
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError) as exc:
        raise _fail(tensor, f"external data {location!r} cannot be found", hint=hint) from exc
    if not resolved.is_relative_to(folder):
        raise _fail(tensor, f"external data {location!r} leads outside the folder", hint=hint)
    status = os.lstat(resolved)
    if not stat.S_ISREG(status.st_mode):
        raise _fail(tensor, f"external data {location!r} is not a regular file", hint=hint)
    if status.st_nlink > 1:
        raise _fail(
            tensor,
            f"external data {location!r} has several hard links and may lie outside the folder",
            hint="copy the file, so that the model owns its data",
        )
    return resolved


def numpy_dtype_named(name: str) -> np.dtype[Any]:
    """NumPy dtype of a dtype name, ``bfloat16``, small floats and texts included."""
    if name == TEXT:
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
