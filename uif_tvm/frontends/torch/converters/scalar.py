"""Scalar TIR formulas shared by the converters."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from uif_tvm.kernels import math as bits


def dtype_of(x: Any) -> str:
    """Dtype name of a TIR expression."""
    return str(x.ty.dtype)


def like(value: float, x: Any) -> tirx.Expr:
    """A number in the dtype of ``x``."""
    return tirx.const(value, dtype_of(x))


def is_nan(x: Any) -> tirx.Expr:
    """``x != x``; false for integers."""
    if "float" not in dtype_of(x):
        return tirx.const(False, "bool")
    return bits.is_nan(x)
