"""Gather, scatter, search and sort.

Indices that are data are normalised (negative ones count from the end) and then clamped, so that
nothing outside a tensor is ever read or written; indices known at import are checked instead.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.kernels import (
    call_kernel,
    count_true,
    dim,
    positions_true,
)
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.converters.slicing import cut
from uif_tvm.frontends.onnx.values import Dim, Dynamic, Known, same_dim, shape_of, simplify


def normalised(ctx: NodeContext, index: int, extent: Dim) -> relax.Expr:
    """An index input as int64 within [0, extent)."""
    known = ctx.array(index)
    if known is not None and isinstance(extent, int):
        whole = known.astype(np.int64)
        if whole.size and not (-extent <= whole.min() and whole.max() < extent):
            raise ctx.invalid(f"an index lies outside the dimension of {extent}")
        return ctx.importer.constant(np.where(whole < 0, whole + extent, whole))
    return clamped(ctx, ctx.expr(index), extent)


def clamped(ctx: NodeContext, expr: relax.Expr, extent: Dim) -> relax.Expr:
    """Indices computed at run time, normalised and clamped."""

    def compute(local: list[Any], a: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda *i: inside(a(*i), local[0]), name="clamp_index")

    return ctx.te_dims(compute, [expr], [extent], "clamp_index")


def inside(value: Any, extent: Any) -> Any:
    """A negative index counted from the end, then clamped to [0, extent)."""
    wide = value.astype("int64")
    extent = tirx.const(extent, "int64") if isinstance(extent, int) else extent.astype("int64")
    zero = tirx.const(0, "int64")
    counted = tirx.Select(wide < zero, wide + extent, wide)
    return tirx.max(tirx.min(counted, extent - tirx.const(1, "int64")), zero)


@converter("Gather")
def gather(ctx: NodeContext) -> Any:
    """Slices of an axis by index."""
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    known = ctx.array(1)
    data = ctx.tensor(0)
    if known is not None and not isinstance(data, (Known, Dynamic)):
        raise Unsupported("indexing dimensions in this way")
    if ctx.dtype(0) == "bool":
        wide = ctx.cast(ctx.expr(0), "uint8")
        taken = relax.op.take(wide, normalised(ctx, 1, ctx.shape(0)[axis]), axis, mode="clip")
        return ctx.cast(ctx.emit(taken), "bool")
    index = normalised(ctx, 1, ctx.shape(0)[axis])
    return ctx.emit(relax.op.take(ctx.expr(0), index, axis, mode="clip"))


@converter("GatherElements")
def gather_elements(ctx: NodeContext) -> relax.Expr:
    """Elements of an axis, one index per result."""
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    check_cover(ctx, axis)

    return ctx.op("gather_elements", ctx.expr(0), ctx.expr(1), axis=axis)


def check_cover(ctx: NodeContext, axis: int) -> None:
    """Indices of an element-wise gather or scatter must lie within the data's other axes."""
    dims, places = ctx.shape(0), ctx.shape(1)
    if len(dims) != len(places):
        raise ctx.invalid(f"data of rank {len(dims)} and indices of rank {len(places)}")
    for at, (extent, count) in enumerate(zip(dims, places, strict=True)):
        both = isinstance(extent, int) and isinstance(count, int)
        if at != axis and both and int(count) > int(extent):
            raise ctx.invalid(f"{count} indices along axis {at}, which has {extent} elements")
        if at != axis and not both and not same_dim(extent, count):
            if not isinstance(count, int) or not ctx.guess(extent >= count):
                raise Unsupported("indices whose extent is settled at run time only")


