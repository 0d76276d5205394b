"""Tensors made of nothing but a rule: constants of a shape, ranges, diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import (
    Dynamic,
    Known,
    simplify,
)


@converter("ConstantOfShape")
def constant_of_shape(ctx: NodeContext) -> relax.Expr:
    """A tensor of one value."""
    value = np.asarray(ctx.attrs.get("value", np.zeros(1, np.float32))).reshape(())
    dims = ctx.dims(0, sizes=True)
    fill = ctx.importer.constant(value)
    return ctx.emit(relax.op.full(relax.ShapeExpr(dims), fill, str(value.dtype)))


@converter("Range")
def range_(ctx: NodeContext) -> relax.Expr:
    """Numbers from start to limit; a limit that is data makes the length symbolic."""
    dtype = ctx.dtype(0)
    if "int" not in dtype:
        return _float_range(ctx, dtype)
    start, limit, step = (ctx.dims(i)[0] for i in range(3))
    if not isinstance(step, int):
        step = int(ctx.known(2, "the step").reshape(-1)[0])
    if step == 0:
        raise ctx.invalid("a step of 0")
    span = limit - start if step > 0 else start - limit
    length = simplify((span + abs(step) - 1) // abs(step))
    if not isinstance(length, int):
        length = simplify(tirx.max(length, tirx.const(0, "int64")))

    def compute(local: list[Any]) -> te.Tensor:
        first, count = local
        return te.compute((count,), lambda i: (first + i * step).astype(dtype), name="range")

    return ctx.te_dims(compute, [], [start, length], "range")


def _float_range(ctx: NodeContext, dtype: str) -> relax.Expr:
    """ceil((limit - start) / step) numbers; how many is known at run time only."""
    bounds = [ctx.reshape(ctx.expr(i), ()) for i in range(3)]

    def length(start: te.Tensor, limit: te.Tensor, step: te.Tensor) -> te.Tensor:
        def at(_: Any) -> Any:
            zero = step() == tirx.const(0, dtype)
            span = (limit() - start()) / tirx.Select(zero, tirx.const(1, dtype), step())
            count = tirx.ceil(span).astype("int64")
            return tirx.Select(zero, tirx.const(0, "int64"), tirx.max(count, 0))

        return te.compute((1,), at, name="range_length")

    count = ctx.settled(Dynamic(ctx.te(length, *bounds, name="range_length")), sizes=True)[0]

    def fill(local: list[Any], start: te.Tensor, step: te.Tensor) -> te.Tensor:
        return te.compute((local[0],), lambda i: start() + i.astype(dtype) * step(), name="range")

    return ctx.te_dims(fill, [bounds[0], bounds[2]], [count], "range")


@converter("EyeLike")
def eye_like(ctx: NodeContext) -> relax.Expr:
    """Ones on a diagonal."""
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    rows, columns = ctx.static_shape(0)
    named = "dtype" in ctx.attrs
    dtype = str(numpy_dtype(ctx.attrs["dtype"], "EyeLike")) if named else ctx.dtype(0)
    return Known(np.eye(rows, columns, int(ctx.attrs.get("k", 0))).astype(dtype))
