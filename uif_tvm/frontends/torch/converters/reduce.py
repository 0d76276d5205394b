"""Reductions, with PyTorch's result dtypes and its treatment of NaN and of nothing."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from uif_tvm.frontends.torch.dtypes import compute_dtype
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def axes_of(cx: Emitter, x: relax.Expr, dim: Any) -> list[int]:
    """Non-negative axes; all of them for ``None`` or an empty list."""
    rank = len(cx.shape(x))
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return sorted({d % rank if rank else 0 for d in dims}) if rank else []


def _count(cx: Emitter, x: relax.Expr, axes: list[int]) -> int:
    shape = [cx.shape(x)[axis] for axis in axes]
    if not all(isinstance(size, int) for size in shape):
        raise RefusedError("a mean over a dynamic size is not supported here")
    return math.prod(shape)


def _is_empty(cx: Emitter, x: relax.Expr) -> bool:
    return 0 in cx.shape(x)


@converts("aten.sum.default", "aten.sum.dim_IntList")
def total(cx: Emitter, x: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    """Sum; integers and booleans add up in int64."""
    if "dim_IntList" not in str(cx.node.target):
        dim, keepdim = None, False
    work = compute_dtype(cx.out_dtype)
    x = cx.cast(x, work)
    axes = axes_of(cx, x, dim)
    if not axes:
        return cx.cast(x, cx.out_dtype)
    if _is_empty(cx, x):
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    return cx.cast(cx.emit(relax.op.sum(x, axes, bool(keepdim))), cx.out_dtype)


@converts("aten.mean.default", "aten.mean.dim")
def mean(cx: Emitter, x: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    """Arithmetic mean; NaN of nothing."""
    if ".dim" not in str(cx.node.target):
        dim, keepdim = None, False
    work = compute_dtype(cx.out_dtype)
    x = cx.cast(x, work)
    axes = axes_of(cx, x, dim)
    if not axes:
        return cx.cast(x, cx.out_dtype)
    if _is_empty(cx, x):
        return cx.full(cx.out_shape, math.nan, cx.out_dtype)
    return cx.cast(cx.emit(relax.op.mean(x, axes, bool(keepdim))), cx.out_dtype)


@converts("aten.var.correction")
def variance(cx: Emitter, x: Any, dim: Any, correction: Any = None, keepdim: bool = False) -> Any:
    """Variance in two passes, over ``n - correction``."""
    return cx.cast(_variance(cx, x, dim, correction, keepdim)[0], cx.out_dtype)


@converts("aten.std.correction")
def deviation(cx: Emitter, x: Any, dim: Any, correction: Any = None, keepdim: bool = False) -> Any:
    """Standard deviation."""
    spread = _variance(cx, x, dim, correction, keepdim)[0]
    return cx.cast(cx.emit(relax.op.sqrt(spread)), cx.out_dtype)


@converts("aten.var_mean.correction")
def variance_mean(
    cx: Emitter, x: Any, dim: Any, correction: Any = None, keepdim: bool = False
) -> Any:
    """Variance and mean."""
    return [cx.cast(part, cx.out_dtype) for part in _variance(cx, x, dim, correction, keepdim)]


def _variance(
    cx: Emitter, x: Any, dim: Any, correction: Any, keepdim: bool
) -> tuple[relax.Expr, relax.Expr]:
    work = compute_dtype(cx.out_dtype)
    x = cx.cast(x, work)
    axes = axes_of(cx, x, dim)
    shape = cx.out_shape
    if _is_empty(cx, x):
        nothing = cx.full(shape, math.nan, work)
        return nothing, nothing
    count = _count(cx, x, axes)
    freedom = max(0.0, count - (1.0 if correction is None else float(correction)))
    if not axes:
        value = math.nan if freedom == 0 else 0.0
        zero = cx.emit(relax.op.subtract(x, x))
        return cx.emit(relax.op.add(zero, cx.const(value, work))), x
    average = cx.emit(relax.op.mean(x, axes, keepdims=True))
    centred = cx.emit(relax.op.subtract(x, average))
    squares = cx.emit(relax.op.sum(cx.emit(relax.op.multiply(centred, centred)), axes, True))
    spread = cx.emit(relax.op.divide(squares, cx.const(freedom, work)))
    if not keepdim:
        spread, average = cx.reshape(spread, shape), cx.reshape(average, shape)
    return spread, average


@converts("aten.prod.default", "aten.prod.dim_int")
def product(cx: Emitter, x: Any, dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    """Product; integers and booleans multiply in int64."""
    if "dim_int" not in str(cx.node.target):
        dim, keepdim = None, False
    work = compute_dtype(cx.out_dtype)
    if work == "bool":
        raise RefusedError("product as booleans is not supported")
    x = cx.cast(x, work)
    axes = axes_of(cx, x, dim)
    if not axes:
        return cx.cast(x, cx.out_dtype)
    if _is_empty(cx, x):
        return cx.full(cx.out_shape, 1, cx.out_dtype)
    return cx.cast(cx.emit(relax.op.prod(x, axes, bool(keepdim))), cx.out_dtype)


@converts("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_of(cx: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any element is non-zero."""
    return _truth(cx, x, dim, keepdim, "any")


