"""Winograd's matrices are exact, weights transformed once, and the definition computes it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uif_tvm.schedules._common import RULES as GENERIC_RULES

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import winograd
from uif_tvm.kernels.layout import Window
from uif_tvm.target.spec import Refusal

fractions = st.fractions(-4, 4, max_denominator=8)


def correlation(found: winograd.Transform, data: list[Fraction], taps: list[Fraction]) -> list:
    """``A^T [(G g) . (B^T d)]`` in rationals."""

    def apply(matrix, vector):
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    factors = zip(apply(found.g, taps), apply(found.bt, data), strict=True)
    return apply(found.at, [a * b for a, b in factors])


@pytest.mark.parametrize("tile", winograd.TILES)
def test_transform_computes_the_correlation_exactly(tile):
    found = winograd.transform(tile)
    unit = [Fraction(0)] * (found.size + winograd.TAPS)
    for d in range(found.size):
        for t in range(winograd.TAPS):
            data, taps = unit[: found.size], unit[: winograd.TAPS]
            data[d], taps[t] = Fraction(1), Fraction(1)
            expected = [Fraction(int(d == k + t)) for k in range(tile)]
            assert correlation(found, data, taps) == expected


@given(st.data(), st.integers(1, 6))
def test_any_distinct_points_compute_the_correlation_exactly(data, tile):
    size = tile + winograd.TAPS - 1
    points = data.draw(st.lists(fractions, min_size=size - 1, max_size=size - 1, unique=True))
    found = winograd.toom_cook(tile, tuple(points))
    x = data.draw(st.lists(fractions, min_size=size, max_size=size))
    taps = data.draw(st.lists(fractions, min_size=winograd.TAPS, max_size=winograd.TAPS))
    expected = [
        sum((x[k + t] * taps[t] for t in range(winograd.TAPS)), Fraction(0)) for k in range(tile)
    ]
    assert correlation(found, x, taps) == expected


@pytest.mark.parametrize("points", [(0, 1), (0, 1, 1)])
def test_points_must_be_distinct_and_enough(points):
    with pytest.raises(ValueError, match="3 distinct points"):
        winograd.toom_cook(2, tuple(map(Fraction, points)))


@pytest.mark.parametrize("tile", winograd.TILES)
def test_coefficients_of_run_time_matrices_are_exact_in_float32(tile):
    found = winograd.transform(tile)
    for matrix in (found.at, found.bt):
        for number in (number for row in matrix for number in row):
            assert Fraction(float(np.float32(float(number)))) == number


def test_chosen_points_grow_errors_less_than_customary_ones():
    customary = winograd.toom_cook(4, tuple(map(Fraction, (0, 1, -1, 2, -2))))
    assert winograd.transform(4).growth == pytest.approx(8.2, abs=0.1)
    assert customary.growth == pytest.approx(31.4, abs=0.1)
    assert winograd.transform(2).growth == pytest.approx(1.7, abs=0.1)


def test_packed_weight_is_transformed_and_zero_padded():
    weight = np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype(np.float32)
    packed = winograd.pack_weight(weight, 4, 2, 4)
    assert packed.shape == winograd.packed_shape(3, 5, 4, 2, 4) == (2, 36, 2, 2, 4)
    g = np.array([[float(v) for v in row] for row in winograd.transform(4).g])
    expected = g @ weight[4, 2].astype(np.float64) @ g.T
    np.testing.assert_array_equal(packed[1, :, 1, 0, 0].reshape(6, 6), expected.astype(np.float32))
    assert not packed[1, :, :, :, 1:].any()
    assert not packed[:, :, 1, 1].any()


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(winograd.TILES),
    st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 7), st.integers(1, 7)),
    st.integers(1, 5),
    st.tuples(*[st.integers(1, 2)] * 4),
)
def test_definition_matches_reference_through_generic_rules(tile, shape, out_channels, padding):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((out_channels, shape[1], 3, 3)).astype(np.float32)
    window = Window((3, 3), (1, 1), padding)
    packed = winograd.pack_weight(w, tile, 4, 8)
    data = reference.blocked(x, 4)
    channels = (shape[1], out_channels)
    func = winograd.conv2d(data.shape, packed.shape, channels, padding, 4, tile)
    results = (rule.apply(func, harness.host_spec(harness.WIDE)) for rule in GENERIC_RULES)
    chosen = next(result for result in results if not isinstance(result, Refusal))
    out_shape = (shape[0], -(-out_channels // 4), *window.out(*shape[2:]), 4)
    found = harness.run(chosen.func, [data, packed], out_shape, "float32")
    expected = reference.conv2d(x, w, window, 1)
    np.testing.assert_allclose(reference.plain(found, out_channels), expected, atol=1e-4)
