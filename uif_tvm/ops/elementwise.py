"""Elementwise functions of one operand: y[i] = f(x[i])."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.spec import (
    ALL,
    FLOATS,
    INTS,
    LOOSE,
    NUMBERS,
    TOLERANCES,
    Array,
    Case,
    OpSpec,
    Reference,
)


def in_float32(function: Reference) -> Reference:
    """``function`` computed in float32 for the 16-bit floats and rounded once."""

    def apply(x: Array, *rest: Array, **attrs: object) -> Array:
        narrow = x.dtype.itemsize == 2 and x.dtype.name in ("float16", "bfloat16")
        wide = [item.astype(np.float32) if narrow else item for item in (x, *rest)]
        return np.asarray(function(*wide, **attrs)).astype(x.dtype)

    return apply


def erf(x: Array) -> Array:
    """The error function, by the C library, element by element."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e / (1 + e), 1 / (1 + e)).astype(x.dtype)


def round_half_even(x: Array) -> Array:
    """Nearest integer, ties to even, as IEEE 754 rounds."""
    return np.rint(x).astype(x.dtype)


def special_values() -> Iterable[Case]:
    """What every float function must get right: signed zeros, infinities, NaN, denormals."""
    tiny = np.finfo(np.float32).tiny
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, tiny, tiny / 4, -tiny / 4, 1.0, -1.0, 1e30, -1e30]
    yield Case("special-values", (np.array(values, np.float32),))
    yield Case("scalar", (np.array(0.5, np.float32),))
    yield Case("zero-size", (np.empty((2, 0, 3), np.float32),))
    yield Case("size-1", (np.full((1, 1), -0.25, np.float32),))
    yield Case("odd-length", (np.linspace(-4, 4, 37, dtype=np.float32),))


def integer_values() -> Iterable[Case]:
    """Extremes of integers: the smallest one has no positive counterpart."""
    info = np.iinfo(np.int32)
    yield Case("extremes", (np.array([info.min, info.max, 0, -1, 1], np.int32),))
    yield Case("zero-size", (np.empty((0, 3), np.int32),))


def boolean_values() -> Iterable[Case]:
    """Both of them."""
    yield Case("both", (np.array([True, False]),))
    yield Case("zero-size", (np.empty((0,), bool),))


def _float(
    name: str, reference: Reference, flops: float, relax: bool = True, exact: bool = False
) -> OpSpec:
    return OpSpec(
        name,
        "elementwise",
        reference if exact else in_float32(reference),
        infer.same,
        relax=f"relax.{name}" if relax else None,
        cases=special_values,
        tolerance=TOLERANCES if exact else LOOSE,
        flops=flops,
    )


#: Functions of floats: name -> (meaning, operations per element).
_FUNCTIONS: dict[str, tuple[Reference, float]] = {
    "acos": (np.arccos, 10),
    "acosh": (np.arccosh, 12),
    "asin": (np.arcsin, 10),
    "asinh": (np.arcsinh, 12),
    "atan": (np.arctan, 10),
    "atanh": (np.arctanh, 12),
    "cos": (np.cos, 10),
    "cosh": (np.cosh, 12),
    "erf": (erf, 12),
    "exp": (np.exp, 10),
    "log": (np.log, 10),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 4),
    "sigmoid": (sigmoid, 12),
    "sin": (np.sin, 10),
    "sinh": (np.sinh, 12),
    "sqrt": (np.sqrt, 4),
    "tan": (np.tan, 10),
    "tanh": (np.tanh, 12),
}

SPECS = (
    *(_float(name, meaning, flops) for name, (meaning, flops) in _FUNCTIONS.items()),
    *(
        _float(name, meaning, 1, exact=True)
        for name, meaning in (
            ("ceil", np.ceil),
            ("floor", np.floor),
            ("round", round_half_even),
            ("trunc", np.trunc),
        )
    ),
    *(
        OpSpec(
            name,
            "elementwise",
            meaning,
            infer.same,
            relax=f"relax.{name}",
            dtypes=NUMBERS,
            cases=special_values,
        )
        for name, meaning in (("abs", np.abs), ("negative", np.negative), ("sign", np.sign))
    ),
    *(
        OpSpec(
            name,
            "elementwise",
            meaning,
            infer.boolean,
            relax=f"relax.{name}",
            cases=special_values,
        )
        for name, meaning in (
            ("isfinite", np.isfinite),
            ("isinf", np.isinf),
            ("isnan", np.isnan),
        )
    ),
    OpSpec(
        "logical_not",
        "elementwise",
        np.logical_not,
        infer.same,
        relax="relax.logical_not",
        dtypes=("bool",),
        cases=boolean_values,
    ),
    OpSpec(
        "bitwise_not",
        "elementwise",
        np.bitwise_not,
        infer.same,
        relax="relax.bitwise_not",
        dtypes=(*INTS, "bool"),
        cases=integer_values,
    ),
)

__all__ = ["ALL", "FLOATS", "SPECS"]
