"""Slice and Split."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import (
    Dim,
    Known,
    at_least,
    is_static,
    same_dim,
    shape_of,
    simplify,
)


@converter("Split")
def split(ctx: NodeContext) -> list[Any]:
    """Cut along an axis, into given or equal parts."""
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    extent = ctx.shape(0)[axis]
    if ctx.has(1):
        sizes: list[Dim] = ctx.dims(1, sizes=True)
    elif "split" in ctx.attrs:
        sizes = list(ctx.attrs["split"])
    else:
        count = int(ctx.attrs.get("num_outputs", len(ctx.outputs)))
        part = simplify((extent + count - 1) // count)
        sizes = [_part(extent, part, i) for i in range(count)]
    if not is_static((extent, *sizes)):
        return _symbolic_split(ctx, axis, sizes)
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise ctx.invalid(f"parts {sizes} do not add up to {extent}")
    if len(sizes) < len(ctx.outputs):
        raise ctx.invalid(f"{len(ctx.outputs)} outputs for {len(sizes)} parts")
    if len(sizes) == 1:
        return [ctx.expr(0)]
    if all(size > 0 for size in sizes):
        at = [int(v) for v in np.cumsum(sizes)[:-1]]
        parts = ctx.emit(relax.op.split(ctx.expr(0), at, axis))
        return [ctx.emit(relax.TupleGetItem(parts, i)) for i in range(len(sizes))]
    results = []
    for start, length in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        results.append(cut(ctx, ctx.expr(0), {axis: (int(start), int(start) + length, 1)}))
    return results


def _part(extent: Dim, part: Dim, index: int) -> Dim:
    """Extent of one of the equal parts, of which the last may be smaller."""
    rest = simplify(extent - part * index)
    if is_static((part, rest)):
        return max(min(part, rest), 0)
    return at_least(simplify(tirx.min(part, rest)), 0)


def _symbolic_split(ctx: NodeContext, axis: int, sizes: list[Dim]) -> list[Any]:
    """Parts of an axis where it, or they, are settled at run time; that they add up is checked."""
    if len(sizes) < len(ctx.outputs):
        raise ctx.invalid(f"{len(ctx.outputs)} outputs for {len(sizes)} parts")
    total: Dim = 0
    results = []
    for size in sizes:
        stop = simplify(total + size)
        results.append(cut(ctx, ctx.expr(0), {axis: (total, stop, 1)}))
        total = stop
    ctx.require_equal(total, ctx.shape(0)[axis])
    return results


def cut(ctx: NodeContext, expr: relax.Expr, ranges: dict[int, tuple[Dim, Dim, int]]) -> Any:
    """Slices (begin, end, step) along axes; begin and end already clamped as Python does."""
    dims = list(shape_of(expr))
    begins = {axis: begin for axis, (begin, _, _) in ranges.items()}
    for axis, (begin, end, step) in ranges.items():
        extent = end - begin if step > 0 else begin - end
        # An end before the begin leaves nothing, and whether it is may depend on sizes.
        dims[axis] = simplify((at_least(extent, 0) + abs(step) - 1) // abs(step))
    if is_static(tuple(dims)) and 0 in dims:
        from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

        return Known(np.empty(dims, numpy_dtype_named(str(expr.ty.dtype))))
    order = sorted(ranges)
    bounds = [(*ranges[axis], shape_of(expr)[axis]) for axis in order]
    forwards = all(step > 0 for _, _, step, _ in bounds)
    static = [all(isinstance(v, int) for v in bound[:2] + bound[3:]) for bound in bounds]
    if all(static) or (forwards and all(isinstance(v, int) for b in bounds for v in b[:2])):
        # Going backwards, an end of -1 means past the first element, not the last one.
        ends = [-extent - 1 if step < 0 and end < 0 else end for _, end, step, extent in bounds]
        return ctx.op(
            "strided_slice",
            expr,
            axes=tuple(order),
            begin=tuple(begin for begin, _, _, _ in bounds),
            end=tuple(ends),
            strides=tuple(step for _, _, step, _ in bounds),
        )

    def compute(local: list[Any], a: te.Tensor) -> te.Tensor:
        starts = dict(zip(order, local, strict=False))

        def at(*index: Any) -> Any:
            return a(
                *[
                    starts[axis] + i * ranges[axis][2] if axis in ranges else i
                    for axis, i in enumerate(index)
                ]
            )

        return te.compute(local[len(order) :], at, name="slice")

    return ctx.te_dims(compute, [expr], [*[begins[axis] for axis in order], *dims], "slice")


@converter("Slice")
def slice_(ctx: NodeContext) -> Any:
    """Slices along axes, as Python's, with steps."""
    if ctx.version < 10:
        starts: list[Dim] = list(ctx.attrs["starts"])
        ends: list[Dim] = list(ctx.attrs["ends"])
        axes = list(ctx.attrs.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        starts, ends = ctx.dims(1), ctx.dims(2)
        axes = [int(v) for v in ctx.known(3, "axes")] if ctx.has(3) else list(range(len(starts)))
        steps = [int(v) for v in ctx.known(4, "steps")] if ctx.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ctx.invalid("starts, ends, axes and steps differ in length")
    dims = ctx.shape(0)
    ranges: dict[int, tuple[Dim, Dim, int]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ctx.invalid("a step of 0")
        at = ctx.axis(axis, len(dims))
        extent = dims[at]
        begin = _clamped(start, extent, step > 0, False)
        stop = _clamped(end, extent, step > 0, True)
        if isinstance(begin, int) and isinstance(stop, int) and (stop - begin) * step <= 0:
            stop = begin
        if (begin, stop, step) != (0, extent, 1):
            ranges[at] = (begin, stop, step)
    return cut(ctx, ctx.expr(0), ranges) if ranges else ctx.value(0)


def _clamped(bound: Dim, extent: Dim, forward: bool, is_end: bool) -> Dim:
    """A slice bound moved into [0, extent], or [-1, extent - 1] for negative steps."""
    low, high = (0, extent) if forward else (-1 if is_end else 0, extent - 1)
    if isinstance(bound, int) and isinstance(extent, int):
        at = bound + extent if bound < 0 else bound
        if not forward and not is_end and extent and at < 0:
            return -1  # nothing to visit
        return min(max(at, low), int(high))
    if isinstance(bound, int):
        if bound >= 2**31 - 1:
            return high
        if bound <= -(2**31) + 1:
            return low
        if bound == 0 and forward:
            return 0
        at_symbolic = bound + extent if bound < 0 else bound
    elif same_dim(extent, bound):
        return extent
    else:
        at_symbolic = tirx.Select(bound < 0, bound + extent, bound)
    low_expr = tirx.const(low, "int64")
    high_expr = tirx.const(high, "int64") if isinstance(high, int) else high
    at_expr = tirx.const(at_symbolic, "int64") if isinstance(at_symbolic, int) else at_symbolic
    return simplify(tirx.max(low_expr, tirx.min(at_expr, high_expr)))
