"""Vectorisable elementary functions: accuracy over all of float32, and special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import tvm
from tvm import te, tirx
from uif_tvm.schedules._common.generic import Generic

from tests.schedules.harness import WIDE, Array, assembly, build, placeholder, scheduled
from uif_tvm.kernels import math as fmath

SIZE = 1 << 16
#: Function -> (meaning in float64, ULP that the module's text promises).
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "exp": (np.exp, 1.1),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 3.0),
    "tanh": (np.tanh, 5.0),
    "erf": (scipy.special.erf, 5.0),
    "sigmoid": (scipy.special.expit, 3.0),
}
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.17549435e-38, -1.17549435e-38,
     3.4028235e38, -3.4028235e38, 1.0, -1.0, 88.7, -87.3, -103.9, 0.5, -0.5, 2**24, -(2**24)],
    "float32",
)  # fmt: skip


def kernel(name: str, dtype: str = "float32", size: int = SIZE) -> tirx.PrimFunc:
    x = placeholder(size, dtype=dtype)
    y = te.compute(x.shape, lambda i: getattr(tirx, name)(x[i].asobject()), name="y")
    return te.create_prim_func([x, y])


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return {name: build(scheduled(Generic(), kernel(name))) for name in FUNCTIONS}


def evaluate(function: Any, x: Array) -> Array:
    padded = np.zeros(SIZE, x.dtype)
    padded[: x.size] = x
    out = tvm.runtime.tensor(np.empty(SIZE, x.dtype))
    function(tvm.runtime.tensor(padded), out)
    return out.numpy()[: x.size]


def ulps(result: Array, exact: Array) -> Array:
    """Distance in units in the last place of the exact result, as float32 would round it."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype("float32")
        distance = np.abs(result.astype("float64") - exact) / np.spacing(np.abs(rounded))
    same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_over_all_bit_patterns(name: str, compiled: dict[str, Any]) -> None:
    meaning, promised = FUNCTIONS[name]
    rng = np.random.default_rng(7)
    for _ in range(4):
        x = rng.integers(0, 1 << 32, SIZE, dtype=np.uint64).astype("uint32").view("float32")
        with np.errstate(all="ignore"):
            exact = meaning(x.astype("float64"))
        error = ulps(evaluate(compiled[name], x), exact)
        worst = int(error.argmax())
        assert error[worst] <= promised, (name, x[worst], error[worst])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_where_results_vary(name: str, compiled: dict[str, Any]) -> None:
    meaning, promised = FUNCTIONS[name]
    low, high = {"log": (1e-6, 50.0), "log1p": (-0.999, 50.0)}.get(name, (-30.0, 30.0))
    x = np.linspace(low, high, SIZE, dtype="float32")
    error = ulps(evaluate(compiled[name], x), meaning(x.astype("float64")))
    assert error.max() <= promised, (name, x[int(error.argmax())], error.max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, compiled: dict[str, Any]) -> None:
    meaning, promised = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        exact = meaning(SPECIAL.astype("float64"))
    result = evaluate(compiled[name], SPECIAL)
    assert (ulps(result, exact) <= promised).all(), list(zip(SPECIAL, result, exact, strict=True))
    signed_zero = SPECIAL == 0
    if name in ("tanh", "erf", "log1p"):
        np.testing.assert_array_equal(np.signbit(result[signed_zero]), [False, True])


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_saturation_is_exact(name: str, compiled: Any) -> None:
    # 1 - tanh(x) multiplied by a large x must be 0, as in the tails of GELU.
    far = np.resize(np.float32([20.0, 1e6, 3e38, np.inf]), SPECIAL.shape)
    np.testing.assert_array_equal(evaluate(compiled[name], far), np.ones_like(far))
    np.testing.assert_array_equal(evaluate(compiled[name], -far), -np.ones_like(far))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_library_calls_are_left(name: str) -> None:
    text = assembly(scheduled(Generic(), kernel(name), WIDE), "x86-64-v4")
    for call in (f"{name}f", "expf", "logf", "tanhf", "erff"):
        assert f"call\t{call}" not in text
        assert f"callq\t{call}" not in text
    assert "vfmadd" in text


def test_float64_keeps_the_library() -> None:
    x = np.linspace(-3, 3, SIZE)
    result = evaluate(build(scheduled(Generic(), kernel("exp", "float64"))), x)
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-14)


def test_every_formula_is_a_known_intrinsic() -> None:
    assert set(fmath.FORMULAS) == {f"tirx.{name}" for name in FUNCTIONS}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_is_nan(dtype: str) -> None:
    x = placeholder(SIZE, dtype=dtype)
    y = te.compute(
        x.shape,
        lambda i: tirx.Select(
            fmath.is_nan(x[i].asobject()), tirx.const(1, dtype), tirx.const(0, dtype)
        ),
        name="y",
    )
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, 1.5], dtype)
    result = evaluate(build(scheduled(Generic(), te.create_prim_func([x, y]))), values)
    np.testing.assert_array_equal(result, [1, 1, 0, 0, 0, 0])
