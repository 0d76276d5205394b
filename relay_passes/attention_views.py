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
        return Source(operand, View())
    heads = swap.args[0]
    batch, positions, count, features = _extents(heads) or (None,) * 4
    if not isinstance(count, int) or not isinstance(features, int):
        return Source(operand, View())
    rows = (batch, positions, count * features)
    reshape = bound_to(heads, lookup)
    if not isinstance(reshape, Call) or op_name(reshape) != "relax.reshape":
        return Source(heads, View(rows=True), rows)
    inner = reshape.args[0]
    part = columns_of(inner, lookup)
    if part is not None and _same(_extents(part[0])[:-1], rows[:2]):  # type: ignore[index]
        return Source(part[0], View(True, part[1]))
    if _same(_extents(inner), rows):
        return Source(inner, View(rows=True))
    return Source(inner, View(rows=True), rows)


def columns_of(expr: Any, lookup: Lookup) -> tuple[Any, int] | None:
    """(tensor, first column) where ``expr`` is a run of columns of a tensor of rank 3."""
    call = bound_to(expr, lookup)
    if not isinstance(call, Call) or op_name(call) != "relax.strided_slice":
        return None
    tensor = call.args[0]
    shape = _extents(tensor)
    if shape is None or len(shape) != 3:
        return None
    axes, begin, *_ = ([_integer(item) for item in arg.fields] for arg in call.args[1:4])
    strides = [_integer(item) for item in call.args[4].fields] if len(call.args) > 4 else [1]
    if [axis % 3 if axis is not None else None for axis in axes] != [2] or strides != [1]:
        return None
    start = begin[0]
    if start is None or not isinstance(shape[2], int):
        return None
    return tensor, start + shape[2] if start < 0 else start


def bound_to(expr: Any, lookup: Lookup) -> Any:
    """What a variable stands for, through aliases; parameters stand for themselves."""
    while isinstance(expr, relax.Var):
        value = lookup(expr)
        if value is None:
            return expr
        expr = value
    return expr


def _extents(expr: Any) -> list[Any] | None:
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
