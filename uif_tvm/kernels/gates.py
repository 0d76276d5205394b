"""Activations of the recurrent operators, as arithmetic that vectorises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uif_tvm.kernels.activation import softplus

Function = Callable[[Any], Any]


def activation(name: str, alpha: float, beta: float) -> Function:
    """An activation by its name in lower case (see ``ops.recurrent.PARAMETERS``)."""
    from tvm import tirx

    def number(x: Any, value: float) -> Any:
        return tirx.const(value, str(x.ty.dtype))

    def relu(x: Any) -> Any:
        return tirx.Select(x < number(x, 0), number(x, 0), x)

    table: dict[str, Function] = {
        "sigmoid": tirx.sigmoid,
        "tanh": tirx.tanh,
        "relu": relu,
        "affine": lambda x: x * number(x, alpha) + number(x, beta),
        "leakyrelu": lambda x: tirx.Select(x < number(x, 0), x * number(x, alpha), x),
        "thresholdedrelu": lambda x: tirx.Select(x >= number(x, alpha), x, number(x, 0)),
        "scaledtanh": lambda x: number(x, alpha) * tirx.tanh(x * number(x, beta)),
        "hardsigmoid": lambda x: tirx.max(
            number(x, 0), tirx.min(number(x, 1), x * number(x, alpha) + number(x, beta))
        ),
        "elu": lambda x: tirx.Select(
            x < number(x, 0), number(x, alpha) * (tirx.exp(x) - number(x, 1)), x
        ),
        "softsign": lambda x: x / (number(x, 1) + tirx.abs(x)),
        "softplus": softplus,
    }
    return table[name]


def clipping(limit: float) -> Function:
    """Limits to -limit .. limit; 0 means none."""
    from tvm import tirx

    if not limit:
        return lambda x: x
    return lambda x: tirx.max(
        tirx.min(x, tirx.const(limit, str(x.ty.dtype))), tirx.const(-limit, str(x.ty.dtype))
    )
