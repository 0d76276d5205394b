"""Pooling in plain layout ``[N, C, spatial ...]`` that Relax lacks."""

# mypy: ignore-errors
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from uif_tvm.kernels.extents import known
from uif_tvm.kernels.norm import MAXIMUM, accumulator
from uif_tvm.ops.convolution import each
from uif_tvm.ops.pooling import Geometry


def _lowest(dtype: str) -> Any:
    """What loses against everything."""
    from tvm import tirx

    return tirx.const(float("-inf"), dtype) if "float" in dtype else tirx.min_value(dtype)


def _taps(kernel: Sequence[int]) -> list[Any]:
    from tvm import te

    return [te.reduce_axis((0, extent), name=f"k{axis}") for axis, extent in enumerate(kernel)]


def _places(geometry: Geometry, out: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
    """Input positions of window elements."""
    return [
        o * s + t * d - lo
        for o, s, t, d, lo in zip(
            out, geometry.strides, taps, geometry.dilation, geometry.before, strict=True
        )
    ]


def _inside(places: Sequence[Any], sizes: Sequence[Any]) -> Any:
    from tvm import tirx

    return tirx.all(
        *[place >= 0 for place in places],
        *[place < size for place, size in zip(places, sizes, strict=True)],
    )


def _window_sum(x: Any, geometry: Geometry, term: Any, name: str) -> Any:
    """Sum of ``term(element)`` over the elements of each window that lie inside."""
    from tvm import te, tirx

    wide = accumulator(str(x.dtype))
    taps = _taps(geometry.kernel)

    def at(n: Any, c: Any, *out: Any) -> Any:
        places = _places(geometry, out, taps)
        value = x(n, c, *places).astype(wide)
        inside = _inside(places, x.shape[2:])
        return te.sum(tirx.if_then_else(inside, term(value), tirx.const(0, wide)), axis=taps)

    return te.compute((*x.shape[:2], *geometry.out), at, name=name)


def _count(geometry: Geometry, out: Sequence[Any], sizes: Sequence[Any], padding: bool) -> Any:
    """Elements of a window that the mean counts, at least 1."""
    from tvm import tirx

    count: Any = tirx.const(1, "int64")
    rows = zip(
        out,
        sizes,
        geometry.kernel,
        geometry.strides,
        geometry.dilation,
        geometry.before,
        geometry.after,
        strict=True,
    )
    for o, size, kernel, stride, dilation, before, after in rows:
        start = o.astype("int64") * stride - before
        low, high = (-before, size + after) if padding else (0, size)
        first = tirx.max(tirx.floordiv(low - start + dilation - 1, dilation), 0)
        last = tirx.min(tirx.floordiv(high - 1 - start, dilation), kernel - 1)
        count = count * (last - first + 1)
    return tirx.max(count, 1)


def avg_pool(x: Any, count_include_pad: bool, divisor: int, ceil_mode: bool, **attrs: Any) -> Any:
    """Mean of each window; see the operator's reference for what counts."""
    from tvm import te, tirx

    geometry = Geometry(known(x.shape[2:]), attrs | {"ceil_mode": ceil_mode})
    total = _window_sum(x, geometry, lambda v: v, "window_sum")
    wide = str(total.dtype)

    def at(n: Any, c: Any, *out: Any) -> Any:
        if divisor:
            count = tirx.const(divisor, wide)
        else:
            count = _count(geometry, out, x.shape[2:], count_include_pad).astype(wide)
        return (total(n, c, *out) / count).astype(str(x.dtype))

    return te.compute(total.shape, at, name="avg_pool")


def lp_pool(x: Any, p: float, ceil_mode: bool, **attrs: Any) -> Any:
    """(sum |x|^p)^(1/p) of each window."""
    from tvm import te, tirx

    geometry = Geometry(known(x.shape[2:]), attrs | {"ceil_mode": ceil_mode})

    def term(value: Any) -> Any:
        if p == 1:
            return tirx.abs(value)
        return value * value if p == 2 else tirx.pow(tirx.abs(value), tirx.const(p, wide))

    def root(value: Any) -> Any:
        if p == 1:
            return value
        return tirx.sqrt(value) if p == 2 else tirx.pow(value, tirx.const(1 / p, wide))

    wide = accumulator(str(x.dtype))
    total = _window_sum(x, geometry, term, "window_sum")
    return te.compute(
        total.shape, lambda *i: root(total[i].asobject()).astype(str(x.dtype)), name="lp_pool"
    )


def max_pool_with_indices(
    x: Any, column_major: bool, whole: bool, ceil_mode: bool, **attrs: Any
) -> list[Any]:
    """Largest element and its flat position: the first of equals, the last NaN."""
    from tvm import te, tirx

    from uif_tvm.kernels.math import is_nan

    geometry = Geometry(known(x.shape[2:]), attrs | {"ceil_mode": ceil_mode})
    dtype, sizes = str(x.dtype), x.shape[2:]
    axes = range(len(sizes))

    def fold(a: Any, b: Any) -> tuple[Any, Any]:
        # Flat positions tell which came first, in whatever order the window is walked. One Select
        # per result: chains of boolean ones over many taps keep LLVM busy for minutes.
        pick = tirx.Or(a[1] > b[1], tirx.And(a[1] == b[1], a[0] < b[0]))
        if "float" in dtype:
            last = tirx.And(is_nan(a[1]), tirx.Or(tirx.Not(is_nan(b[1])), a[0] > b[0]))
            pick = tirx.Or(last, tirx.And(tirx.Not(is_nan(b[1])), pick))
        return tirx.Select(pick, a[0], b[0]), tirx.Select(pick, a[1], b[1])

    nowhere = tirx.const(2**63 - 1, "int64")
    best = te.comm_reducer(fold, lambda _i, _v: (nowhere, _lowest(dtype)), name="arg_max")
    taps = _taps(geometry.kernel)

    def flat(places: Sequence[Any], order: Any) -> Any:
        position: Any = tirx.const(0, "int64")
        for axis in order:
            position = position * tirx.Cast("int64", sizes[axis]) + tirx.Cast("int64", places[axis])
        return position

    def at(n: Any, c: Any, *out: Any) -> Any:
        places = _places(geometry, out, taps)
        inside = _inside(places, sizes)
        value = tirx.if_then_else(inside, x(n, c, *places), _lowest(dtype))
        position = tirx.if_then_else(inside, flat(places, axes), nowhere)
        return best((position, value), axis=taps)

    shape = (*x.shape[:2], *geometry.out)
    position, value = te.compute(shape, at, name="arg_max")

    def index(n: Any, c: Any, *out: Any) -> Any:
        found: Any = position(n, c, *out)
        if column_major:
            places = []
            for size in reversed(list(sizes)):
                places.insert(0, tirx.floormod(found, size))
                found = tirx.floordiv(found, size)
            found = flat(places, reversed(axes))
        if whole:
            found = found + (n * x.shape[1] + c).astype("int64") * math.prod(sizes)
        return found

    return [value, te.compute(shape, index, name="index")]


def _fold_parts(x: Any, axis: int, parts: int, fold: Any) -> Any:
    """``fold`` over ``parts`` of an axis that may differ in length, or share an element."""
    from tvm import te, tirx

    size = int(x.shape[axis])
    longest = max(-(-(i + 1) * size // parts) - i * size // parts for i in range(parts))
    span = te.reduce_axis((0, longest), name="k")

    def at(*index: Any) -> Any:
        first = tirx.floordiv(index[axis] * size, parts)
        last = tirx.floordiv((index[axis] + 1) * size + parts - 1, parts) - 1
        place = [*index]
        place[axis] = tirx.min(first + span, last)  # past the end, its last element once more
        return fold(x(*place), axis=span)

    shape = [*x.shape[:axis], parts, *x.shape[axis + 1 :]]
    return te.compute(shape, at, name="part")


def adaptive_max_pool(x: Any, output_size: Sequence[int]) -> Any:
    """Maximum of parts of the plane, one axis after the other; NaN wins."""
    from tvm import te

    rank = len(x.shape) - 2
    dtype = str(x.dtype)
    if "float" in dtype:
        largest = te.comm_reducer(MAXIMUM.fold, lambda t: MAXIMUM.identity(str(t)), name="max")
    else:
        largest = te.max
    for axis, parts in enumerate(each(output_size, rank), start=2):
        if int(x.shape[axis]) != parts:
            x = _fold_parts(x, axis, parts, largest)
    return x


def max_unpool(x: Any, indices: Any, output_size: Sequence[int]) -> Any:
    """Zeros with each element at its flat position; positions outside are left out.

    Args:
        x, indices: types of the operands, static extents.
    """
    from tvm import tirx
    from tvm.script import tirx as T

    dtype = x.dtype
    count = tirx.IntImm("int64", math.prod(x.shape))
    total = tirx.IntImm("int64", math.prod((*x.shape[:2], *output_size)))
    shape = (*x.shape[:2], *output_size)

    def unflat(position: Any, extents: Sequence[int]) -> list[Any]:
        index = []
        for extent in reversed(extents):
            index.insert(0, tirx.floormod(position, extent))
            position = tirx.floordiv(position, extent)
        return index

    @T.prim_func(private=True, s_tir=True)
    def unpool(
        values: T.Buffer(x.shape, dtype),
        at: T.Buffer(x.shape, "int64"),
        out: T.Buffer(shape, dtype),
    ):
        with T.sblock("root"):
            place = T.alloc_buffer((1,), "int64")
            with T.sblock("loops"):
                for i in range(total):
                    out[*unflat(i, shape)] = T.Cast(dtype, 0)
                for i in range(count):
                    place[0] = at[*unflat(i, x.shape)]
                    if place[0] >= 0 and place[0] < total:
                        out[*unflat(place[0], shape)] = values[*unflat(i, x.shape)]

    return unpool
