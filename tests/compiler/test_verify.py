"""What counts as a departure from level 0, and what models are run on."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import weights
from uif_tvm.compiler.verify import RTOL, departure, synthesise
from uif_tvm.signature import TensorSpec

REF = weights(20, 20)
INF, NAN = np.float32(np.inf), np.float32(np.nan)


@pytest.mark.parametrize("dtype", [*RTOL, "int64", "bool", "uint8"])
def test_equal_values_never_depart(dtype):
    value = (REF * 10).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    assert departure(value, value.copy()) is None


@pytest.mark.parametrize("dtype", list(RTOL))
@given(st.floats(1.5, 100), st.booleans())
def test_a_value_off_by_more_than_the_tolerance_departs(dtype, factor, up):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    want = np.full(10, 4.0).astype(kind)
    have = want.astype(np.float64)
    have[3] *= 1 + (1 if up else -1) * 2 * RTOL[dtype] * factor
    said = departure(have.astype(kind), want)
    assert said is not None
    assert said.startswith("1 of 10 values")


def test_rounding_does_not_depart():
    assert departure(REF * np.float32(1 + 1e-6), REF) is None
    # Next to large values, small ones may be off by a share of those.
    want = np.array([1000.0, 1e-6], np.float32)
    assert departure(want + np.float32(1e-3), want) is None


@pytest.mark.parametrize(
    ("have", "want"),
    [(NAN, 1), (1, NAN), (INF, 1), (1, INF), (-INF, INF), (INF, NAN)],
)
def test_special_values_must_agree(have, want):
    have, want = (np.array([value, 2], np.float32) for value in (have, want))
    assert departure(have, want).startswith("1 of 2 values")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_special_values_that_agree(value):
    both = np.array([value, 2], np.float32)
    assert departure(both.copy(), both) is None
    assert departure(both[:1].copy(), both[:1]) is None


def test_shape_and_type_count():
    assert departure(REF[:10], REF) == "float32[10, 20] instead of float32[20, 20]"
    assert departure(REF.astype(np.float64), REF) == "float64[20, 20] instead of float32[20, 20]"


def test_integers_must_be_equal():
    want = np.arange(10)
    assert departure(np.where(want == 4, 5, want), want) == "1 of 10 values differ"


def test_nothing_to_compare():
    assert departure(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) is None


def test_synthesised_inputs_fit_the_signature_and_are_the_same_each_time():
    specs = (
        TensorSpec("x", ("n", 3), "float32"),
        TensorSpec("i", (2,), "int64"),
        TensorSpec("b", (), "bool"),
        TensorSpec("h", (4,), "bfloat16"),
    )
    first, again = synthesise(specs), synthesise(specs)
    assert [(a.shape, str(a.dtype)) for a in first] == [
        ((1, 3), "float32"),
        ((2,), "int64"),
        ((), "bool"),
        ((4,), "bfloat16"),
    ]
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert len(np.unique(first[0])) == 3
    assert not first[1].any()
