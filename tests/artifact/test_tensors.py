"""The weights member: agreement with the official library, alignment, hostile headers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.artifact import tensors
from uif_tvm.artifact.zipstore import ALIGNMENT
from uif_tvm.errors import ArtifactError

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
SPECS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: not tensors.reserved(name)),
    st.tuples(st.sampled_from(list(tensors._DTYPES.values())), SHAPES),
    max_size=8,
)


def build(specs: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> bytes:
    """A member whose data is 0, 1, 2, ... (mod 251)."""
    head, _, total = tensors.plan([(name, dtype, shape) for name, (dtype, shape) in specs.items()])
    return head + bytes(i % 251 for i in range(total - len(head)))


def member(document: Any, data: bytes = b"") -> bytes:
    """A member with any header."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text + data


def refused(data: bytes) -> str:
    with pytest.raises(ArtifactError) as caught:
        tensors.parse(memoryview(data))
    assert caught.value.code == "UIF-ARTIFACT-WEIGHTS"
    return caught.value.message


@given(SPECS)
def test_round_trip_alignment_and_the_official_library(specs: Any) -> None:
    data = build(specs)
    found = tensors.parse(memoryview(data))
    assert {t.name: (t.dtype, t.shape) for t in found.values()} == specs
    assert all(t.offset % ALIGNMENT == 0 for t in found.values())
    official = dict(safetensors.deserialize(data))
    assert {name for name in official if not name.startswith("__pad_")} == set(specs)
    for name, tensor in found.items():
        assert official[name]["shape"] == list(tensor.shape)
        assert official[name]["dtype"] == tensors._NAMES[tensor.dtype]
        assert bytes(official[name]["data"]) == data[tensor.offset :][: tensor.nbytes]


def test_every_numpy_and_ml_dtype_is_stored_or_refused() -> None:
    kept = [np.dtype(c) for c in "?bBhHiIqQefdF"]
    kept += [np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)]
    assert all(tensors.storable(dtype) == dtype for dtype in kept)
    assert tensors.storable(np.dtype(">f4")) == np.dtype("<f4")
    lost = [np.dtype(c) for c in ("D", "g", "O", "S3", "U3", "M8[s]", "f4,i4", "V7")]
    lost += [np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.float4_e2m1fn)]
    assert all(tensors.storable(dtype) is None for dtype in lost)


def row(dtype: str, shape: Any, *span: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(span)}


@pytest.mark.parametrize(
    ("header", "size", "reason"),
    [
        ({"a": row("F32", [2], 0, 8), "b": row("F32", [1], 72, 76)}, 76, "does not start where"),
        ({"a": row("U8", [64], 0, 64), "b": row("U8", [64], 0, 64)}, 64, "does not start where"),
        ({"a": row("U8", [64], 0, 64), "b": row("U8", [64], 32, 96)}, 96, "does not start where"),
        ({"a": row("U8", [64], 0, 64)}, 65, "1 bytes follow"),
        ({"a": row("U8", [64], 0, 64)}, 63, "-1 bytes follow"),
        ({"a": row("U8", [2**63 - 1], 0, 2**63 - 1)}, 10, "bytes follow"),
        ({"a": row("U8", [2**62, 8], 0, 2**63 - 1)}, 10, "larger than anything"),
        ({"a": row("F64", [2**61], 0, 0)}, 0, "larger than anything"),
        ({"a": row("U8", [0, 2**62, 2**62], 0, 0)}, 0, "larger than anything"),
        ({"a": row("U8", [0] * 33, 0, 0)}, 0, "larger than anything"),
        ({"a": row("U8", [2**63], 0, 4)}, 4, "2**63-1"),
        ({"a": row("U8", [-1], 0, 4)}, 4, "found -1"),
        ({"a": row("F32", [1], 4, 0)}, 4, "do not span"),
        ({"a": row("F32", [1], 0, 5)}, 5, "do not span"),
        ({"a": row("F32", [1], 0)}, 4, "do not span"),
        ({"a": row("F32", [1])}, 4, "do not span"),
        ({"a": row("F32", [1], 0, 4, 8)}, 8, "do not span"),
        ({"a": row("F32", [True], 0, 4)}, 4, "truth value"),
        ({"a": row("F32", 1, 0, 4)}, 4, "must be a list"),
        ({"a": row("F33", [1], 0, 4)}, 4, "unknown dtype 'F33'"),
        ({"a": row("F32", [1], 0, 4) | {"x": 1}}, 4, "unknown field 'x'"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "'data_offsets' is missing"),
        ({"a": 7}, 0, "expected an object"),
        ({"a": row("U8", [1], 0, 1), "b": row("U8", [1], 1, 2)}, 2, "not aligned"),
        ({"__pad_x": row("U8", [1], 0, 1)}, 1, "reserved"),
        ({"__metadata__": {"format": "pt"}}, 0, "missing"),
        (b'{"a": 1, "a": 2}', 0, "stands twice"),
        (b"[" * 5000, 0, "levels deep"),
        (b'{"a": NaN}', 0, "no JSON number"),
        (b"[]", 0, "expected an object"),
    ],
)  # fmt: skip
def test_hostile_headers(header: Any, size: int, reason: str) -> None:
    assert reason in refused(member(header, bytes(size)))


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_header_lengths_that_lie(length: int) -> None:
    assert refused(struct.pack("<Q", length) + b"{}" + bytes(62))


def test_too_short_for_a_length() -> None:
    for size in range(8):
        assert "too few" in refused(bytes(size))


@given(st.data())
def test_truncated_members_are_refused(data: Any) -> None:
    whole = build({"a": (np.dtype("<f4"), (3,)), "b": (np.dtype(np.bool_), (5,))})
    refused(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_too_many_names_are_refused_when_written() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "MAX_HEADER_BYTES", 100)
        with pytest.raises(ArtifactError, match="names and shapes take"):
            tensors.plan([(f"w{i}", np.dtype("<f4"), (1,)) for i in range(9)])
