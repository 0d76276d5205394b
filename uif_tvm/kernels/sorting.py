"""Stable sorting along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from uif_tvm.kernels.math import is_nan
from uif_tvm.kernels.scan import lanes_along


def _goes_first(a: Any, b: Any, descending: bool) -> tirx.Expr:
    """Whether ``a`` (which stands before ``b``) may stay there; NaN counts as the largest."""
    if "float" not in str(a.ty.dtype):
        return a >= b if descending else a <= b
    if descending:
        return tirx.any(a >= b, is_nan(a))
    return tirx.any(a <= b, is_nan(b))


def sort(data: te.Tensor, axis: int, descending: bool) -> list[te.Tensor]:
    """Sorted values, positions (int64), and two scratch tensors of the same shape.

    A bottom-up merge sort of each lane: stable, n log n, no recursion. The scratch tensors are
    results only so that their memory is planned with everything else.
    """
    outer, length, inner = lanes_along(data.shape, axis)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source = T.buffer_proxy(ins[0])
        values, positions, spare, spare_at = (T.buffer_proxy(out) for out in outs)
        with IRBuilder() as ib:
            with T.parallel(0, outer * inner) as lane:
                base = lane // inner * length * inner + lane % inner
                state = T.buffer_proxy(T.decl_buffer([3], "int64", scope="local"))
                with T.serial(0, length) as k:
                    values[base + k * inner] = source[base + k * inner]
                    positions[base + k * inner] = tirx.Cast("int64", k)
                state[2] = tirx.const(1, "int64")
                with T.While(state[2] < tirx.Cast("int64", length)):
                    _merge_pass(
                        state,
                        base,
                        inner,
                        length,
                        descending,
                        (values, positions),
                        (spare, spare_at),
                    )
                    state[2] = state[2] * tirx.const(2, "int64")
            return ib.get()

    return list(
        te.extern(
            [data.shape] * 4,
            [data],
            body,
            dtype=[data.dtype, "int64", data.dtype, "int64"],
            name="sort",
            tag="sort",
        )
    )


def _merge_pass(
    state: Any,
    base: Any,
    inner: Any,
    length: Any,
    descending: bool,
    result: tuple[Any, Any],
    spare: tuple[Any, Any],
) -> None:
    """Merge neighbouring runs of ``state[2]`` elements; ``state[0..1]`` are the read positions."""
    values, positions = result
    width, size = state[2], tirx.Cast("int64", length)
    double = width * tirx.const(2, "int64")
    with T.serial(0, length) as k:
        spare[0][base + k * inner] = values[base + k * inner]
        spare[1][base + k * inner] = positions[base + k * inner]
    with T.serial(0, length) as k:
        here = tirx.Cast("int64", k)
        start = tirx.floordiv(here, double) * double
        with T.If(here == start), T.Then():
            state[0] = start
            state[1] = tirx.min(start + width, size)
        left_end = tirx.min(start + width, size)
        right_end = tirx.min(start + double, size)
        left, right = state[0], state[1]
        # Positions past a run's end are never chosen; they are limited so as not to be read.
        left_at = base + tirx.min(left, size - tirx.const(1, "int64")) * inner
        right_at = base + tirx.min(right, size - tirx.const(1, "int64")) * inner
        keep = tirx.all(
            left < left_end,
            tirx.any(
                right >= right_end,
                _goes_first(spare[0][left_at], spare[0][right_at], descending),
            ),
        )
        with T.If(keep):
            with T.Then():
                values[base + k * inner] = spare[0][left_at]
                positions[base + k * inner] = spare[1][left_at]
                state[0] = left + tirx.const(1, "int64")
            with T.Else():
                values[base + k * inner] = spare[0][right_at]
                positions[base + k * inner] = spare[1][right_at]
                state[1] = right + tirx.const(1, "int64")


def first(data: te.Tensor, axis: int, count: int) -> te.Tensor:
    """The first ``count`` positions of an axis."""
    shape = [count if at == axis else n for at, n in enumerate(data.shape)]
    return te.compute(shape, lambda *i: data(*i), name="first")


def searchsorted(boundaries: te.Tensor, x: te.Tensor, right: bool) -> te.Tensor:
    """How many sorted boundaries lie before each value; NaN lies behind all numbers."""
    count = boundaries.shape[0]
    if isinstance(count, tirx.IntImm) and int(count) == 0:
        return te.compute(x.shape, lambda *_: tirx.const(0, "int64"), name="searchsorted")
    k = te.reduce_axis((0, count), name="k")
    one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")

    def before(edge: Any, value: Any) -> Any:
        found = edge <= value if right else edge < value
        if "float" not in str(value.ty.dtype):
            return found
        behind = is_nan(value) if right else tirx.And(is_nan(value), tirx.Not(is_nan(edge)))
        return tirx.Or(found, behind)

    return te.compute(
        x.shape,
        lambda *i: te.sum(tirx.Select(before(boundaries(k), x(*i)), one, zero), axis=[k]),
        name="searchsorted",
    )