def same_dims(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
    """Equal shapes, as far as import can tell."""
    return len(left) == len(right) and all(
        a == b
        for a, b in zip(left, right, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )


@converter("GatherND")
def gather_nd(ctx: NodeContext) -> relax.Expr:
    """Slices by tuples of indices, after ``batch_dims`` shared axes."""
    batch = int(ctx.attrs.get("batch_dims", 0))
    dims, places = ctx.shape(0), ctx.shape(1)
    depth = ctx.static([places[-1]])[0]
    if batch + depth > len(dims):
        raise ctx.invalid(f"{depth} indices for a tensor of rank {len(dims)}")
    if not same_dims(dims[:batch], places[:batch]):
        raise ctx.invalid("data and indices differ in their batch dimensions")

    return ctx.op("gather_nd", ctx.expr(0), ctx.expr(1), batch_dims=batch)


@converter("NonZero")
def nonzero(ctx: NodeContext) -> relax.Expr:
    """Indices of the elements that are not zero; how many is known at run time only."""
    x, dims = ctx.expr(0), ctx.shape(0)
    if ctx.dtype(0) != "bool":
        x = ctx.emit(relax.op.not_equal(x, ctx.const(0, ctx.dtype(0))))
    positions = true_positions(ctx, x)
    rank = len(dims)

    def compute(flat: te.Tensor, data: te.Tensor) -> te.Tensor:
        def at(axis: Any, k: Any) -> Any:
            result: Any = tirx.const(0, "int64")
            for number in range(rank):
                after = math.prod(data.shape[number + 1 :])
                place = tirx.floormod(tirx.floordiv(flat(k), after), data.shape[number])
                result = tirx.Select(axis == number, place, result)
            return result

        return te.compute((rank, flat.shape[0]), at, name="nonzero")

    return ctx.te(compute, positions, x, name="nonzero")


def true_positions(ctx: NodeContext, mask: relax.Expr) -> relax.Expr:
    """Flat positions of ``True`` in a mask, in order."""
    total = simplify(math.prod(shape_of(mask)))
    flat = ctx.reshape(mask, [total])
    (number,) = call_kernel(
        ctx, count_true(dim(total, "total")), [flat], [[1]], ["int64"], "count_true"
    )
    found = ctx.settled(Dynamic(number), sizes=True)[0]
    kernel = positions_true(dim(total, "total"), tirx.Var("found", "int64"))
    (positions,) = call_kernel(ctx, kernel, [flat], [[found]], ["int64"], "true_positions")
    return positions


@converter("Compress")
def compress(ctx: NodeContext) -> relax.Expr:
    """Slices where a condition holds."""
    axis = ctx.attrs.get("axis")
    x = ctx.expr(0)
    if axis is None:
        x = ctx.reshape(x, [simplify(math.prod(ctx.shape(0)))])
    at = 0 if axis is None else ctx.axis(int(axis), ctx.rank(0))
    known = ctx.array(1)
    if known is not None:
        chosen = ctx.importer.constant(np.flatnonzero(known).astype(np.int64))
    else:
        extent = shape_of(x)[at]
        chosen = clamped(ctx, true_positions(ctx, ctx.expr(1)), extent)
    return ctx.emit(relax.op.take(x, chosen, at, mode="clip"))


@converter("ArgMax", "ArgMin")
def argmax(ctx: NodeContext) -> relax.Expr:
    """Index of the largest or smallest along an axis: first, or last of equals."""
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    keep = bool(ctx.attrs.get("keepdims", 1))
    x = ctx.expr(0)
    last = bool(ctx.attrs.get("select_last_index", 0))
    name = ctx.op_type.lower()
    return ctx.op(name, x, axis=axis, keepdims=keep, select_last_index=last)


@converter("TopK")
def topk(ctx: NodeContext) -> list[relax.Expr]:
    """The k largest or smallest along an axis, with indices; equals in order of index."""
    rank = ctx.rank(0)
    axis = ctx.axis(int(ctx.attrs.get("axis", -1)), rank)
    k: Dim = int(ctx.attrs["k"]) if ctx.version < 10 else ctx.dims(1)[0]
    extent = ctx.static_shape(0)[axis]
    if isinstance(k, int) and not 0 <= k <= extent:
        raise ctx.invalid(f"k = {k} for a dimension of {extent}")
    descending = bool(ctx.attrs.get("largest", 1))
    if isinstance(k, int):
        return list(ctx.op("topk", ctx.expr(0), k=k, axis=axis, largest=descending))
    ordered = ctx.op("sort", ctx.expr(0), axis=axis, descending=descending)
    count = simplify(tirx.max(tirx.min(k, extent), 0))
    return [ctx.as_expr(cut(ctx, part, {axis: (0, count, 1)})) for part in ordered]


@converter("OneHot")
def one_hot(ctx: NodeContext) -> relax.Expr:
    """``on`` at the index, ``off`` elsewhere, along a new axis."""
    depth = ctx.dims(1)[0]
    if not isinstance(depth, int):
        depth = int(ctx.known(1, "the depth").reshape(-1)[0])
    rank = ctx.rank(0) + 1
    axis = ctx.axis(int(ctx.attrs.get("axis", -1)), rank)

    return ctx.op("one_hot", ctx.expr(0), ctx.expr(2), depth=depth, axis=axis)


@converter("CumSum")
def cumsum(ctx: NodeContext) -> relax.Expr:
    """Running sums along an axis; an axis that is data is chosen among all axes' sums."""
    known = ctx.array(1)
    rank = ctx.rank(0)
    if known is not None:
        return _cumsum(ctx, ctx.axis(int(known.reshape(-1)[0]), rank))
    chosen = ctx.cast(ctx.reshape(ctx.expr(1), ()), "int64")
    result = _cumsum(ctx, 0)
    for axis in range(1, rank):
        hit = ctx.emit(
            relax.op.logical_or(
                ctx.emit(relax.op.equal(chosen, ctx.const(axis, "int64"))),
                ctx.emit(relax.op.equal(chosen, ctx.const(axis - rank, "int64"))),
            )
        )
        result = ctx.emit(relax.op.where(hit, _cumsum(ctx, axis), result))
    return result


def _cumsum(ctx: NodeContext, axis: int) -> relax.Expr:
    return _running(ctx, "cumsum", axis)


@converter("CumProd")
def cumprod(ctx: NodeContext) -> relax.Expr:
    """Running products along an axis."""
    axis = ctx.axis(int(ctx.known(1, "the axis").reshape(-1)[0]), ctx.rank(0))
    return _running(ctx, "cumprod", axis)


def _running(ctx: NodeContext, name: str, axis: int) -> relax.Expr:
    switches = {key: bool(ctx.attrs.get(key, 0)) for key in ("exclusive", "reverse")}
    return ctx.op(name, ctx.expr(0), axis=axis, **switches)


@converter("ReverseSequence")
def reverse_sequence(ctx: NodeContext) -> relax.Expr:
    """The first ``sequence_lens[b]`` steps of each sequence in reverse."""
    if ctx.rank(0) < 2 or not same_dims(
        (ctx.shape(0)[int(ctx.attrs.get("batch_axis", 1))],), ctx.shape(1)
    ):
        raise ctx.invalid("sequence_lens must have one entry per batch element")
    batch, time = int(ctx.attrs.get("batch_axis", 1)), int(ctx.attrs.get("time_axis", 0))

    def compute(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            step = i[time].astype("int64")
            extent = data.shape[time].astype("int64")
            length = tirx.max(tirx.min(lengths(i[batch]), extent), 0)
            back = length - 1 - step
            source = list(i)
            source[time] = tirx.Select(step < length, tirx.max(back, 0), step)
            return data(*source)

        return te.compute(data.shape, at, name="reverse_sequence")

    return ctx.te(compute, ctx.expr(0), ctx.expr(1), name="reverse_sequence")
