"""Signatures: plain data and back."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.signature import (
    DimRange,
    ListSpec,
    OptionalSpec,
    SequenceSpec,
    Signature,
    TensorSpec,
    leaves,
    pack,
    tensors,
)

tensor_specs = st.builds(
    TensorSpec,
    st.text(),
    st.lists(st.integers(0, 1 << 40) | st.text(min_size=1), max_size=5).map(tuple),
    st.sampled_from(["float32", "int64", "bool", "bfloat16"]),
)
specs = st.recursive(
    tensor_specs | st.builds(ListSpec, st.text(), st.sampled_from(["float32", "string"])),
    lambda inner: (
        st.builds(SequenceSpec, st.text(), st.lists(inner, max_size=3).map(tuple))
        | st.builds(OptionalSpec, st.text(), st.none() | inner)
    ),
    max_leaves=5,
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


X, Y = TensorSpec("x", (2,), "float32"), TensorSpec("y", (), "string")
NESTED = SequenceSpec("s", (X, OptionalSpec("o", None), OptionalSpec("p", SequenceSpec("", (Y,)))))


def test_text_of_structures():
    assert str(NESTED) == (
        "s: sequence(float32[2], optional(nothing), optional(sequence(string[])))"
    )
    assert str(ListSpec("l", "int64")) == "l: sequence(int64 ...)"


def test_leaves_and_values():
    specs = (NESTED, Y, OptionalSpec("q", ListSpec("l", "int64")))
    assert list(leaves(specs)) == [X, Y, Y, ListSpec("l", "int64")]
    assert list(tensors(specs)) == [X, Y, Y]
    assert pack(specs, iter([1, 2, 3, [4, 5]])) == [[1, None, [2]], 3, [4, 5]]


@given(several)
def test_packing_takes_every_leaf(specs):
    values = list(range(len(list(leaves(specs)))))
    rest = iter(values)
    packed = pack(specs, rest)
    assert len(packed) == len(specs)
    assert list(rest) == []
