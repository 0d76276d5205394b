"""Matrix products."""

from __future__ import annotations

from typing import Any

from tvm import relax

from uif_tvm.frontends.torch.dtypes import compute_dtype
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


def product(cx: Emitter, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """``a @ b``; half precision accumulates in float32, an empty sum gives zeros."""
    dtype = cx.dtype(a)
    if dtype == "bool":
        raise RefusedError("matrix product of booleans is not supported")
    if cx.shape(a)[-1] == 0:
        rows = cx.shape(a)[:-1]
        columns = cx.shape(b)[-1:] if len(cx.shape(b)) > 1 else []
        return cx.full([*rows, *columns], 0, dtype)
    work = compute_dtype(dtype)
    return cx.cast(cx.emit(relax.op.matmul(cx.cast(a, work), cx.cast(b, work))), dtype)


@converts("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default")
def matmul(cx: Emitter, a: Any, b: Any) -> Any:
    """Matrix product, batched or not."""
    return product(cx, a, b)


@converts("aten.dot.default", "aten.vdot.default")
def dot(cx: Emitter, a: Any, b: Any) -> Any:
    """Inner product of two vectors."""
    return product(cx, a, b)


@converts("aten.linear.default")
def linear(cx: Emitter, x: Any, weight: Any, bias: Any = None) -> Any:
    """``x @ weight.T + bias``; a constant weight is transposed at import."""
    axes = [1, 0] if len(cx.shape(weight)) == 2 else [0]
    result = product(cx, x, cx.permute(weight, axes))
    return result if bias is None else cx.emit(relax.op.add(result, bias))


@converts("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default")
def addmm(cx: Emitter, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * x + alpha * (a @ b)``; with ``beta == 0``, ``x`` counts for nothing, even NaN."""
    return _scaled_sum(cx, x, product(cx, a, b), beta, alpha)


@converts("aten.addbmm.default")
def addbmm(cx: Emitter, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * x + alpha * sum over the batch of (a @ b)``."""
    total = cx.emit(relax.op.sum(product(cx, a, b), [0]))
    return _scaled_sum(cx, x, total, beta, alpha)


def _scaled_sum(cx: Emitter, x: Any, total: Any, beta: Any, alpha: Any) -> Any:
    dtype = cx.out_dtype
    if alpha != 1:
        total = cx.emit(relax.op.multiply(total, cx.const(alpha, dtype)))
    if beta == 0:
        return cx.broadcast(total, cx.out_shape)
    if beta != 1:
        x = cx.emit(relax.op.multiply(x, cx.const(beta, dtype)))
    return cx.broadcast(cx.emit(relax.op.add(total, x)), cx.out_shape)


@converts("aten._trilinear.default")
def trilinear(
    cx: Emitter,
    a: Any,
    b: Any,
    c: Any,
    expand_a: list[int],
    expand_b: list[int],
    expand_c: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> Any:
    """Product of three tensors, each with new axes, summed over some of them."""
    del unroll_dim
    parts = []
    for x, new in ((a, expand_a), (b, expand_b), (c, expand_c)):
        parts.append(cx.emit(relax.op.expand_dims(x, sorted(new))) if new else x)
    first = cx.emit(relax.op.multiply(parts[0], parts[1]))
    whole = cx.emit(relax.op.multiply(first, parts[2]))
    return cx.reshape(cx.emit(relax.op.sum(whole, list(summed))), cx.out_shape)


@converts("aten._cdist_forward.default")
def cdist(cx: Emitter, a: Any, b: Any, p: float, mode: int | None = None) -> Any:
    """Distances between all rows of two matrices, by the Euclidean or Manhattan norm."""
    if p not in (1.0, 2.0):
        raise RefusedError(f"distances by the {p}-norm are not supported", "use p=1 or p=2")
    if 0 in cx.out_shape or 0 in cx.shape(a):
        return cx.full(cx.out_shape, 0, cx.out_dtype)
    rows = cx.emit(relax.op.expand_dims(a, [-2]))
    columns = cx.emit(relax.op.expand_dims(b, [-3]))
    gap = cx.emit(relax.op.subtract(rows, columns))
    if p == 1.0:
        return cx.emit(relax.op.sum(cx.emit(relax.op.abs(gap)), [-1]))
    return cx.emit(relax.op.sqrt(cx.emit(relax.op.sum(cx.emit(relax.op.multiply(gap, gap)), [-1]))))
