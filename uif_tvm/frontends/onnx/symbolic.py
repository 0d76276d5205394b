"""TE functions over dimensions that are settled at run time only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.onnx.ratio import Ratio
from uif_tvm.frontends.onnx.values import Array, Dim, Symbolic, is_condition


def call_with_dims(
    bb: relax.BlockBuilder,
    function: Callable[..., Any],
    tensors: Sequence[relax.Expr],
    dims: Sequence[Dim],
    name: str,
) -> relax.Expr:
    """Call ``function(dims, *tensors)`` as one kernel.

    Dimension expressions reach a kernel only through its parameters, so they are passed along:
    ``function`` sees them in terms of the kernel's own variables.
    """
    symbolic = [dim for dim in dims if not isinstance(dim, int)]

    def compute(*args: Any) -> Any:
        given = iter(args[len(tensors) :])
        local = [dim if isinstance(dim, int) else next(given) for dim in dims]
        return function(local, *args[: len(tensors)])

    return bb.call_te(compute, *tensors, *symbolic, primfunc_name_hint=name)


def materialise(bb: relax.BlockBuilder, value: Symbolic, name: str) -> relax.Expr:
    """A tensor that holds the elements, computed from the symbolic dimensions."""
    shape = tuple(value.elements.shape)
    flat = list(value.elements.reshape(-1))
    numerators = [_numerator(item) for item in flat]

    def compute(local: list[Any]) -> te.Tensor:
        items = [_number(item, given) for item, given in zip(flat, local, strict=True)]

        def element(*index: Any) -> Any:
            position: Any = tirx.const(0, "int64")
            for at, extent in zip(index, shape, strict=True):
                position = position * extent + at
            result = items[-1]
            for number in range(len(items) - 2, -1, -1):
                result = tirx.Select(position == number, items[number], result)
            return result.astype(value.dtype)

        return te.compute(shape, element, name="dims")

    return bb.emit(call_with_dims(bb, compute, [], numerators, "dims"), name)


def _numerator(item: Any) -> Any:
    """The integer that an element is made of."""
    if isinstance(item, Ratio):
        return item.numerator
    if is_condition(item):
        return tirx.Select(item, tirx.const(1, "int64"), tirx.const(0, "int64"))
    return int(item) if isinstance(item, (bool, np.bool_)) else item


def _number(item: Any, numerator: Any) -> Any:
    """An element in terms of the kernel's own variable for its dimension."""
    if isinstance(item, Ratio):
        return Ratio(numerator, item.denominator).to_expr()
    return tirx.const(numerator, "int64") if isinstance(numerator, int) else numerator


def require_value(bb: relax.BlockBuilder, expr: relax.Expr, array: Array) -> None:
    """Have the runtime check that a tensor holds just these elements."""
    if array.size == 0:
        return
    if array.dtype == np.bool_:  # which TVM compares as if they were floats
        array = array.astype(np.uint8)
        expr = bb.emit(relax.op.astype(expr, "uint8"))
    expected = relax.const(array, str(array.dtype))

    def compute(given: te.Tensor, wanted: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, extent), name="k") for extent in array.shape]
        place = [*taps] if taps else []

        def differs(_: Any) -> Any:
            other = tirx.Select(
                given(*place) != wanted(*place), tirx.const(1, "int64"), tirx.const(0, "int64")
            )
            return te.sum(other, axis=taps) if taps else other

        return te.compute((1,), differs, name="differences")

    count = bb.emit(bb.call_te(compute, expr, expected, primfunc_name_hint="differences"))
    read = bb.emit(relax.op.tensor_to_shape(count))
    bb.match_cast(read, relax.ShapeType([tirx.IntImm("int64", 0)]))
