"""Broadcasting of operands, symbolic dimensions included; shared by the element-wise families."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.onnx.values import Dim, same_dim, shape_of


def broadcast_shape(ctx: NodeContext, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """NumPy's rule; a symbolic dimension against another unknown one is taken to be equal.

    Raises:
        ImportModelError: static dimensions that do not fit.
    """
    rank = max(len(shape) for shape in shapes)
    out: list[Dim] = []
    for axis in range(rank):
        dim: Dim = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            other = shape[at] if at >= 0 else 1
            if isinstance(other, int) and other == 1:
                continue
            if isinstance(dim, int) and dim == 1:
                dim = other
            elif isinstance(dim, int) and isinstance(other, int) and dim != other:
                raise ctx.invalid(f"shapes {[list(map(str, s)) for s in shapes]} do not broadcast")
            elif isinstance(other, int):
                dim = other
        out.append(dim)
    return tuple(out)


def aligned(ctx: NodeContext, *exprs: relax.Expr) -> list[relax.Expr]:
    """Operands whose dimensions provably broadcast.

    Where two symbolic dimensions are equal only at run time, the runtime checks that they are.
    """
    shapes = [shape_of(expr) for expr in exprs]
    target = broadcast_shape(ctx, *shapes)
    out = []
    for expr, shape in zip(exprs, shapes, strict=True):
        wanted: list[Dim] = []
        for dim, goal in zip(shape, target[len(target) - len(shape) :], strict=True):
            is_one = isinstance(dim, int) and dim == 1
            wanted.append(dim if is_one or same_dim(dim, goal) else goal)
        out.append(ctx.with_shape(expr, wanted))
    return out
