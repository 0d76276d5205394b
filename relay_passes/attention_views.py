"""Where the heads of an attention operand lie before they are transposed.

    permute_dims(reshape(strided_slice(x, columns from c on), [b, s, h, d]), [0, 2, 1, 3])

is x read in place: a head's features are ``d`` columns of the rows of ``x``, the first head's from
column ``c`` on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call

from uif_tvm.kernels.fused_attention import View
from uif_tvm.relax_util import op_name

#: ``[b, s, h, d] <-> [b, h, s, d]``.
HEADS_SECOND = (0, 2, 1, 3)

#: Operators that may put an axis between heads and positions.
_INSERTS_AXIS = ("relax.reshape", "relax.expand_dims")

Lookup = Callable[[Any], Any]


@dataclass(frozen=True)
class Source:
    """A tensor and how the heads lie in it.

    Args:
        tensor: what is read.
        view: how; of ``tensor`` reshaped to ``rows`` where that is given.
        rows: ``[batch, positions, columns]``.
    """

    tensor: Any
    view: View
    rows: tuple[Any, ...] | None = None

    def emit(self, builder: relax.BlockBuilder) -> Any:
        """The tensor in the shape that the view describes."""
        if self.rows is None:
            return self.tensor
        return builder.emit(relax.op.reshape(self.tensor, relax.ShapeExpr(list(self.rows))))


def is_swap(call: Any) -> bool:
    """Whether a call exchanges positions and heads."""
    if not isinstance(call, Call) or op_name(call) != "relax.permute_dims":
        return False
    axes = call.attrs.axes
    return axes is not None and tuple(int(axis) % 4 for axis in axes) == HEADS_SECOND


def source_of(operand: Any, lookup: Lookup) -> Source:
    """What ``operand`` ``[b, h, s, d]`` is a view of: itself where nothing is known of it.

    Args:
        lookup: variable -> the expression bound to it, ``None`` if unknown.
    """
    swap = bound_to(operand, lookup)
    if not is_swap(swap):
        return _single_position(operand, swap, lookup) or Source(operand, View())
    heads = swap.args[0]
    batch, positions, count, features = extents(heads) or (None,) * 4
    if not isinstance(count, int) or not isinstance(features, int):
        return Source(operand, View())
    rows = (batch, positions, count * features)
    reshape = bound_to(heads, lookup)
    if not isinstance(reshape, Call) or op_name(reshape) != "relax.reshape":
        return Source(heads, View(rows=True), rows)
    inner = reshape.args[0]
    part = _part(inner, rows, lookup)
    if part is not None:
        return part
    if _same(extents(inner), rows):
        return Source(inner, View(rows=True))
    return Source(inner, View(rows=True), rows)


def _part(inner: Any, rows: tuple[Any, ...], lookup: Lookup) -> Source | None:
    """``inner``, as much as ``rows``, where it is some columns of a wider tensor."""
    found = columns_of(inner, lookup)
    if found is None:
        return None
    tensor, start = found
    *lead, width = extents(tensor) or [None]
    wide = None if _same(lead, rows[:2]) else (*rows[:2], width)
    return Source(tensor, View(True, start), wide)


def _single_position(operand: Any, value: Any, lookup: Lookup) -> Source | None:
    """Columns reshaped to ``[b, h, 1, d]``: with one position heads need no transposition."""
    shape = extents(operand)
    if shape is None or len(shape) != 4 or shape[2] != 1:
        return None
    if not isinstance(value, Call) or op_name(value) != "relax.reshape":
        return None
    batch, heads, _, features = shape
    if not isinstance(heads, int) or not isinstance(features, int):
        return None
    rows = (batch, 1, heads * features)
    inner = value.args[0]
    return _part(inner, rows, lookup) if (extents(inner) or [0])[-1] == rows[2] else None


def unrepeated(operand: Any, lookup: Lookup) -> tuple[Any, int]:
    """(heads, times) where ``operand`` repeats each of ``heads`` so often, else (itself, 1).

    ``reshape(broadcast_to(reshape(x, [b, g, 1, s, d]), [b, g, n, s, d]), [b, g n, s, d])``
    """
    flat = bound_to(operand, lookup)
    if not isinstance(flat, Call) or op_name(flat) != "relax.reshape":
        return operand, 1
    wide = bound_to(flat.args[0], lookup)
    if not isinstance(wide, Call) or op_name(wide) != "relax.broadcast_to":
        return operand, 1
    single = bound_to(wide.args[0], lookup)
    if not isinstance(single, Call) or op_name(single) not in (
        "relax.reshape",
        "relax.expand_dims",
    ):
        return operand, 1
    heads = single.args[0]
    own, one, many = extents(heads), extents(single), extents(wide)
    if own is None or one is None or many is None or len(own) != 4 or len(many) != 5:
        return operand, 1
    batch, groups, positions, features = own
    times = many[2]
    if not isinstance(groups, int) or not isinstance(times, int):
        return operand, 1
    fits = (
        _same(one, [batch, groups, 1, positions, features])
        and _same(many, [batch, groups, times, positions, features])
        and _same(extents(operand), [batch, groups * times, positions, features])
    )
    return (heads, times) if fits else (operand, 1)


def columns_of(expr: Any, lookup: Lookup) -> tuple[Any, int] | None:
    """(tensor, first column) where ``expr`` is a run of columns of rows of rank 2 or 3."""
    call = bound_to(expr, lookup)
    if not isinstance(call, Call) or op_name(call) != "relax.strided_slice":
        return None
    tensor = call.args[0]
    shape = extents(tensor)
    if shape is None or len(shape) not in (2, 3):
        return None
    last = len(shape) - 1
    axes, begin, *_ = ([_integer(item) for item in arg.fields] for arg in call.args[1:4])
    strides = [_integer(item) for item in call.args[4].fields] if len(call.args) > 4 else [1]
    if axes not in ([last], [-1]) or strides != [1]:
        return None
    start = begin[0]
    if start is None or not isinstance(shape[last], int):
        return None
    return tensor, start + shape[last] if start < 0 else start


def bound_to(expr: Any, lookup: Lookup) -> Any:
    """What a variable stands for, through aliases; parameters stand for themselves."""
    while isinstance(expr, relax.Var):
        value = lookup(expr)
        if value is None:
            return expr
        expr = value
    return expr


def extents(expr: Any) -> list[Any] | None:
    """Shape of a tensor, ints where known; ``None`` where even the rank is unknown."""
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    if values is None:
        return None
    return [int(n) if isinstance(n, tirx.IntImm) else n for n in values]


def _same(left: Any, right: Any) -> bool:
    if left is None or len(left) != len(right):
        return False
    return all(
        a == b if isinstance(a, int) or isinstance(b, int) else tvm_ffi.structural_equal(a, b)
        for a, b in zip(left, right, strict=True)
    )


def _integer(item: Any) -> int | None:
    value = getattr(item, "value", item)
    return int(value) if isinstance(value, (int, tirx.IntImm)) else None
