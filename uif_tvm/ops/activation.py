"""Activations of neural networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.elementwise import erf, in_float32, sigmoid, special_values
from uif_tvm.ops.spec import (
    LOOSE,
    NUMBERS,
    TOLERANCES,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    Reference,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

_SQRT_HALF = float(np.sqrt(0.5))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, np.zeros((), x.dtype))


def leaky_relu(x: Array, alpha: float) -> Array:
    """x, or alpha x below 0."""
    return np.where(x < 0, alpha * x, x)


def prelu(x: Array, slope: Array) -> Array:
    """x, or slope x below 0; the slope broadcasts to x."""
    return np.where(x < 0, slope * x, x)


def elu(x: Array, alpha: float, scale: float, input_scale: float) -> Array:
    """scale x, or scale alpha (e^(input_scale x) - 1) below 0."""
    return scale * np.where(x < 0, alpha * np.expm1(input_scale * np.minimum(x, 0)), x)


def selu(x: Array, alpha: float, gamma: float) -> Array:
    """gamma x, or gamma alpha (e^x - 1) below 0."""
    return elu(x, alpha, gamma, 1.0)


def celu(x: Array, alpha: float) -> Array:
    """x, or alpha (e^(x / alpha) - 1) below 0."""
    return elu(x, alpha, 1.0, 1.0 / alpha)


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    """alpha x + beta, limited to 0 .. 1."""
    return np.clip(alpha * x + beta, 0, 1)


def hard_swish(x: Array) -> Array:
    """x times (x + 3) / 6 limited to 0 .. 1."""
    return x * np.clip(x / 6 + 0.5, 0, 1)


def gelu(x: Array) -> Array:
    """x times the normal distribution function of x."""
    return 0.5 * x * (1 + erf(_SQRT_HALF * x))


def gelu_tanh(x: Array) -> Array:
    """Gelu through tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))


def quick_gelu(x: Array, alpha: float) -> Array:
    """x sigmoid(alpha x); also called swish."""
    return x * sigmoid(alpha * x)


def softplus(x: Array, beta: float, threshold: float) -> Array:
    """log(1 + e^(beta x)) / beta; x itself where beta x exceeds the threshold."""
    return np.where(beta * x > threshold, x, np.logaddexp(beta * x, 0) / beta)


def mish(x: Array) -> Array:
    """x tanh(log(1 + e^x))."""
    return x * np.tanh(np.logaddexp(x, 0))


def thresholded_relu(x: Array, alpha: float, value: float) -> Array:
    """x above alpha, else ``value``."""
    return np.where(x <= alpha, value, x)


def shrink(x: Array, bias: float, lambd: float) -> Array:
    """x - bias above lambd, x + bias below -lambd, else 0."""
    return np.where(np.abs(x) <= lambd, 0, np.where(x > 0, x - bias, x + bias))


def clip(x: Array, min: float | None, max: float | None) -> Array:
    """x limited from below, then from above: the upper limit wins where they cross."""
    low = x if min is None else np.maximum(x, np.asarray(min).astype(x.dtype))
    return low if max is None else np.minimum(low, np.asarray(max).astype(x.dtype))


# -- decompositions ----------------------------------------------------------------------------


def _number(b: Builder, x: Any, value: float) -> Any:
    return b.const(value, b.dtype(x))


def _limited(b: Builder, x: Any, low: float | None, high: float | None) -> Any:
    if low is not None:
        x = b.op("maximum", x, _number(b, x, low))
    return x if high is None else b.op("minimum", x, _number(b, x, high))


def _below(b: Builder, x: Any, below: Any) -> Any:
    return b.op("where", b.op("less", x, _number(b, x, 0)), below, x)


