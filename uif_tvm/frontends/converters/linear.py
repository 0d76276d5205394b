"""Matrix products."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.broadcast import aligned, broadcast_shape
from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.elementwise import is_float, same_dtype
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Dim, same_dim, shape_of, simplify


def emit_matmul(
    ctx: NodeContext, a: relax.Expr, b: relax.Expr, out_dtype: str | None = None
) -> relax.Expr:
    """NumPy's matmul. A 2-D right side takes all rows of the left side in one product."""
    left, right = shape_of(a), shape_of(b)
    if not left or not right:
        raise ctx.invalid("a scalar has no matrix product")
    inner = (left[-1], right[-2] if len(right) > 1 else right[0])
    if all(isinstance(dim, int) for dim in inner) and inner[0] != inner[1]:
        raise ctx.invalid(f"inner dimensions differ: {list(left)} x {list(right)}")
    if not same_dim(*inner):
        wanted: list[Dim] = list(right)
        wanted[-2 if len(right) > 1 else 0] = left[-1]
        b = ctx.with_shape(b, wanted)
    if len(right) == 2 and len(left) > 2:
        rows = simplify(math.prod(left[:-1]))
        flat = ctx.reshape(a, [rows, left[-1]])
        return ctx.reshape(ctx.emit(relax.op.matmul(flat, b, out_dtype)), [*left[:-1], right[-1]])
    batch = broadcast_shape(ctx, left[:-2], right[:-2])
    a, b = _in_batch(ctx, a, batch), _in_batch(ctx, b, batch)
    return ctx.emit(relax.op.matmul(a, b, out_dtype))


def _in_batch(ctx: NodeContext, expr: relax.Expr, batch: tuple[Dim, ...]) -> relax.Expr:
    """An operand whose leading dimensions provably broadcast; the runtime checks the others."""
    now = shape_of(expr)
    if len(now) < 3:
        return expr
    lead = now[:-2]
    goal = batch[len(batch) - len(lead) :]
    wanted = [d if isinstance(d, int) and d == 1 else g for d, g in zip(lead, goal, strict=True)]
    return ctx.with_shape(expr, [*wanted, *now[-2:]])


@converter("MatMul")
def matmul(ctx: NodeContext) -> relax.Expr:
    """Matrix product with NumPy's broadcasting."""
    same_dtype(ctx, ctx.expr(0), ctx.expr(1))
    return emit_matmul(ctx, ctx.expr(0), ctx.expr(1))


def transposed(ctx: NodeContext, index: int, axes: list[int] | None = None) -> relax.Expr:
    """An input with its last two axes swapped; weights are swapped at import."""
    order = axes or [*range(ctx.rank(index) - 2), ctx.rank(index) - 1, ctx.rank(index) - 2]
    array = ctx.array(index)
    if array is not None:
        return ctx.importer.constant(np.ascontiguousarray(array.transpose(order)))
    return ctx.emit(relax.op.permute_dims(ctx.expr(index), order))


def scaled(ctx: NodeContext, expr: relax.Expr, factor: float) -> relax.Expr:
    """``expr * factor``."""
    if factor == 1.0:
        return expr
    dtype = str(expr.ty.dtype)
    if not is_float(dtype) and factor != int(factor):
        wide = ctx.cast(expr, "float64")
        product = ctx.emit(relax.op.multiply(wide, ctx.const(factor, "float64")))
        return ctx.cast(product, dtype)
    return ctx.emit(relax.op.multiply(expr, ctx.const(factor, dtype)))


@converter("Gemm")
def gemm(ctx: NodeContext) -> relax.Expr:
    """alpha * A' * B' + beta * C."""
    if ctx.rank(0) != 2 or ctx.rank(1) != 2:
        raise ctx.invalid(f"operands of rank {ctx.rank(0)} and {ctx.rank(1)}; both must be 2")
    same_dtype(ctx, ctx.expr(0), ctx.expr(1))
    a = transposed(ctx, 0) if ctx.attrs.get("transA", 0) else ctx.expr(0)
    b = transposed(ctx, 1) if ctx.attrs.get("transB", 0) else ctx.expr(1)
    alpha, beta = float(ctx.attrs.get("alpha", 1.0)), float(ctx.attrs.get("beta", 1.0))
    y = scaled(ctx, emit_matmul(ctx, a, b), alpha)
    if ctx.has(2) and beta != 0.0:
        c = scaled(ctx, ctx.expr(2), beta)
        y = ctx.emit(relax.op.add(*aligned(ctx, y, c)))
    return y


@converter("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(ctx: NodeContext) -> relax.Expr:
    """alpha * A' * B', where also the leading batch axes may be swapped."""
    operands = []
    for index, (swap, batch) in enumerate((("transA", "transBatchA"), ("transB", "transBatchB"))):
        rank = ctx.rank(index)
        order = list(range(rank))
        if ctx.attrs.get(batch, 0):
            order = [*order[1:-1], order[0], order[-1]]
        if ctx.attrs.get(swap, 0) and rank > 1:
            order[-1], order[-2] = order[-2], order[-1]
        plain = order == list(range(rank))
        operands.append(ctx.expr(index) if plain else transposed(ctx, index, order))
    return scaled(ctx, emit_matmul(ctx, *operands), float(ctx.attrs.get("alpha", 1.0)))


@converter("Einsum")
def einsum(ctx: NodeContext) -> relax.Expr:
    """Einstein summation."""
    operands = [ctx.expr(i) for i in range(len(ctx.inputs))]
    same_dtype(ctx, *operands)
    equation = str(ctx.attrs["equation"]).replace(" ", "")
    return ctx.emit(relax.op.einsum(operands, equation))
