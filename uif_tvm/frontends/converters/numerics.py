"""Activations of the recurrent operators, as arithmetic that vectorises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx import exp, sigmoid, tanh

from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.kernels.activation import softplus

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
        "elu": lambda x: tirx.Select(x < zero(x), number(x, alpha, 1.0) * (exp(x) - one(x)), x),
        "softsign": lambda x: x / (one(x) + tirx.abs(x)),
        "softplus": softplus,
    }
    return table.get(name.lower())
