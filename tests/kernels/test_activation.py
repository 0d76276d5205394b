"""Activations against their definitions in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
from tvm import te, tirx
from uif_tvm.schedules._common.generic import Generic

from tests.schedules.harness import Array, placeholder, run, scheduled
from uif_tvm.kernels import activation

SIZE = 4096
MEANINGS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda v: v * scipy.special.expit(v),
    "gelu": lambda v: v * 0.5 * (1 + scipy.special.erf(v / np.sqrt(2))),
    "gelu_tanh": lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
    "softplus": lambda v: np.where(v > 20, v, np.logaddexp(v, 0)),
}


def evaluate(formula: Callable[[Any], Any], x: Array) -> Array:
    a = placeholder(x.size, dtype=str(x.dtype))
    y = te.compute(a.shape, lambda i: formula(a[i]), name="y")
    return run(scheduled(Generic(), te.create_prim_func([a, y])), [x], x.shape, str(x.dtype))


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_against_the_definition(name: str, dtype: str) -> None:
    x = np.linspace(-12, 25, SIZE).astype(dtype)
    x[0] = np.nan
    result = evaluate(getattr(activation, name), x)
    assert np.isnan(result[0])
    tolerance = {"float16": 2e-3, "float32": 4e-6, "float64": 1e-12}[dtype]
    exact = MEANINGS[name](x.astype("float64"))
    np.testing.assert_allclose(
        result.astype("float64")[1:], exact[1:], rtol=tolerance, atol=tolerance
    )


def test_chains_of_activations_stay_small() -> None:
    """mish and deeper chains: arguments are named, so code grows with their number only."""

    def chain(x: Any) -> Any:
        value = x.asobject()
        for _ in range(4):
            value = value * tirx.tanh(tirx.log1p(tirx.exp(tirx.sigmoid(value))))
        return value

    x = np.linspace(-3, 3, SIZE).astype("float32")
    exact = x.astype("float64")
    for _ in range(4):
        exact = exact * np.tanh(np.log1p(np.exp(scipy.special.expit(exact))))
    np.testing.assert_allclose(evaluate(chain, x), exact, rtol=2e-5, atol=1e-6)
