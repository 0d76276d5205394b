"""Activations as expressions of one element; elementary functions stay single calls in them.

float16 and bfloat16 compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.functions import const, expm1, select

if TYPE_CHECKING:
    from tvm import te

Expr = Any
_NARROW = ("float16", "bfloat16")


def _wide(x: Any, formula: Callable[[Expr, Callable[[float], Expr]], Expr]) -> Expr:
    """``formula(x, const)`` in float32 at least, rounded to the type of ``x``."""
    from tvm import tirx

    x = x.asobject() if hasattr(x, "asobject") else x  # an element of a te.Tensor
    dtype = str(x.ty.dtype)
    wide = "float32" if dtype in _NARROW else dtype
    return formula(x.astype(wide), lambda value: tirx.const(value, wide)).astype(dtype)


def relu(x: Any) -> Expr:
    """max(x, 0); NaN passes through, as the comparison is false for it."""
    from tvm import tirx

    x = x.asobject() if hasattr(x, "asobject") else x  # an element of a te.Tensor
    zero = tirx.const(0, str(x.ty.dtype))
    return tirx.Select(x < zero, zero, x)


def silu(x: Any) -> Expr:
    """x sigmoid(x)."""
    from tvm import tirx

    return _wide(x, lambda v, const: v * tirx.sigmoid(v))


def sigmoid(x: Any) -> Expr:
    """1 / (1 + e^-x)."""
    from tvm import tirx

    return _wide(x, lambda v, const: tirx.sigmoid(v))


def gelu(x: Any) -> Expr:
    """x (1 + erf(x / sqrt 2)) / 2."""
    from tvm import tirx

    return _wide(
        x, lambda v, const: v * const(0.5) * (const(1.0) + tirx.erf(v * const(0.7071067811865476)))
    )


def gelu_tanh(x: Any) -> Expr:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    from tvm import tirx

    def formula(v: Expr, const: Callable[[float], Expr]) -> Expr:
        inner = const(0.7978845608028654) * (v + const(0.044715) * v * v * v)
        return const(0.5) * v * (const(1.0) + tirx.tanh(inner))

    return _wide(x, formula)


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    """log(1 + e^(beta x)) / beta; x itself where beta x exceeds ``threshold``."""
    from tvm import tirx

    def formula(v: Expr, const: Callable[[float], Expr]) -> Expr:
        t = v * const(beta)
        tail = tirx.log1p(tirx.exp(-tirx.abs(t)))
        # The larger of t and 0 that passes NaN on: a comparison with NaN is false.
        soft = (tirx.Select(t < const(0.0), const(0.0), t) + tail) / const(beta)
        return tirx.Select(t > const(threshold), v, soft)

    return _wide(x, formula)


def leaky_relu(x: Expr, alpha: float) -> Expr:
    """x, or alpha x below 0."""
    return select(x < const(x, 0), x * const(x, alpha), x)


def prelu(x: Expr, slope: Expr) -> Expr:
    """x, or slope x below 0."""
    return select(x < const(x, 0), x * slope, x)


def elu(x: Expr, alpha: float, scale: float = 1.0, input_scale: float = 1.0) -> Expr:
    """scale x, or scale alpha (e^(input_scale x) - 1) below 0."""
    # The argument is limited so that the branch not taken cannot overflow.
    inner = select(x < const(x, 0), x * const(x, input_scale), const(x, 0))
    return select(x < const(x, 0), const(x, alpha * scale) * expm1(inner), const(x, scale) * x)


def selu(x: Expr, alpha: float, gamma: float) -> Expr:
    """gamma x, or gamma alpha (e^x - 1) below 0."""
    return elu(x, alpha, gamma)


def celu(x: Expr, alpha: float) -> Expr:
    """x, or alpha (e^(x / alpha) - 1) below 0."""
    return elu(x, alpha, 1.0, 1.0 / alpha)


def limited(x: Expr, low: float | None, high: float | None) -> Expr:
    """x limited from below, then from above; NaN passes."""
    if low is not None:
        x = select(x < const(x, low), const(x, low), x)
    return x if high is None else select(x > const(x, high), const(x, high), x)


def hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    """alpha x + beta, limited to 0 .. 1."""
    return limited(x * const(x, alpha) + const(x, beta), 0, 1)


def hard_swish(x: Expr) -> Expr:
    """x times (x + 3) / 6 limited to 0 .. 1; the product is NaN whatever the gate makes of NaN."""
    from tvm import tirx

    gate = tirx.min(const(x, 1), x * const(x, 1 / 6) + const(x, 0.5))
    return x * tirx.max(const(x, 0), gate)


def quick_gelu(x: Expr, alpha: float) -> Expr:
    """x sigmoid(alpha x)."""
    from tvm import tirx

    return x * tirx.sigmoid(x * const(x, alpha))


def mish(x: Expr) -> Expr:
    """x tanh(log(1 + e^x)) = x w / (w + 2) with w = e^x (e^x + 2); x itself from 20 on."""
    from tvm import tirx

    grown = tirx.exp(select(x > const(x, 20), const(x, 20), x))
    w = grown * (grown + const(x, 2))
    return select(x > const(x, 20), x, x * (w / (w + const(x, 2))))


def softsign(x: Expr) -> Expr:
    """x / (1 + |x|)."""
    from tvm import tirx

    return x / (const(x, 1) + tirx.abs(x))


def thresholded_relu(x: Expr, alpha: float, value: float) -> Expr:
    """x above alpha, else ``value``."""
    return select(x <= const(x, alpha), const(x, value), x)


def shrink(x: Expr, bias: float, lambd: float) -> Expr:
    """x - bias above lambd, x + bias below -lambd, else 0."""
    from tvm import tirx

    moved = select(x > const(x, 0), x - const(x, bias), x + const(x, bias))
    return select(tirx.abs(x) <= const(x, lambd), const(x, 0), moved)


#: Gates of gated linear units.
GATES: dict[str, Callable[[Expr], Expr]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "none": lambda x: x,
    "relu": relu,
    "sigmoid": sigmoid,
    "silu": silu,
}


def glu(x: te.Tensor, axis: int, activation: str) -> te.Tensor:
    """First half of an axis times the activation of the second half."""
    from tvm import te

    axis %= len(x.shape)
    half = x.shape[axis] // 2
    shape = [*x.shape[:axis], half, *x.shape[axis + 1 :]]

    def element(*i: Any) -> Expr:
        second = [*i[:axis], i[axis] + half, *i[axis + 1 :]]
        return x(*i) * GATES[activation](x(*second))

    return te.compute(shape, element, name="glu")