@converts("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_of(cx: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether all elements are non-zero."""
    return _truth(cx, x, dim, keepdim, "all")


def _truth(cx: Emitter, x: Any, dim: Any, keepdim: bool, name: str) -> Any:
    flags = cx.cast(x, "bool")
    # An empty list of dims means all of them; see torch.any.
    axes = tuple(axes_of(cx, x, dim))
    return cx.cast(cx.op(name, flags, axis=axes, keepdims=bool(keepdim)), cx.out_dtype)


# -- extremes -------------------------------------------------------------------------------


def extreme(
    cx: Emitter, x: relax.Expr, axes: list[int], keepdim: bool, largest: bool
) -> relax.Expr:
    """Max or min over axes; any NaN makes the result NaN."""
    dtype = cx.dtype(x)
    if dtype == "bool":
        return cx.op("any" if largest else "all", x, axis=tuple(axes), keepdims=bool(keepdim))
    op = relax.op.max if largest else relax.op.min
    return cx.emit(op(x, axes, bool(keepdim))) if axes else x


@converts("aten.amax.default", "aten.max.default")
def amax(cx: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest element."""
    return extreme(cx, x, axes_of(cx, x, dim), keepdim, largest=True)


@converts("aten.amin.default", "aten.min.default")
def amin(cx: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest element."""
    return extreme(cx, x, axes_of(cx, x, dim), keepdim, largest=False)


def arg_extreme(
    cx: Emitter, x: relax.Expr, axes: list[int], keepdim: bool, largest: bool
) -> relax.Expr:
    """Position (int64) of the first extreme along ``axes`` taken as one; NaN counts as extreme."""
    x = cx.cast(x, "int8") if cx.dtype(x) == "bool" else x
    axis = axes[0] if len(axes) == 1 else None
    return cx.op("argmax" if largest else "argmin", x, axis=axis, keepdims=bool(keepdim))


@converts("aten.argmax.default")
def argmax(cx: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Position of the largest element; the first one of equals."""
    return _arg(cx, x, dim, keepdim, largest=True)


@converts("aten.argmin.default")
def argmin(cx: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Position of the smallest element; the first one of equals."""
    return _arg(cx, x, dim, keepdim, largest=False)


def _arg(cx: Emitter, x: Any, dim: Any, keepdim: bool, largest: bool) -> Any:
    if not cx.shape(x) or _is_empty(cx, x):
        return cx.full(cx.out_shape, 0, "int64")
    return arg_extreme(cx, x, axes_of(cx, x, dim), keepdim, largest)


@converts("aten.max.dim")
def max_dim(cx: Emitter, x: Any, dim: int, keepdim: bool = False) -> Any:
    """Largest elements and their positions."""
    return _with_positions(cx, x, dim, keepdim, largest=True)


@converts("aten.min.dim")
def min_dim(cx: Emitter, x: Any, dim: int, keepdim: bool = False) -> Any:
    """Smallest elements and their positions."""
    return _with_positions(cx, x, dim, keepdim, largest=False)


def _with_positions(cx: Emitter, x: Any, dim: int, keepdim: bool, largest: bool) -> Any:
    if not cx.shape(x):
        return [x, cx.full([], 0, "int64")]
    axes = axes_of(cx, x, dim)
    if _is_empty(cx, x):
        return [cx.full(cx.out_shape, 0, cx.dtype(x)), cx.full(cx.out_shape, 0, "int64")]
    values = extreme(cx, x, axes, keepdim, largest)
    indices = arg_extreme(cx, x, axes, keepdim, largest) if cx.is_used(1) else None
    return [values, indices]


@converts("aten.logsumexp.default")
def logsumexp(cx: Emitter, x: Any, dim: Any, keepdim: bool = False) -> Any:
    """``log(sum(exp(x)))`` without overflow."""
    work = compute_dtype(cx.out_dtype)
    x = cx.cast(x, work)
    axes = axes_of(cx, x, dim)
    if _is_empty(cx, x):
        return cx.full(cx.out_shape, -math.inf, cx.out_dtype)
    result = cx.op("log_sum_exp", x, axis=tuple(axes), keepdims=bool(keepdim))
    return cx.cast(cx.reshape(result, cx.out_shape), cx.out_dtype)


@converts("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(cx: Emitter, x: Any, dim: Any = None) -> Any:
    """How many elements are non-zero."""
    axes = axes_of(cx, x, dim)
    ones = cx.cast(cx.cast(x, "bool"), "int64")
    if not axes:
        return ones
    if _is_empty(cx, x):
        return cx.full(cx.out_shape, 0, "int64")
    return cx.emit(relax.op.sum(ones, axes))