def _elu(b: Builder, x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    inner = b.op("multiply", _limited(b, x, None, 0), _number(b, x, input_scale))
    bent = b.op("subtract", b.op("exp", inner), _number(b, x, 1))
    kept = _below(b, x, b.op("multiply", bent, _number(b, x, alpha)))
    return kept if scale == 1 else b.op("multiply", kept, _number(b, x, scale))


def _hard_sigmoid(b: Builder, x: Any, alpha: float, beta: float) -> Any:
    line = b.op("add", b.op("multiply", x, _number(b, x, alpha)), _number(b, x, beta))
    return _limited(b, line, 0, 1)


def _gated(b: Builder, x: Any, gate: Any) -> Any:
    return b.op("multiply", x, gate)


def _half_of(b: Builder, x: Any, inner: Any) -> Any:
    return _gated(b, b.op("multiply", x, _number(b, x, 0.5)), b.op("add", inner, _number(b, x, 1)))


def _gelu_tanh(b: Builder, x: Any) -> Any:
    cube = b.op("multiply", b.op("multiply", x, x), x)
    sum_ = b.op("add", x, b.op("multiply", cube, _number(b, x, 0.044715)))
    return _half_of(b, x, b.op("tanh", b.op("multiply", sum_, _number(b, x, np.sqrt(2 / np.pi)))))


def _soft(b: Builder, x: Any) -> Any:
    """log(1 + e^x) = max(x, 0) - log(sigmoid(|x|)), which never overflows."""
    return b.op("subtract", _limited(b, x, 0, None), b.op("log", b.op("sigmoid", b.op("abs", x))))


def _softplus(b: Builder, x: Any, beta: float, threshold: float) -> Any:
    scaled = b.op("multiply", x, _number(b, x, beta))
    soft = b.op("divide", _soft(b, scaled), _number(b, x, beta))
    return b.op("where", b.op("greater", scaled, _number(b, x, threshold)), x, soft)


def _shrink(b: Builder, x: Any, bias: float, lambd: float) -> Any:
    side = b.op("where", b.op("greater", x, _number(b, x, 0)), _number(b, x, -bias),
                _number(b, x, bias))  # fmt: skip
    inside = b.op("less_equal", b.op("abs", x), _number(b, x, lambd))
    return b.op("where", inside, _number(b, x, 0), b.op("add", x, side))


def _threshold(b: Builder, x: Any, alpha: float, value: float) -> Any:
    low = b.op("less_equal", x, _number(b, x, alpha))
    return b.op("where", low, _number(b, x, value), x)


# -- specs -------------------------------------------------------------------------------------


def _activation(
    name: str,
    reference: Reference,
    decompose: Callable[..., Any],
    flops: float,
    attributes: Mapping[str, Any] | None = None,
    relax: str | None = None,
    extremes: Iterable[Attrs] = (),
    **more: Any,
) -> OpSpec:
    def cases() -> Iterable[Case]:
        yield from special_values()
        for number, attrs in enumerate(extremes):
            x = np.linspace(-3, 3, 25, dtype=np.float32)
            yield Case(f"attributes-{number}", (x,), attrs)

    settings: dict[str, Any] = {
        "attributes": tuple(Attribute(key, value) for key, value in (attributes or {}).items()),
        "cases": cases,
        "relax": relax,
        "flops": flops,
        "tolerance": LOOSE,
        "decompose": lambda b, operands, attrs: decompose(b, *operands, **attrs),
    }
    return OpSpec(name, "activation", in_float32(reference), infer.same, **(settings | more))


SPECS = (
    _activation(
        "relu",
        relu,
        lambda b, x: _limited(b, x, 0, None),
        1,
        relax="relax.nn.relu",
        tolerance=TOLERANCES,
    ),
    _activation(
        "leaky_relu",
        leaky_relu,
        lambda b, x, alpha: _below(b, x, b.op("multiply", x, _number(b, x, alpha))),
        2,
        {"alpha": 0.01},
        relax="relax.nn.leakyrelu",
        extremes=({"alpha": 0.0}, {"alpha": 1.5}, {"alpha": -0.5}),
    ),
    OpSpec(
        "prelu",
        "activation",
        in_float32(prelu),
        infer.broadcasting,
        operands=(Operand("x"), Operand("slope")),
        flops=2,
        decompose=lambda b, operands, attrs: _below(b, operands[0], b.op("multiply", *operands)),
        cases=lambda: (
            Case(
                "scalar", (np.array([-2, -0.0, 3, np.nan, -np.inf], np.float32), np.float32(0.25))
            ),
            Case(
                "per-channel",
                (
                    np.linspace(-4, 4, 2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5),
                    np.array([[0.5], [-1], [0]], np.float32),
                ),
            ),
            Case("zero-size", (np.empty((0, 3), np.float32), np.ones(3, np.float32))),
        ),
    ),
    _activation(
        "elu",
        elu,
        _elu,
        14,
        {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
        extremes=({"alpha": 2.0}, {"alpha": 0.5, "scale": 1.5, "input_scale": 2.0}),
    ),
    _activation(
        "selu",
        selu,
        lambda b, x, alpha, gamma: _elu(b, x, alpha, gamma, 1.0),
        15,
        {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
        extremes=({"alpha": 2.0, "gamma": 3.0},),
    ),
    _activation(
        "celu",
        celu,
        lambda b, x, alpha: _elu(b, x, alpha, 1.0, 1.0 / alpha),
        15,
        {"alpha": 1.0},
        extremes=({"alpha": 2.0},),
    ),
    _activation(
        "hard_sigmoid",
        hard_sigmoid,
        _hard_sigmoid,
        4,
        {"alpha": 0.2, "beta": 0.5},
        extremes=({"alpha": 1 / 6}, {"alpha": 0.5, "beta": 0.6}),
    ),
    _activation(
        "hard_swish",
        hard_swish,
        lambda b, x: _gated(b, x, _hard_sigmoid(b, x, 1 / 6, 0.5)),
        5,
    ),
    _activation(
        "gelu",
        gelu,
        lambda b, x: _half_of(b, x, b.op("erf", b.op("multiply", x, _number(b, x, _SQRT_HALF)))),
        16,
        relax="relax.nn.gelu",
    ),
    _activation("gelu_tanh", gelu_tanh, _gelu_tanh, 19, relax="relax.nn.gelu_tanh"),
    _activation(
        "quick_gelu",
        quick_gelu,
        lambda b, x, alpha: _gated(
            b, x, b.op("sigmoid", b.op("multiply", x, _number(b, x, alpha)))
        ),
        14,
        {"alpha": 1.702},
        extremes=({"alpha": 1.0},),
    ),
    _activation(
        "silu",
        lambda x: x * sigmoid(x),
        lambda b, x: _gated(b, x, b.op("sigmoid", x)),
        13,
        relax="relax.nn.silu",
    ),
    _activation("mish", mish, lambda b, x: _gated(b, x, b.op("tanh", _soft(b, x))), 30),
    _activation(
        "softplus",
        softplus,
        _softplus,
        24,
        {"beta": 1.0, "threshold": 20.0},
        relax="relax.nn.softplus",
        extremes=({"beta": 2.0}, {"beta": 0.5, "threshold": 1.0}),
    ),
    _activation(
        "softsign",
        lambda x: x / (1 + np.abs(x)),
        lambda b, x: b.op("divide", x, b.op("add", b.op("abs", x), _number(b, x, 1))),
        3,
    ),
    _activation(
        "thresholded_relu",
        thresholded_relu,
        _threshold,
        1,
        {"alpha": 1.0, "value": 0.0},
        extremes=({"alpha": 0.0}, {"alpha": -1.0, "value": 7.0}),
    ),
    _activation(
        "shrink",
        shrink,
        _shrink,
        3,
        {"bias": 0.0, "lambd": 0.5},
        extremes=({"bias": 1.5, "lambd": 1.5}, {"lambd": 0.0}),
    ),
    _activation(
        "clip",
        clip,
        lambda b, x, min, max: _limited(b, x, min, max),
        2,
        {"min": None, "max": None},
        relax="relax.clip",
        extremes=({"min": -1.0}, {"max": 0.5}, {"min": 0.0, "max": 6.0}, {"min": 2.0, "max": 1.0}),
        dtypes=NUMBERS,
        tolerance=TOLERANCES,
    ),
)
