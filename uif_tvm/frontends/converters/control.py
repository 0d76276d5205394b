"""If, Loop and Scan.

A known condition takes its branch; an unknown one becomes a Relax ``If``. Loops whose trip count
is known are unrolled, others become functions that are called round by round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.loops import run_time_loop
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.converters.slicing import cut
from uif_tvm.frontends.onnx.tentative import tentative
from uif_tvm.frontends.onnx.values import (
    Dynamic,
    Known,
    Poison,
    Symbolic,
    Value,
    is_static,
    shape_of,
)

MAX_UNROLLED_NODES = 20_000
"""Nodes that the unrolled rounds of a loop may have at most."""
FEW_NODES = 4_000
"""Up to so many a loop is rather unrolled than run round by round."""


@converter("If")
def if_(ctx: NodeContext) -> list[Value]:
    """One of two subgraphs."""
    known = ctx.array(0)
    then, other = ctx.attrs["then_branch"], ctx.attrs["else_branch"]
    if known is not None:
        return ctx.importer.run_subgraph(then if bool(known.reshape(-1)[0]) else other, {})
    value = ctx.tensor(0)
    by_dims = value.elements.reshape(-1)[0] if isinstance(value, Symbolic) else None
    condition = ctx.cast(ctx.reshape(ctx.expr(0), ()), "bool")
    sides: list[tuple[list[Value], relax.BindingBlock] | None] = []
    faults: list[ImportModelError] = []
    for branch in (then, other):
        try:
            sides.append(ctx.importer.run_branch(branch))
        except ImportModelError as exc:  # this side cannot run on inputs of these shapes
            sides.append(None)
            faults.append(exc)
    if len(faults) == 2:
        raise faults[0]
    if faults:
        return _only_possible(ctx, condition, then if sides[0] else other, bool(sides[0]))
    if by_dims is not None and _ranks(sides[0]) != _ranks(sides[1]):
        return ctx.importer.run_subgraph(then if ctx.guess(by_dims) else other, {})
    return _merge(ctx, condition, sides[0], sides[1])  # type: ignore[arg-type]


def _ranks(side: tuple[list[Value], relax.BindingBlock] | None) -> list[int | None]:
    """Ranks of what a side yields."""
    values = side[0] if side is not None else []
    return [len(v.shape) if isinstance(v, (Known, Dynamic)) else None for v in values]


def _only_possible(
    ctx: NodeContext, condition: relax.Expr, branch: Any, taken: bool
) -> list[Value]:
    """The side that fits the input shapes; the runtime refuses the other condition."""
    flag = ctx.reshape(ctx.cast(condition, "int64"), (1,))
    read = ctx.bb.emit(relax.op.tensor_to_shape(flag))
    ctx.bb.match_cast(read, relax.ShapeType([tirx.IntImm("int64", int(taken))]))
    return ctx.importer.run_subgraph(branch, {})


def _merge(
    ctx: NodeContext,
    condition: relax.Expr,
    left: tuple[list[Value], relax.BindingBlock],
    right: tuple[list[Value], relax.BindingBlock],
) -> list[Value]:
    count = len(ctx.outputs)
    if len(left[0]) < count or len(right[0]) < count:
        raise ctx.invalid("a branch has fewer outputs than the node")
    if any(isinstance(v, Poison) for v in [*left[0], *right[0]]):
        return [Poison()] * count
    if any(not isinstance(v, (Known, Dynamic)) for v in [*left[0], *right[0]]):
        raise Unsupported("branches that yield sequences or optionals")
    bodies = []
    for values, block in (left, right):
        exprs = [ctx.as_expr(value) for value in values[:count]]
        bodies.append(relax.SeqExpr([block], relax.Tuple(exprs)))
    for a, b in zip(left[0][:count], right[0][:count], strict=True):
        if a.dtype != b.dtype:  # type: ignore[union-attr]
            raise ctx.invalid("the branches yield different dtypes")
    both = ctx.bb.emit(relax.If(condition, bodies[0], bodies[1]))
    results: list[Value] = []
    for number, (a, b) in enumerate(zip(left[0][:count], right[0][:count], strict=True)):
        item = ctx.emit(relax.TupleGetItem(both, number))
        results.append(Dynamic(_settled_shape(ctx, item, a, b, number)))
    return results


def _settled_shape(ctx: NodeContext, item: relax.Expr, a: Any, b: Any, number: int) -> relax.Expr:
    """Give a merged result dimensions: equal ones are kept, others become symbolic."""
    if len(a.shape) != len(b.shape):
        raise Unsupported("branches that yield tensors of different rank")
    if item.ty.shape is not None and is_static(shape_of(item)):
        return item
    dims = [
        x if isinstance(x, int) and isinstance(y, int) and x == y
        else tirx.Var(f"if_{number}_{axis}", "int64")
        for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True))
    ]  # fmt: skip
    return ctx.bb.match_cast(item, relax.TensorType(dims, a.dtype))


@converter("Loop")
def loop(ctx: NodeContext) -> list[Value]:
    """Unrolled where the number of rounds is known at import, else run round by round."""
    body = ctx.attrs["body"]
    state: list[Value] = [ctx.value(i) for i in range(2, len(ctx.inputs))]
    if len(body.input) != 2 + len(state):
        raise ctx.invalid(f"body has {len(body.input)} inputs, {2 + len(state)} are passed")
    if len(body.output) < 1 + len(state):
        raise ctx.invalid(f"body has {len(body.output)} outputs for a state of {len(state)}")
    try:
        with tentative(ctx.importer):
            return _unrolled(ctx, body, state, FEW_NODES)
    except _CountedAtRunTime as exc:
        reason = exc
    try:
        with tentative(ctx.importer):
            return run_time_loop(ctx, body, state)
    except Unsupported as exc:
        if reason.too_long:
            return _unrolled(ctx, body, state, MAX_UNROLLED_NODES)
        if reason.specialisable and not ctx.importer.host_fallback:
            return _unrolled(ctx, body, state, MAX_UNROLLED_NODES, specialise=True)
        raise Unsupported(f"{reason.reason}: {exc.reason}", reason.hint) from exc


class _CountedAtRunTime(Unsupported):
    """The number of rounds is not known at import."""

    def __init__(self, reason: str, specialisable: bool = False, too_long: bool = False) -> None:
        super().__init__(reason, "make the trip count a constant or an initializer of the model")
        self.specialisable = specialisable
        self.too_long = too_long


def _start(ctx: NodeContext, specialise: bool) -> tuple[int | None, bool]:
    """Trip count, ``None`` for none, and the condition before the first round."""
    values: list[Any] = [None, True]
    for index, what in ((0, "the trip count"), (1, "the condition")):
        if not ctx.has(index):
            continue
        array = ctx.known(index, what) if specialise else ctx.array(index)
        if array is None:
            raise _CountedAtRunTime(f"{what} arrives at run time", specialisable=True)
        values[index] = array.reshape(-1)[0]
    return None if values[0] is None else int(values[0]), bool(values[1])


def _unrolled(
    ctx: NodeContext, body: Any, state: list[Value], most: int, specialise: bool = False
) -> list[Value]:
    limit, going = _start(ctx, specialise)
    nodes = max(len(body.node), 1)
    if limit is not None and going and limit * nodes > most:
        raise _CountedAtRunTime("too many iterations to unroll", too_long=True)
    names = [value.name for value in body.input]
    scans: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    step = 0
    while going and (limit is None or step < limit):
        if (step + 1) * nodes > most:
            raise _CountedAtRunTime("too many iterations to unroll", too_long=True)
        bindings: dict[str, Value] = dict(
            zip(names, [Known(np.array(step, np.int64)), Known(np.array(going)), *state],
                strict=True)
        )  # fmt: skip
        results = ctx.importer.run_subgraph(body, bindings)
        if not isinstance(results[0], Known):
            raise _CountedAtRunTime("a loop that ends on a condition computed at run time")
        going = bool(results[0].array.reshape(-1)[0])
        state = results[1 : 1 + len(state)]
        for kept, value in zip(scans, results[1 + len(state) :], strict=True):
            kept.append(value)
        step += 1
    return [*state, *[_stacked(ctx, kept, 0) for kept in scans]]


def _stacked(ctx: NodeContext, items: list[Value], axis: int) -> Value:
    if not items:
        raise Unsupported("the scan output of a loop that never runs")
    if any(isinstance(item, Poison) for item in items):
        return Poison()
    if all(isinstance(item, Known) for item in items):
        return Known(np.stack([item.array for item in items], axis))  # type: ignore[union-attr]
    exprs = [ctx.as_expr(item) for item in items]
    place = axis % (len(shape_of(exprs[0])) + 1)
    grown = []
    for expr in exprs:
        dims = list(shape_of(expr))
        grown.append(ctx.reshape(expr, [*dims[:place], 1, *dims[place:]]))
    return Dynamic(grown[0] if len(grown) == 1 else ctx.emit(relax.op.concat(grown, place)))


@converter("Scan", since=9)
def scan(ctx: NodeContext) -> list[Value]:
    """Unrolled over the static length of the scanned axis."""
    body, scanned = ctx.attrs["body"], int(ctx.attrs["num_scan_inputs"])
    if not 1 <= scanned <= len(ctx.inputs):
        raise ctx.invalid(f"num_scan_inputs is {scanned}, of {len(ctx.inputs)} inputs")
    carried = len(ctx.inputs) - scanned
    if len(body.input) != len(ctx.inputs) or len(body.output) < carried:
        raise ctx.invalid(
            f"body has {len(body.input)} inputs and {len(body.output)} outputs; "
            f"{len(ctx.inputs)} are passed, {carried} of them carried"
        )
    state: list[Value] = [ctx.value(i) for i in range(carried)]
    axes = list(ctx.attrs.get("scan_input_axes") or [0] * scanned)
    reverse = list(ctx.attrs.get("scan_input_directions") or [0] * scanned)
    lengths = set()
    if len(axes) != scanned or len(reverse) != scanned:
        raise ctx.invalid(f"an axis and a direction are needed for each of {scanned} inputs")
    for i in range(scanned):
        axes[i] = ctx.axis(axes[i], ctx.rank(carried + i))
        lengths.add(ctx.static_shape(carried + i)[axes[i]])
    if len(lengths) != 1:
        raise ctx.invalid("scanned inputs differ in length")
    (length,) = lengths
    if length * max(len(body.node), 1) > MAX_UNROLLED_NODES:
        raise Unsupported("too many iterations to unroll")
    names = [value.name for value in body.input]
    outs: list[list[Value]] = [[] for _ in range(len(body.output) - carried)]
    for step in range(length):
        items = [
            _slice_at(ctx, carried + i, axes[i], length - 1 - step if reverse[i] else step)
            for i in range(scanned)
        ]
        results = ctx.importer.run_subgraph(body, dict(zip(names, [*state, *items], strict=True)))
        state = results[:carried]
        for kept, value in zip(outs, results[carried:], strict=True):
            kept.append(value)
    out_axes = list(ctx.attrs.get("scan_output_axes") or [0] * len(outs))
    backwards = list(ctx.attrs.get("scan_output_directions") or [0] * len(outs))
    return [
        *state,
        *[
            _stacked(ctx, kept[::-1] if back else kept, axis)
            for kept, axis, back in zip(outs, out_axes, backwards, strict=True)
        ],
    ]


def _slice_at(ctx: NodeContext, index: int, axis: int, place: int) -> Value:
    value = ctx.tensor(index)
    if isinstance(value, Known):
        return Known(np.take(value.array, place, axis))
    piece = ctx.as_expr(cut(ctx, ctx.expr(index), {axis: (place, place + 1, 1)}))
    dims = list(shape_of(piece))
    return Dynamic(ctx.reshape(piece, [*dims[:axis], *dims[axis + 1 :]]))
