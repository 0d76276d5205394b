"""Elementwise operators with NumPy broadcasting."""

from __future__ import annotations

import numpy as np

from uif_tvm.ops.spec import Array, OpSpec, Reference


def _sigmoid(x: Array) -> Array:
    return (1.0 / (1.0 + np.exp(-x))).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    root: Array = np.sqrt(x)
    return (1.0 / root).astype(x.dtype)


def _truncated(x: Array, y: Array) -> Array:
    # Integer division rounds toward zero in TIR; NumPy's // rounds down.
    if x.dtype.kind in "iu":
        quotient = np.abs(x) // np.where(y == 0, 1, np.abs(y))
        signed: Array = np.sign(x) * np.sign(y) * quotient
        return signed.astype(x.dtype)
    ratio: Array = np.divide(x, y)
    return ratio


def _astype(x: Array, dtype: str) -> Array:
    return x.astype(np.dtype(str(dtype)))


_UNARY: dict[str, tuple[Reference, float]] = {
    "abs": (np.abs, 1),
    "ceil": (np.ceil, 1),
    "cos": (np.cos, 10),
    "exp": (np.exp, 10),
    "floor": (np.floor, 1),
    "log": (np.log, 10),
    "logical_not": (np.logical_not, 1),
    "negative": (np.negative, 1),
    "rsqrt": (_rsqrt, 4),
    "sigmoid": (_sigmoid, 12),
    "sign": (np.sign, 1),
    "sin": (np.sin, 10),
    "sqrt": (np.sqrt, 4),
    "tanh": (np.tanh, 12),
}

_BINARY: dict[str, Reference] = {
    "add": np.add,
    "divide": _truncated,
    "equal": np.equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "not_equal": np.not_equal,
    "power": np.power,
    "subtract": np.subtract,
}

SPECS = (
    *(OpSpec(name, "elementwise", ref, flops_per_element=n) for name, (ref, n) in _UNARY.items()),
    *(OpSpec(name, "elementwise", ref) for name, ref in _BINARY.items()),
    OpSpec("where", "elementwise", np.where),
    OpSpec("astype", "elementwise", _astype, attributes=("dtype",)),
)
