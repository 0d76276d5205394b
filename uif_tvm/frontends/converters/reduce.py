"""Reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.elementwise import is_float
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Known, is_static

REDUCE = {
    "ReduceMax": relax.op.max,
    "ReduceMin": relax.op.min,
    "ReduceSum": relax.op.sum,
    "ReduceMean": relax.op.mean,
    "ReduceProd": relax.op.prod,
}
ALL = (
    *REDUCE,
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)


def reduced_axes(ctx: NodeContext) -> list[int] | None:
    """Axes to reduce; ``None`` when the node is then the identity."""
    rank = ctx.rank(0)
    axes: list[int] | None = None
    if ctx.has(1):
        axes = [int(axis) for axis in ctx.known(1, "axes").reshape(-1)]
    elif "axes" in ctx.attrs:
        axes = list(ctx.attrs["axes"])
    if not axes:
        return None if ctx.attrs.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({ctx.axis(axis, rank) for axis in axes})


@converter(*ALL)
def reduce(ctx: NodeContext) -> Any:
    """One reduction; an empty range gives the operation's neutral element."""
    axes = reduced_axes(ctx)
    keep = bool(ctx.attrs.get("keepdims", 1))
    op = ctx.op_type
    if axes is None:
        return _pointwise(ctx, ctx.expr(0))
    if is_static(ctx.shape(0)) and 0 in ctx.shape(0):
        return _empty(ctx, axes, keep)
    return emit_reduce(ctx, ctx.expr(0), op, axes, keep)


def _pointwise(ctx: NodeContext, x: relax.Expr) -> relax.Expr:
    """What a reduction over no axes leaves: its element-wise part."""
    op = ctx.op_type
    if op in ("ReduceL1", "ReduceL2"):
        return ctx.emit(relax.op.abs(x))
    if op == "ReduceSumSquare":
        return ctx.emit(relax.op.multiply(x, x))
    return ctx.emit(relax.op.log(x)) if op == "ReduceLogSum" else x


def _empty(ctx: NodeContext, axes: list[int], keep: bool) -> Known:
    from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

    dtype = numpy_dtype_named(ctx.dtype(0))
    dims = [1 if a in axes else int(d) for a, d in enumerate(ctx.static_shape(0))]
    shape = dims if keep else [d for a, d in enumerate(dims) if a not in axes]
    extremes = {"ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceMean": np.nan}
    fill: Any = {"ReduceProd": 1, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf}.get(
        ctx.op_type, extremes.get(ctx.op_type, 0)
    )
    if not is_float(ctx.dtype(0)) and not np.isfinite(fill):
        if ctx.dtype(0) == "bool":
            fill = ctx.op_type == "ReduceMin"
        else:
            info = np.iinfo(dtype)
            fill = info.min if ctx.op_type == "ReduceMax" else info.max
    return Known(np.full(shape, fill, dtype))


def emit_reduce(
    ctx: NodeContext, x: relax.Expr, op: str, axes: list[int], keep: bool
) -> relax.Expr:
    """The reduction ``op`` over ``axes``."""
    dtype = str(x.ty.dtype)
    if op in REDUCE:
        if dtype == "bool":
            wide = ctx.cast(x, "uint8")
            return ctx.cast(ctx.emit(REDUCE[op](wide, axes, keep)), "bool")
        if op == "ReduceMean" and not is_float(dtype):
            total = ctx.emit(relax.op.sum(x, axes, keep))
            count = int(np.prod([ctx.static_shape(0)[a] for a in axes]))
            return ctx.emit(relax.op.floor_divide(total, ctx.const(count, dtype)))
        return ctx.emit(REDUCE[op](x, axes, keep))
    if op == "ReduceL1":
        return ctx.emit(relax.op.sum(ctx.emit(relax.op.abs(x)), axes, keep))
    if op in ("ReduceL2", "ReduceSumSquare"):
        total = ctx.emit(relax.op.sum(ctx.emit(relax.op.multiply(x, x)), axes, keep))
        return _through_float(ctx, relax.op.sqrt, total) if op == "ReduceL2" else total
    if op == "ReduceLogSum":
        return _through_float(ctx, relax.op.log, ctx.emit(relax.op.sum(x, axes, keep)))
    if not is_float(dtype):
        return ctx.cast(emit_reduce(ctx, ctx.cast(x, "float64"), op, axes, keep), dtype)
    top = ctx.emit(relax.op.max(x, axes, keepdims=True))
    finite = ctx.te(_finite, top, name="finite_or_zero")
    shifted = ctx.emit(relax.op.exp(ctx.emit(relax.op.subtract(x, finite))))
    total = ctx.emit(relax.op.log(ctx.emit(relax.op.sum(shifted, axes, keep))))
    base = finite if keep else ctx.emit(relax.op.squeeze(finite, axes))
    return ctx.emit(relax.op.add(total, base))


def _finite(a: te.Tensor) -> te.Tensor:
    """Infinite maxima count as 0, so that inf - inf does not make NaN of a row of infinities."""
    top = tirx.max_value(kind(a))
    return te.compute(
        a.shape,
        lambda *i: tirx.Select(tirx.abs(a(*i)) <= top, a(*i), tirx.const(0, kind(a))),
        name="finite_or_zero",
    )


def _through_float(ctx: NodeContext, fn: Any, x: relax.Expr) -> relax.Expr:
    dtype = str(x.ty.dtype)
    if is_float(dtype):
        return ctx.emit(fn(x))
    return ctx.cast(ctx.emit(fn(ctx.cast(x, "float64"))), dtype)
