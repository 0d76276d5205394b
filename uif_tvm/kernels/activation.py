"""Activations as expressions of one element; elementary functions stay single calls in them.

float16 and bfloat16 compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
