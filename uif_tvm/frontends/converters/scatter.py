"""Scatter: writes at indices that are data.

Negative indices count from the end. Constant ones outside the tensor are refused; those that are
data are dropped, so that no write ever reaches another element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.indexing import check_cover, same_dims
from uif_tvm.frontends.converters.kernels import call_kernel, dim, scatter_rows
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dim, shape_of, simplify
from uif_tvm.kernels import arithmetic


def row_number(places: list[tuple[Any, Any]]) -> Any:
    """Flat position of (index, extent) pairs, negative ones counted; -1 where one is outside."""
    row: Any = tirx.const(0, "int64")
    valid: list[Any] = []
    for index, extent in places:
        wide, size = index.astype("int64"), extent.astype("int64")
        zero = tirx.const(0, "int64")
        counted = tirx.Select(wide < zero, wide + size, wide)
        valid += [counted >= zero, counted < size]
        row = row * size + counted
    return tirx.Select(tirx.all(*valid), row, tirx.const(-1, "int64")) if valid else row


def _check_known(ctx: NodeContext, known: Any, extent: Dim) -> None:
    """Constant indices of a write must lie inside; those that are data are dropped outside."""
    if known is None or not known.size or not isinstance(extent, int):
        return
    if not (-extent <= int(known.min()) and int(known.max()) < extent):
        raise ctx.invalid(f"an index lies outside the dimension of {extent}")


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": arithmetic.minimum,
    "max": arithmetic.maximum,
}


def _scatter(
    ctx: NodeContext, index: relax.Expr, inner: Dim, updates: relax.Expr, reduction: str
) -> relax.Expr:
    """Scatter rows of ``inner`` elements at flat row numbers, in the order given; -1 is dropped."""
    if reduction not in REDUCTIONS:
        raise ctx.invalid(f"reduction {reduction!r} does not exist")
    dims, dtype = ctx.shape(0), ctx.dtype(0)
    total = simplify(math.prod(dims))
    outer = simplify(total // inner) if not _is(inner, 1) else total
    count = simplify(math.prod(shape_of(index)))
    store = "uint8" if dtype == "bool" else dtype
    data = ctx.reshape(ctx.cast(ctx.expr(0), store), [outer, inner])
    rows = ctx.reshape(index, [count])
    values = ctx.reshape(ctx.cast(updates, store), [count, inner])
    kernel = scatter_rows(
        dim(outer, "outer"), dim(inner, "inner"), dim(count, "count"), store, REDUCTIONS[reduction]
    )
    (result,) = call_kernel(ctx, kernel, [data, rows, values], [[outer, inner]], [store], "scatter")
    return ctx.cast(ctx.reshape(result, dims), dtype)


def _is(value: Dim, number: int) -> bool:
    return isinstance(value, int) and value == number


@converter("ScatterND")
def scatter_nd(ctx: NodeContext) -> relax.Expr:
    """Write slices at tuples of indices."""
    depth = ctx.static([ctx.shape(1)[-1]])[0]
    if depth > ctx.rank(0):
        raise ctx.invalid(f"{depth} indices for a tensor of rank {ctx.rank(0)}")
    dims = ctx.shape(0)
    if not same_dims((*ctx.shape(1)[:-1], *dims[depth:]), ctx.shape(2)):
        raise ctx.invalid("updates do not have the shape of the indexed slices")

    def compute(index: te.Tensor, data: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            return row_number([(index(*i, k), data.shape[k]) for k in range(depth)])

        return te.compute(index.shape[:-1], at, name="row_number")

    known = ctx.array(1)
    for k in range(depth if known is not None else 0):
        _check_known(ctx, known[..., k], dims[k])  # type: ignore[index]

    if 0 in [d for d in ctx.shape(1) if isinstance(d, int)]:
        return ctx.expr(0)
    rows = ctx.te(compute, ctx.expr(1), ctx.expr(0), name="row_number")
    inner = simplify(math.prod(dims[depth:]))
    return _scatter(ctx, rows, inner, ctx.expr(2), ctx.attrs.get("reduction", "none"))


@converter("ScatterElements", "Scatter")
def scatter_elements(ctx: NodeContext) -> relax.Expr:
    """Write single elements along an axis."""
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    check_cover(ctx, axis)
    if not same_dims(ctx.shape(1), ctx.shape(2)):
        raise ctx.invalid("indices and updates differ in shape")

    def compute(index: te.Tensor, data: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            places = [*i[:axis], index(*i), *i[axis + 1 :]]
            return row_number(list(zip(places, data.shape, strict=True)))

        return te.compute(index.shape, at, name="element_number")

    _check_known(ctx, ctx.array(1), ctx.shape(0)[axis])

    if 0 in [d for d in ctx.shape(1) if isinstance(d, int)]:
        return ctx.expr(0)
    places = ctx.te(compute, ctx.expr(1), ctx.expr(0), name="element_number")
    return _scatter(ctx, places, 1, ctx.expr(2), ctx.attrs.get("reduction", "none"))
