"""Features read from a tensor by slices, and features set side by side.

x[..., a:b:s], split(x)[i], slices of these        ->  Lanes(x, first, step, count)
concat(a, b),  stack(a, b, -1) as one axis         ->  Pair(a, b, interleaved)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from uif_tvm.relay_passes.recover_graph import Graph

from uif_tvm.ops import infer
from uif_tvm.relax_util import op_name
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from tvm.ir import Call

_ADD_AXIS = ("relax.reshape", "relax.expand_dims")


@dataclass(frozen=True)
class Lanes:
    """``tensor[..., first : first + count * step : step]``.

    Args:
        tensor: what all slices are of.
        chain: the variables from the last slice to ``tensor``.
        between: tuples that stand between them.
    """

    tensor: Any
    first: int
    step: int
    count: int
    chain: tuple[Any, ...]
    between: frozenset[Any] = frozenset()

    def same(self, other: Lanes) -> bool:
        """Whether both read the same features of one tensor."""
        numbers = self.first, self.step, self.count
        return self.tensor.same_as(other.tensor) and numbers == (
            other.first, other.step, other.count
        )  # fmt: skip

    def above(self, x: Any) -> set[Any]:
        """The slices that were taken of ``x``, or of what it is a slice of."""
        names = list(self.chain)
        found = set(names[: names.index(x)] if x in names else names[:-1])
        return found | self.between if found else found


@dataclass(frozen=True)
class Pair:
    """Two tensors side by side along the last axis, or as neighbours of each other."""

    parts: tuple[Any, Any]
    interleaved: bool
    nodes: frozenset[Any]


def features(expr: Any) -> int | None:
    """The extent of the last axis, ``None`` if it is not known."""
    found = extents(expr)
    return found[-1] if found and isinstance(found[-1], int) else None


def extents(expr: Any) -> list[Any]:
    """Integers and expressions; none where not even the rank is known."""
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    return [
        int(extent.value) if isinstance(extent, tvm.tirx.IntImm) else extent
        for extent in values or ()
    ]


def lanes(graph: Graph, expr: Any) -> Lanes | None:
    """The features that ``expr`` reads; all of itself if it is no slice."""
    expr = graph.resolve(expr)
    count = features(expr)
    if not isinstance(expr, relax.Var) or count is None:
        return None
    found = Lanes(expr, 0, 1, count, (expr,))
    while (part := _slice(graph, found.tensor) or _split(graph, found.tensor)) is not None:
        source, first, step, between = part
        found = Lanes(
            source, first + found.first * step, found.step * step, count,
            (*found.chain, source), found.between | between,
        )  # fmt: skip
    return found


def _slice(graph: Graph, var: Any) -> tuple[Any, int, int, frozenset[Any]] | None:
    """(tensor, first, step, no tuples) of a slice of the features alone."""
    call = graph.call(var, "relax.strided_slice")
    found = read(call) if call is not None else None
    if call is None or found is None:
        return None
    source, attrs = graph.resolve(call.args[0]), found[2]
    width = features(source)
    rank = source.ty.ndim
    if not isinstance(source, relax.Var) or width is None:
        return None
    if [axis % rank for axis in attrs["axes"]] != [rank - 1]:
        return None
    (begin,), (end,), (step,) = attrs["begin"], attrs["end"], attrs["strides"] or [1]
    if not all(isinstance(number, int) for number in (begin, end, step)) or step < 1:
        return None
    taken = range(width)[begin:end:step]
    return (source, taken[0], step, frozenset()) if taken else None


def _split(graph: Graph, var: Any) -> tuple[Any, int, int, frozenset[Any]] | None:
    """(tensor, first, 1, tuple) of a part of the features."""
    item = graph.values.get(var)
    if not isinstance(item, relax.TupleGetItem):
        return None
    call = graph.call(item.tuple_value, "relax.split")
    if call is None:
        return None
    source = graph.resolve(call.args[0])
    if int(call.attrs.axis) not in (-1, var.ty.ndim - 1) or not isinstance(source, relax.Var):
        return None
    widths = [int(field.shape.values[-1]) for field in call.ty.fields[: item.index]]
    return source, sum(widths), 1, frozenset({graph.resolve(item.tuple_value)})


def paired(graph: Graph, expr: Any) -> Pair | None:
    """``expr`` as two equally wide tensors."""
    expr = graph.resolve(expr)
    call = graph.call(expr, "relax.concat", "relax.reshape")
    if call is None:
        return None
    if op_name(call) == "relax.concat":
        parts = _parts(graph, call, expr)
        alike = parts is not None and features(parts[0]) == features(parts[1])
        return Pair(parts, False, frozenset({expr})) if parts is not None and alike else None
    stacked = graph.resolve(call.args[0])
    made = graph.call(stacked, "relax.concat", "relax.stack")
    parts = None if made is None else _parts(graph, made, stacked)
    if made is None or parts is None:
        return None
    nodes = {expr, stacked}
    if op_name(made) == "relax.concat":
        bare = [graph.call(part, *_ADD_AXIS) for part in parts]
        nodes |= set(parts)
        if bare[0] is None or bare[1] is None:
            return None
        parts = graph.resolve(bare[0].args[0]), graph.resolve(bare[1].args[0])
    if not _is(stacked, [*extents(parts[0]), 2]) or not _is(stacked, [*extents(parts[1]), 2]):
        return None
    *lead, width = extents(parts[0])
    return Pair(parts, True, frozenset(nodes)) if _is(expr, [*lead, 2 * width]) else None


def _parts(graph: Graph, call: Call, result: Any) -> tuple[Any, Any] | None:
    """The two operands of a concatenation, or stack, along the last axis."""
    fields = list(getattr(call.args[0], "fields", ()))
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    if len(fields) != 2 or axis not in (-1, result.ty.ndim - 1):
        return None
    return graph.resolve(fields[0]), graph.resolve(fields[1])


def _is(expr: Any, shape: list[Any]) -> bool:
    own = extents(expr)
    return len(own) == len(shape) > 1 and all(map(infer.equal, own, shape))
