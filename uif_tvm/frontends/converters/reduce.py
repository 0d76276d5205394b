"""Reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.elementwise import is_float
from uif_tvm.frontends.converters.registry import converter

#: Operator -> standard operator.
REDUCE = {
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceProd": "prod",
    "ReduceL1": "l1_norm",
    "ReduceL2": "l2_norm",
    "ReduceSumSquare": "sum_square",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}
_OF_TRUTHS = {"ReduceMax": "any", "ReduceMin": "all"}


def reduced_axes(ctx: NodeContext) -> list[int]:
    """Axes to reduce, none for ``noop_with_empty_axes``: each element is then reduced by itself."""
    rank = ctx.rank(0)
    axes: list[int] | None = None
    if ctx.has(1):
        axes = [int(axis) for axis in ctx.known(1, "axes").reshape(-1)]
    elif "axes" in ctx.attrs:
        axes = list(ctx.attrs["axes"])
    if not axes:
        return [] if ctx.attrs.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({ctx.axis(axis, rank) for axis in axes})


@converter(*REDUCE)
def reduce(ctx: NodeContext) -> Any:
    """One reduction; an empty range gives the operation's neutral element."""
    x, dtype, op = ctx.expr(0), ctx.dtype(0), ctx.op_type
    axes = tuple(reduced_axes(ctx))
    where: dict[str, Any] = {"axis": axes, "keepdims": bool(ctx.attrs.get("keepdims", 1))}
    if dtype == "bool":
        return ctx.op(_OF_TRUTHS[op], x, **where)
    if op == "ReduceMean" and not is_float(dtype):
        total = ctx.op("sum", x, **where)
        count = int(np.prod([ctx.static_shape(0)[axis] for axis in axes]))
        return ctx.emit(relax.op.floor_divide(total, ctx.const(count, dtype)))
    return ctx.op(REDUCE[op], x, **where)
