"""Running sums, products and extremes along an axis."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from uif_tvm.frontends.torch.converters import scalar
from uif_tvm.frontends.torch.dtypes import compute_dtype
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts
from uif_tvm.kernels import scan


def _scan(cx: Emitter, x: Any, dim: int, name: str) -> Any:
    work = compute_dtype(cx.out_dtype)
    if work == "bool":
        raise RefusedError("a running sum as booleans is not supported")
    x = cx.cast(x, work)
    return cx.cast(cx.op(name, x, axis=dim) if cx.shape(x) else x, cx.out_dtype)


@converts("aten.cumsum.default")
def cumsum(cx: Emitter, x: Any, dim: int, dtype: Any = None) -> Any:
    """Running sum; integers and booleans add up in int64."""
    return _scan(cx, x, dim, "cumsum")


@converts("aten.cumprod.default")
def cumprod(cx: Emitter, x: Any, dim: int, dtype: Any = None) -> Any:
    """Running product."""
    return _scan(cx, x, dim, "cumprod")


@converts("aten.cummax.default")
def cummax(cx: Emitter, x: Any, dim: int) -> Any:
    """Running maximum and where it was last reached."""
    return _running_extreme(cx, x, dim, largest=True)


@converts("aten.cummin.default")
def cummin(cx: Emitter, x: Any, dim: int) -> Any:
    """Running minimum and where it was last reached."""
    return _running_extreme(cx, x, dim, largest=False)


def _running_extreme(cx: Emitter, x: Any, dim: int, largest: bool) -> Any:
    if cx.is_used(1):
        raise RefusedError("positions of a running extreme are not supported")
    dtype = cx.out_dtype
    work = "int8" if dtype == "bool" else dtype
    x = cx.cast(x, work)
    name = "cummax" if largest else "cummin"
    return [cx.cast(cx.op(name, x, axis=dim) if cx.shape(x) else x, dtype), None]


@converts("aten.logcumsumexp.default")
def logcumsumexp(cx: Emitter, x: Any, dim: int) -> Any:
    """Logarithm of the running sum of exponentials."""

    def combine(a: Any, b: Any) -> Any:
        high, low = tirx.max(a, b), tirx.min(a, b)
        infinite = tirx.abs(high) == scalar.like(math.inf, a)
        dtype = scalar.dtype_of(a)
        log1p = "log1p" if dtype == "float64" else "log1pf"
        finite = high + tirx.call_pure_extern(dtype, log1p, tirx.exp(low - high))
        result = tirx.Select(infinite, high, finite)
        return tirx.Select(tirx.any(scalar.is_nan(a), scalar.is_nan(b)), a + b, result)

    work = compute_dtype(cx.out_dtype)
    x = cx.cast(x, work)
    if cx.shape(x):
        axis = dim % len(cx.shape(x))
        x = cx.te(lambda data: scan.scan(data, axis, combine), x, name="logcumsumexp")
    return cx.cast(x, cx.out_dtype)
