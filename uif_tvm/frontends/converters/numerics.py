"""Elementary functions as plain arithmetic, for loops that must vectorise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from uif_tvm.frontends.converters.dtypes import kind


def exp(x: Any) -> Any:
    """e^x. For float32 by Cody-Waite reduction and a degree-6 polynomial, within 2 ulp.

    A call to the C library would keep the loop around it scalar. Coefficients: Cephes ``expf``.
    Results below the smallest normal number are flushed to it.
    """
    if kind(x) != "float32":
        return tirx.exp(x)

    def c(value: float) -> Any:
        return tirx.const(value, "float32")

    bounded = tirx.max(tirx.min(x, c(88.3762626647950)), c(-87.3365447504019))
    power = tirx.floor(bounded * c(1.44269504088896341) + c(0.5))
    rest = bounded - power * c(0.693359375) - power * c(-2.12194440e-4)
    series = c(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
        series = series * rest + c(coefficient)
    value = series * rest * rest + rest + c(1.0)
    exponent = (power.astype("int32") + tirx.const(127, "int32")) << tirx.const(23, "int32")
    return value * tirx.reinterpret("float32", exponent)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    one = tirx.const(1, kind(x))
    return one / (one + exp(tirx.const(0, kind(x)) - x))


def tanh(x: Any) -> Any:
    """1 - 2 / (e^2x + 1), to an absolute error of one ulp of 1."""
    one, two = tirx.const(1, kind(x)), tirx.const(2, kind(x))
    return one - two / (exp(x * two) + one)


Function = Callable[[Any], Any]


def activation(name: str, alpha: float | None, beta: float | None) -> Function | None:
    """An activation of ONNX's recurrent operators, ``None`` if there is none of that name."""

    def number(x: Any, value: float | None, default: float) -> Any:
        return tirx.const(default if value is None else value, kind(x))

    def zero(x: Any) -> Any:
        return tirx.const(0, kind(x))

    def one(x: Any) -> Any:
        return tirx.const(1, kind(x))

    table: dict[str, Function] = {
        "sigmoid": sigmoid,
        "tanh": tanh,
        "relu": lambda x: tirx.max(x, zero(x)),
        "affine": lambda x: x * number(x, alpha, 1.0) + number(x, beta, 0.0),
        "leakyrelu": lambda x: tirx.Select(x < zero(x), x * number(x, alpha, 0.01), x),
        "thresholdedrelu": lambda x: tirx.Select(x >= number(x, alpha, 1.0), x, zero(x)),
        "scaledtanh": lambda x: number(x, alpha, 1.0) * tanh(x * number(x, beta, 1.0)),
        "hardsigmoid": lambda x: tirx.max(
            zero(x), tirx.min(one(x), x * number(x, alpha, 0.2) + number(x, beta, 0.5))
        ),
        "elu": lambda x: tirx.Select(
            x < zero(x), number(x, alpha, 1.0) * (tirx.exp(x) - one(x)), x
        ),
        "softsign": lambda x: x / (one(x) + tirx.abs(x)),
        "softplus": lambda x: tirx.max(x, zero(x))
        + tirx.log(one(x) + tirx.exp(zero(x) - tirx.abs(x))),
    }
    return table.get(name.lower())
