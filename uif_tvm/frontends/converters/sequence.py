"""Sequences of known length and optionals: bookkeeping at import, nothing at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.converters.shape import concat_aligned
from uif_tvm.frontends.converters.slicing import cut
from uif_tvm.frontends.onnx.values import Absent, Dynamic, Known, SequenceValue, Value, shape_of


@converter("SequenceConstruct")
def construct(ctx: NodeContext) -> SequenceValue:
    """A sequence of the inputs."""
    return SequenceValue(tuple(ctx.value(i) for i in range(len(ctx.inputs))))


@converter("SequenceEmpty")
def empty(ctx: NodeContext) -> SequenceValue:
    """No items."""
    return SequenceValue(())


def _place(ctx: NodeContext, index: int, length: int, extra: int) -> int:
    at = int(ctx.known(index, "the position", rather_host=True).reshape(-1)[0])
    if not -length <= at < length + extra:
        raise ctx.invalid(f"position {at} in a sequence of {length}")
    return at % length if at < 0 else at


@converter("SequenceAt")
def at(ctx: NodeContext) -> Value:
    """One item."""
    items = ctx.sequence(0)
    return items[_place(ctx, 1, len(items), 0)]


@converter("SequenceInsert")
def insert(ctx: NodeContext) -> SequenceValue:
    """One item more; at the end by default."""
    items = ctx.sequence(0)
    place = _place(ctx, 2, len(items), 1) if ctx.has(2) else len(items)
    return SequenceValue((*items[:place], ctx.value(1), *items[place:]))


@converter("SequenceErase")
def erase(ctx: NodeContext) -> SequenceValue:
    """One item less; the last by default."""
    items = ctx.sequence(0)
    if not items:
        raise ctx.invalid("nothing to erase in an empty sequence")
    place = _place(ctx, 1, len(items), 0) if ctx.has(1) else len(items) - 1
    return SequenceValue((*items[:place], *items[place + 1 :]))


@converter("SequenceLength")
def length(ctx: NodeContext) -> Known:
    """Number of items."""
    return Known(np.array(len(ctx.sequence(0)), np.int64))


@converter("ConcatFromSequence")
def concat(ctx: NodeContext) -> Any:
    """All items joined along an axis, new or not."""
    exprs = [ctx.as_expr(item) for item in ctx.sequence(0)]
    if not exprs:
        raise ctx.invalid("nothing to join in an empty sequence")
    new = bool(ctx.attrs.get("new_axis", 0))
    rank = len(shape_of(exprs[0])) + new
    axis = ctx.axis(int(ctx.attrs["axis"]), rank)
    if new:
        exprs = [ctx.reshape(e, [*shape_of(e)[:axis], 1, *shape_of(e)[axis:]]) for e in exprs]
    if len(exprs) == 1:
        return exprs[0]
    return ctx.emit(relax.op.concat(concat_aligned(ctx, exprs, axis), axis))


@converter("SplitToSequence")
def split(ctx: NodeContext) -> SequenceValue:
    """Pieces along an axis as a sequence."""
    axis = ctx.axis(int(ctx.attrs.get("axis", 0)), ctx.rank(0))
    extent = ctx.static([ctx.shape(0)[axis]])[0]
    drop = not ctx.has(1) and not ctx.attrs.get("keepdims", 1)
    if not ctx.has(1):
        sizes = [1] * extent
    else:
        given = ctx.known(1, "split", rather_host=True)
        if given.ndim == 0:
            step = int(given)
            if step < 1:
                raise ctx.invalid(f"pieces of {step}")
            sizes = [min(step, extent - s) for s in range(0, extent, step)]
        else:
            sizes = [int(v) for v in given]
    if sum(sizes) != extent:
        raise ctx.invalid(f"pieces {sizes} do not add up to {extent}")
    items: list[Value] = []
    start = 0
    for size in sizes:
        piece = cut(ctx, ctx.expr(0), {axis: (start, start + size, 1)})
        if drop:
            dims = list(shape_of(ctx.as_expr(piece)))
            piece = ctx.reshape(ctx.as_expr(piece), [*dims[:axis], *dims[axis + 1 :]])
        items.append(piece if isinstance(piece, Known) else Dynamic(piece))
        start += size
    return SequenceValue(tuple(items))


@converter("SequenceMap", since=17)
def sequence_map(ctx: NodeContext) -> list[Value]:
    """The body on each item of the first sequence, with items of the others and whole tensors."""
    body = ctx.attrs["body"]
    count = len(ctx.sequence(0))
    names = [value.name for value in body.input]
    if len(names) != len(ctx.inputs) or len(body.output) < len(ctx.outputs):
        raise ctx.invalid(
            f"body has {len(names)} inputs and {len(body.output)} outputs; the node has "
            f"{len(ctx.inputs)} and {len(ctx.outputs)}"
        )
    whole = [ctx.value(i) for i in range(len(ctx.inputs))]
    for place, value in enumerate(whole):
        if isinstance(value, SequenceValue) and len(value.items) != count:
            raise ctx.invalid(f"input {place} has {len(value.items)} items, input 0 has {count}")
    made: list[list[Value]] = [[] for _ in body.output]
    for number in range(count):
        row = [v.items[number] if isinstance(v, SequenceValue) else v for v in whole]
        results = ctx.importer.run_subgraph(body, dict(zip(names, row, strict=True)))
        for kept, result in zip(made, results, strict=True):
            kept.append(result)
    return [SequenceValue(tuple(items)) for items in made]


@converter("Optional")
def optional(ctx: NodeContext) -> Value:
    """The value itself, or nothing."""
    return ctx.value(0) if ctx.has(0) else Absent()


@converter("OptionalHasElement")
def has_element(ctx: NodeContext) -> Known:
    """Whether there is a value."""
    return Known(np.array(ctx.has(0) and not isinstance(ctx.value(0), Absent)))


@converter("OptionalGetElement")
def get_element(ctx: NodeContext) -> Value:
    """The value of an optional that has one."""
    if isinstance(ctx.value(0), Absent):
        raise Unsupported("taking the element of an empty optional")
    return ctx.value(0)
