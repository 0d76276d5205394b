"""Element types that code does not compute with as they are, and what carries them instead.

A tensor of such a type flows through compiled code under a *stored* type of the same shape:

======================================== ======== ===============================================
declared                                 stored   what an element holds
======================================== ======== ===============================================
``string``                               int64    id of the text, see :mod:`uif_tvm.runtime.strings`
``int4``, ``int2``                       int8     the number itself, one element a byte
``uint4``, ``uint2``                     uint8    the number itself, one element a byte
``float8_*``, ``float6_*``, ``float4_*`` uint8    the bit pattern, in the low bits
======================================== ======== ===============================================

So whatever only moves elements (reshape, gather, concat, where ...) works on the stored type as
it is; converters that look into elements (Cast, QuantizeLinear, DequantizeLinear) decode them;
host calls get and give declared types. The signature names declared types; callers see those.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from uif_tvm.runtime.strings import TEXT, Strings

Array = np.ndarray[Any, Any]

_SMALL_FLOATS = (
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
)
_STORED = {
    TEXT: "int64",
    "int4": "int8",
    "int2": "int8",
    "uint4": "uint8",
    "uint2": "uint8",
} | dict.fromkeys(_SMALL_FLOATS, "uint8")


def is_stored(dtype: str) -> bool:
    """Whether tensors of ``dtype`` flow under another type."""
    return dtype in _STORED


def stored_dtype(dtype: str) -> str:
    """Name of the type that carries ``dtype``; ``dtype`` itself where code computes with it."""
    return _STORED.get(dtype, dtype)


def element_name(array: Array) -> str:
    """Declared dtype name of an array: ``string`` for texts, NumPy's (ml_dtypes') name else."""
    return TEXT if array.dtype.kind in "OUST" else array.dtype.name


def to_stored(array: Array, strings: Strings | None = None) -> Array:
    """``array`` as it flows; of the same shape, over the same memory where that is possible.

    Args:
        array: of any declared type; texts are ``str`` or UTF-8 ``bytes``.
        strings: who gives ids to texts; needed for those only.
    """
    if array.dtype.isbuiltin == 1 and array.dtype.kind in "biuf":
        return array  # nearly always, and cheaper to see than a name
    name = element_name(array)
    if name == TEXT:
        if strings is None:
            raise ValueError("texts need a table that gives them ids")
        return strings.encode(array)
    if name in _SMALL_FLOATS:
        return array.view(np.uint8)
    return array.astype(_STORED[name]) if name in _STORED else array


def from_stored(array: Array, dtype: str, strings: Strings | None = None) -> Array:
    """Inverse of :func:`to_stored`; ``dtype`` is the declared name."""
    if dtype == TEXT:
        if strings is None:
            raise ValueError("ids need the table that gave them")
        return strings.decode(array)
    if dtype in _SMALL_FLOATS:
        return array.view(np.dtype(getattr(ml_dtypes, dtype)))
    return array.astype(getattr(ml_dtypes, dtype)) if dtype in _STORED else array
