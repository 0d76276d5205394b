"""Row kernels against NumPy in float64, unscheduled: what they compute, for every form."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from tvm import te

from tests.schedules.harness import placeholder, run
from uif_tvm.kernels import norm, reduce


@pytest.mark.parametrize("dims", [(3, 7), (2, 5, 70)])
@pytest.mark.parametrize("log", [False, True])
def test_softmax(dims: tuple[int, ...], log: bool) -> None:
    x = np.random.default_rng(0).standard_normal(dims).astype("float32") * 20
    a = placeholder(*dims)
    for axis in (-1, 0):
        meaning = scipy.special.log_softmax if log else scipy.special.softmax
        result = run(te.create_prim_func([a, norm.softmax(a, axis, log)]), [x], dims, "float32")
        np.testing.assert_allclose(result, meaning(x.astype("float64"), axis), rtol=3e-6, atol=3e-6)


def test_softmax_of_masked_rows() -> None:
    x = np.zeros((3, 40), "float32")
    x[0, 1:] = -np.inf
    x[1] = -np.inf
    x[2, 3] = np.nan
    a = placeholder(*x.shape)
    result = run(te.create_prim_func([a, norm.softmax(a, -1)]), [x], x.shape, "float32")
    np.testing.assert_array_equal(result[0], np.eye(1, 40)[0])
    assert np.isnan(result[1:]).all()


@pytest.mark.parametrize("width", [5, 64, 100])
def test_layer_norm_keeps_digits_of_rows_with_a_large_mean(width: int) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, width)) + 1000).astype("float32")
    g, b = rng.standard_normal((2, width)).astype("float32")
    a, s, t = placeholder(4, width), placeholder(width, name="g"), placeholder(width, name="b")
    func = te.create_prim_func([a, s, t, norm.layer_norm(a, s, t, 1e-5)])
    exact = x.astype("float64")
    centred = exact - exact.mean(-1, keepdims=True)
    expected = centred / np.sqrt(exact.var(-1, keepdims=True) + 1e-5) * g + b
    np.testing.assert_allclose(run(func, [x, g, b], x.shape, "float32"), expected, atol=2e-3)


def test_half_precision_rows_accumulate_in_single() -> None:
    x = np.full((2, 4096), 1.0, "float16")
    a = placeholder(*x.shape, dtype="float16")
    func = te.create_prim_func([a, reduce.reduce_rows(a, [1], False, norm.SUM)])
    np.testing.assert_array_equal(run(func, [x], (2,), "float16"), [4096, 4096])


@pytest.mark.parametrize("axes", [[1], [0], [0, 1], [1, 2], [0, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(axes: list[int], keepdims: bool) -> None:
    x = np.random.default_rng(2).standard_normal((3, 7, 17)).astype("float32")
    a = placeholder(*x.shape)
    for build, meaning in (
        (lambda: reduce.reduce_rows(a, axes, keepdims, norm.SUM, mean=True), np.mean),
        (lambda: reduce.reduce_rows(a, axes, keepdims, norm.MINIMUM), np.min),
        (lambda: reduce.variance(a, axes, keepdims), np.var),
    ):
        expected = np.asarray(meaning(x.astype("float64"), axis=tuple(axes), keepdims=keepdims))
        result = run(te.create_prim_func([a, build()]), [x], expected.shape, "float32")
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize(("reducer", "meaning"), [(norm.MAXIMUM, np.max), (norm.MINIMUM, np.min)])
def test_extremes_keep_nan_and_infinities(width: int, reducer: norm.Reducer, meaning) -> None:  # type: ignore[no-untyped-def]
    x = np.zeros((5, width), "float32")
    x[0, 1] = np.nan
    x[1] = -np.inf
    x[2] = np.inf
    x[3, 0] = np.nan
    x[4, -1] = np.nan
    a = placeholder(*x.shape)
    func = te.create_prim_func([a, reduce.reduce_rows(a, [1], False, reducer)])
    np.testing.assert_array_equal(run(func, [x], (5,), "float32"), meaning(x, axis=1))
