"""Signatures: plain data and back."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.signature import DimRange, Signature, TensorSpec

specs = st.builds(
    TensorSpec,
    st.text(),
    st.lists(st.integers(0, 1 << 40) | st.text(min_size=1), max_size=5).map(tuple),
    st.sampled_from(["float32", "int64", "bool", "bfloat16"]),
)
several = st.lists(specs, max_size=3).map(tuple)


@given(st.builds(Signature, several, several))
def test_round_trip(signature):
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


def test_text():
    assert str(TensorSpec("x", ("n", 3), "float32")) == "x: float32[n, 3]"
    assert str(TensorSpec("", (), "bool")) == ": bool[]"
    ranges = (DimRange("n", 1, 8), DimRange("m"), DimRange("k", 0))
    spec = TensorSpec("x", ("n", "m", 3, "k", "n"), "float32", ranges)
    assert str(spec) == "x: float32[n=1..8, m, 3, k=0.., n=1..8]"


def test_ranges_round_trip_and_hold():
    spec = TensorSpec("x", ("n", "m"), "float32", (DimRange("n", 2, 8), DimRange("m", 0)))
    assert TensorSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    limited, open_ended = spec.ranges
    assert [extent in limited for extent in (1, 2, 8, 9)] == [False, True, True, False]
    assert 0 in open_ended
    assert 10**9 in open_ended
