"""MaxUnpool."""

from __future__ import annotations

import math

from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.conv import spatial
from uif_tvm.frontends.converters.indexing import clamped
from uif_tvm.frontends.converters.kernels import call_kernel, scatter_rows
from uif_tvm.frontends.converters.padding import emit_pad
from uif_tvm.frontends.converters.registry import converter


@converter("MaxUnpool", since=9)
def max_unpool(ctx: NodeContext) -> relax.Expr:
    """Each element back at its flat place in the unpooled tensor, zeros elsewhere."""
    dims = ctx.static_shape(0)
    kernel = [int(k) for k in ctx.attrs["kernel_shape"]]
    rank = len(dims) - 2
    if len(kernel) != rank or ctx.static_shape(1) != dims:
        raise ctx.invalid(f"a kernel of {kernel} and {list(ctx.static_shape(1))} indices")
    strides = spatial(ctx, "strides", rank, 1)
    pads = [int(v) for v in ctx.attrs.get("pads") or [0] * (2 * rank)]
    full = list(dims[:2]) + [
        (n - 1) * s - pads[i] - pads[i + rank] + k
        for i, (n, s, k) in enumerate(zip(dims[2:], strides, kernel, strict=True))
    ]
    if min(full) < 1:
        raise ctx.invalid(f"unpooling {list(dims)} leaves {full}")
    wanted = [int(v) for v in ctx.known(2, "output_shape")] if ctx.has(2) else full
    if len(wanted) != len(full) or any(w < f for w, f in zip(wanted, full, strict=True)):
        raise ctx.invalid(f"output_shape {wanted} is smaller than {full}")
    total, count, dtype = math.prod(full), math.prod(dims), ctx.dtype(0)
    index = clamped(ctx, ctx.reshape(ctx.cast(ctx.expr(1), "int64"), (count,)), total)
    empty = ctx.emit(relax.op.zeros(relax.ShapeExpr([total, 1]), dtype))
    kernel_function = scatter_rows(total, 1, count, dtype, lambda _, new: new)
    args = [empty, index, ctx.reshape(ctx.expr(0), (count, 1))]
    (y,) = call_kernel(ctx, kernel_function, args, [[total, 1]], [dtype], "max_unpool")
    y = ctx.reshape(y, full)
    if wanted == full:
        return y
    after = [w - f for w, f in zip(wanted, full, strict=True)]
    return emit_pad(ctx, y, [0] * len(full), after, "constant", ctx.const(0, dtype))
