"""The weights member: safetensors, with every tensor aligned for use in place.

Format: 8 bytes little-endian header length, a JSON header ``{name: {dtype, shape,
data_offsets}}``, the data (https://github.com/huggingface/safetensors). It allows no holes, so
alignment is filled by explicit ``__pad_N`` tensors of bytes, which other readers see and
ours leaves out.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from uif_tvm.artifact.strictjson import MAX_INT, REGET, Fields, dumps, loads
from uif_tvm.artifact.zipstore import ALIGNMENT
from uif_tvm.errors import ArtifactError

MAX_HEADER_BYTES = 64 << 20
# NumPy 1's limit, and more than any model has.
MAX_RANK = 32

_CODE = "UIF-ARTIFACT-WEIGHTS"
_LENGTH = struct.Struct("<Q")
_PAD = "__pad_"
_PAD_NAME = re.compile(r"__pad_[0-9]+")
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the weights member; ``offset`` in bytes from the member's first byte."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


def storable(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The little-endian form that the file can hold, or ``None`` when it has no such type."""
    little = dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype
    return little if little in _NAMES else None


def reserved(name: str) -> bool:
    """True for names that mean something else in the header."""
    return name == "__metadata__" or name.startswith(_PAD)


def plan(
    tensors: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]],
) -> tuple[bytes, list[Tensor], int]:
    """Lay tensors out: the member's head (length and header), the tensors, and its total bytes.

    Args:
        tensors: distinct names with a :func:`storable` dtype and a shape, in file order.
    """
    rows: dict[str, Any] = {}
    at = pads = 0
    placed: list[Tensor] = []
    for name, dtype, shape in tensors:
        if gap := -at % ALIGNMENT:
            rows[f"{_PAD}{pads}"] = _row("U8", (gap,), at, at + gap)
            at, pads = at + gap, pads + 1
        tensor = Tensor(name, dtype, shape, at)
        at += tensor.nbytes
        rows[name] = _row(_NAMES[dtype], shape, tensor.offset, at)
        placed.append(tensor)
    text = dumps(rows)
    # Spaces after the JSON are part of the format: the data begins aligned.
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    head = _LENGTH.pack(len(text)) + text
    if len(text) > MAX_HEADER_BYTES:
        raise ArtifactError(
            f"the weights' names and shapes take {len(text)} bytes, more than {MAX_HEADER_BYTES}",
            code=_CODE,
            stage="compile",
            hint="shorten the weights' names, or split the model",
        )
    shifted = [Tensor(t.name, t.dtype, t.shape, t.offset + len(head)) for t in placed]
    return head, shifted, len(head) + at


def parse(view: memoryview) -> dict[str, Tensor]:
    """The tensors of a weights member, padding left out, every rule of the format checked.

    Args:
        view: the member's bytes.

    Raises:
        ArtifactError: code ``UIF-ARTIFACT-WEIGHTS``.
    """
    if len(view) < _LENGTH.size:
        _refuse(f"{len(view)} bytes are too few for a header")
    (length,) = _LENGTH.unpack(view[: _LENGTH.size])
    base = _LENGTH.size + length
    if length > MAX_HEADER_BYTES or base > len(view):
        _refuse(f"a header of {length} bytes does not fit")
    document = loads(
        bytes(view[_LENGTH.size : base]), "weights header", _CODE, limit=MAX_HEADER_BYTES
    )
    tensors: dict[str, Tensor] = {}
    at = base
    with Fields(document, "weights header", _CODE) as header:
        for name in header:
            tensor, end = header.object(name, partial(_tensor, name=name, base=base))
            if tensor.offset != at:
                _refuse(f"tensor {name!r:.200} does not start where the one before it ends")
            at = end
            if _PAD_NAME.fullmatch(name):
                continue
            if reserved(name) or tensor.offset % ALIGNMENT:
                _refuse(f"tensor {name!r:.200} has a reserved name or is not aligned")
            tensors[name] = tensor
    if at != len(view):
        _refuse(f"{len(view) - at} bytes follow the last tensor")
    return tensors


def _row(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def _tensor(row: Fields, name: str, base: int) -> tuple[Tensor, int]:
    """One row of the header, and where its data ends by its own account."""
    kind, shape, span = row.text("dtype"), row.sizes("shape"), row.sizes("data_offsets")
    dtype = _DTYPES.get(kind)
    if dtype is None:
        row.refuse(f"unknown dtype {kind!r:.80}")
    if len(shape) > MAX_RANK or math.prod(filter(None, shape)) * dtype.itemsize > MAX_INT:
        row.refuse(f"shape of rank {len(shape)} is larger than anything can be")
    tensor = Tensor(name, dtype, shape, base + span[0] if span else -1)
    if len(span) != 2 or span[1] - span[0] != tensor.nbytes:
        row.refuse(f"data_offsets {list(span[:3])} do not span the tensor's {tensor.nbytes} bytes")
    return tensor, base + span[1]


def _refuse(reason: str) -> NoReturn:
    raise ArtifactError(f"weights: {reason}", code=_CODE, hint=REGET)
