"""Named arrays in ``.npz`` files, every element type ONNX has included.

NumPy's format has no 8-bit floats, no bfloat16 and no 4-bit integers. Such arrays are stored as
plain bytes and say so in their key: ``x::bfloat16``. Nothing is pickled.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SEPARATOR = "::"


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write ``arrays`` to ``path``, uncompressed."""
    # Not numpy.savez, which takes names as keyword arguments and so has names of its own.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            key, stored = _stored(name, np.asarray(array))
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)


def load_arrays(path: Path) -> dict[str, Array]:
    """What :func:`save_arrays` wrote, text as ``object`` arrays of ``str``."""
    arrays: dict[str, Array] = {}
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            name, separator, dtype = key.rpartition(SEPARATOR)
            array = archive[key]
            if separator:
                array = array.view(named_dtype(dtype))
            arrays[name if separator else key] = (
                array.astype(object) if array.dtype.kind == "U" else array
            )
    return arrays


def named_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of that name, or that of ``ml_dtypes``."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def dtype_name(array: Array) -> str:
    """Name of the element type; text is ``string``, as ONNX calls it."""
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _stored(name: str, array: Array) -> tuple[str, Array]:
    """Key and storable form of one array."""
    if array.dtype.kind in "OUS":
        return name, array.astype(np.str_)
    if array.dtype.isbuiltin == 1:
        # A name that holds the separator must not be taken for a type.
        return (f"{name}{SEPARATOR}{array.dtype.name}" if SEPARATOR in name else name), array
    raw = np.uint8 if array.dtype.itemsize == 1 else np.uint16
    return f"{name}{SEPARATOR}{array.dtype.name}", np.array(array, order="C").view(raw)
