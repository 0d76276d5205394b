"""Signatures: plain data and back."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.signature import Signature, TensorSpec

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
