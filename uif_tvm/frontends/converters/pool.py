"""Pooling: max, average, Lp, global, with indices, and their inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.converters.conv import check_window, spatial, window_pads
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.elementwise import is_float
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dim, at_least, is_static, simplify

MAX_POOL = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
AVG_POOL = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
LAYOUT = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


class Window:
    """Geometry of one pooling node, ``ceil_mode`` and ``auto_pad`` turned into plain padding."""

    def __init__(self, ctx: NodeContext) -> None:
        dims = ctx.shape(0)
        self.rank = len(dims) - 2
        if self.rank < 1:
            raise ctx.invalid(f"an input of rank {len(dims)} has no spatial axes")
        self.kernel = spatial(ctx, "kernel_shape", self.rank, 1)
        self.strides = spatial(ctx, "strides", self.rank, 1)
        self.dilations = spatial(ctx, "dilations", self.rank, 1)
        self.before, self.after = window_pads(
            ctx, dims[2:], self.kernel, self.strides, self.dilations
        )
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        ceil = bool(ctx.attrs.get("ceil_mode", 0))
        if not ceil:
            check_window(ctx, dims[2:], self.reach, self.before, self.after)
        self.extra: list[Dim] = [0] * self.rank
        self.outputs: list[Dim] = []
        for axis, extent in enumerate(dims[2:]):
            self.outputs.append(self._output(ctx, axis, extent, ceil))

    def _output(self, ctx: NodeContext, axis: int, extent: Dim, ceil: bool) -> Dim:
        lo, hi = self.before[axis], self.after[axis]
        stride, reach = self.strides[axis], self.reach[axis]
        if not is_static((extent, lo, hi)):
            return self._symbolic_output(axis, extent, ceil)
        span = extent + lo + hi - reach
        count = (-(-span // stride) if ceil else span // stride) + 1
        if ceil and (count - 1) * stride >= extent + lo:
            count -= 1  # a window that starts in the padding does not count
        if count < 1:
            raise ctx.invalid(f"a window of {reach} does not fit an input of {extent}")
        self.extra[axis] = max((count - 1) * stride + reach - (extent + lo + hi), 0)
        return count

    def _symbolic_output(self, axis: int, extent: Dim, ceil: bool) -> Dim:
        lo, hi = self.before[axis], self.after[axis]
        stride, reach = self.strides[axis], self.reach[axis]
        span = extent + lo + hi - reach
        if not ceil or stride == 1:
            return simplify(span // stride + 1)
        count = (span + stride - 1) // stride + 1
        # A window that starts in the padding does not count: its start is at most extent + lo - 1.
        count = simplify(tirx.min(count, (extent + lo - 1) // stride + 1))
        self.extra[axis] = at_least(simplify((count - 1) * stride + reach - (extent + lo + hi)), 0)
        return count

    @property
    def plain(self) -> bool:
        """Whether the padding is known at import, as Relax's own pools need it."""
        return is_static((*self.before, *self.after, *self.extra))

    @property
    def padding(self) -> list[Dim]:
        """Padding before all axes, then after all axes."""
        return [*self.before, *[a + e for a, e in zip(self.after, self.extra, strict=True)]]

    def options(self) -> dict[str, Any]:
        """Attributes of the standard pooling operators, for padding known at import."""
        return {
            "pool_size": tuple(self.kernel),
            "strides": tuple(self.strides),
            "padding": (*self.before, *self.after),
            "dilation": tuple(self.dilations),
            "ceil_mode": any(extra != 0 for extra in self.extra),
        }

    def places(self, index: tuple[Any, ...], taps: list[Any], before: list[Any]) -> list[Any]:
        """Input positions of an output position and window taps.

        Args:
            before: the padding before each axis, as the kernel sees it.
        """
        return [
            i * s + t * d - lo
            for i, s, t, d, lo in zip(
                index, self.strides, taps, self.dilations, before, strict=True
            )
        ]


def _lowest(dtype: str) -> Any:
    if is_float(dtype):
        return tirx.const(float("-inf"), dtype)
    return tirx.const(int(np.iinfo(dtype).min), dtype)


def _fold_windows(
    ctx: NodeContext, window: Window, combine: str, value: Any, name: str
) -> relax.Expr:
    """Reduce ``value(x, place...)`` over each window; positions in the padding are skipped."""
    dtype = ctx.dtype(0)

    def compute(local: list[Any], x: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(window.kernel)]
        before, outputs = local[: window.rank], local[window.rank :]

        def at(n: Any, c: Any, *o: Any) -> Any:
            places = window.places(o, taps, before)
            ok = [p >= 0 for p in places]
            ok += [p < d for p, d in zip(places, x.shape[2:], strict=True)]
            item = value(x(n, c, *places))
            rest = _lowest(dtype) if combine == "max" else tirx.const(0, kind(item))
            item = tirx.if_then_else(tirx.all(*ok), item, rest)
            return te.max(item, axis=taps) if combine == "max" else te.sum(item, axis=taps)

        return te.compute((*x.shape[:2], *outputs), at, name=name)

    return ctx.te_dims(compute, [ctx.expr(0)], [*window.before, *window.outputs], name)


@converter("MaxPool")
def max_pool(ctx: NodeContext) -> list[relax.Expr]:
    """Largest element of each window, and its flat index if asked for."""
    window = Window(ctx)
    if ctx.wants(1) and window.plain:
        column = bool(ctx.attrs.get("storage_order", 0))
        options = window.options()
        return list(
            ctx.op("max_pool_with_indices", ctx.expr(0), column_major=column, whole=True, **options)
        )
    if ctx.wants(1):
        return _max_pool_indices(ctx, window)
    if window.plain and window.rank in MAX_POOL and is_float(ctx.dtype(0)):
        pool = MAX_POOL[window.rank](
            ctx.expr(0),
            pool_size=window.kernel,
            strides=window.strides,
            dilation=window.dilations,
            padding=window.padding,
            layout=LAYOUT[window.rank],
        )
        return [ctx.emit(pool)]
    return [_fold_windows(ctx, window, "max", lambda v: v, "max_pool")]


def _max_pool_indices(ctx: NodeContext, window: Window) -> list[relax.Expr]:
    """The best tap of each window, the first of equals; then its place as a flat index."""
    dtype = ctx.dtype(0)
    taps = math.prod(window.kernel)
    column = bool(ctx.attrs.get("storage_order", 0))

    def place(o: tuple[Any, ...], tap: Any, before: list[Any]) -> list[Any]:
        rest, parts = tap, []
        for extent in reversed(window.kernel):
            parts.append(tirx.floormod(rest, extent))
            rest = tirx.floordiv(rest, extent)
        return window.places(o, parts[::-1], before)

    def better(left: Any, right: Any) -> Any:
        wins = tirx.any(left[0] > right[0], tirx.all(left[0] == right[0], left[1] < right[1]))
        return tirx.Select(wins, left[0], right[0]), tirx.Select(wins, left[1], right[1])

    best = te.comm_reducer(
        better,
        lambda value, _: (tirx.min_value(value), tirx.const(taps, "int64")),
        name="first_max",
    )

    def find(local: list[Any], x: te.Tensor) -> list[te.Tensor]:
        axis = te.reduce_axis((0, taps), name="tap")
        before, outputs = local[: window.rank], local[window.rank :]

        def at(n: Any, c: Any, *o: Any) -> Any:
            places = place(o, axis, before)
            ok = [p >= 0 for p in places]
            ok += [p < d for p, d in zip(places, x.shape[2:], strict=True)]
            item = tirx.if_then_else(tirx.all(*ok), x(n, c, *places), _lowest(dtype))
            number = tirx.Select(tirx.all(*ok), axis.astype("int64"), tirx.const(taps, "int64"))
            return best((item, number), axis=axis)

        return list(te.compute((*x.shape[:2], *outputs), at, name="max_pool"))

    def flat(local: list[Any], tap: te.Tensor) -> te.Tensor:
        before, extents = local[: window.rank], local[window.rank :]

        def at(n: Any, c: Any, *o: Any) -> Any:
            places = place(o, tirx.min(tap(n, c, *o), tirx.const(taps - 1, "int64")), before)
            inner: Any = tirx.const(0, "int64")
            for axis in reversed(range(window.rank)) if column else range(window.rank):
                inner = inner * extents[axis] + places[axis]
            return ((n * tap.shape[1] + c) * math.prod(extents) + inner).astype("int64")

        return te.compute(tap.shape, at, name="max_pool_index")

    both = ctx.te_dims(find, [ctx.expr(0)], [*window.before, *window.outputs], "max_pool_first")
    value, number = (ctx.emit(relax.TupleGetItem(both, i)) for i in range(2))
    extents = [*window.before, *ctx.shape(0)[2:]]
    return [value, ctx.te_dims(flat, [number], extents, "max_pool_index")]


@converter("AveragePool")
def average_pool(ctx: NodeContext) -> relax.Expr:
    """Mean of each window; padding counts or not."""
    window = Window(ctx)
    count_pad = bool(ctx.attrs.get("count_include_pad", 0))
    plain = window.plain and (not any(window.extra) or not count_pad)
    if plain and window.rank in AVG_POOL and set(window.dilations) == {1}:
        pool = AVG_POOL[window.rank](
            ctx.expr(0),
            pool_size=window.kernel,
            strides=window.strides,
            padding=window.padding,
            count_include_pad=count_pad,
            layout=LAYOUT[window.rank],
        )
        return ctx.emit(pool)
    if window.plain:
        options = window.options()
        return ctx.op(  # type: ignore[no-any-return]
            "avg_pool", ctx.expr(0), count_include_pad=count_pad, **options
        )
    total = _fold_windows(ctx, window, "sum", lambda v: v, "window_sum")
    return _over_counts(ctx, window, total, count_pad)


def _over_counts(
    ctx: NodeContext, window: Window, total: relax.Expr, count_pad: bool
) -> relax.Expr:
    """Sums of windows over how many positions count in each."""

    def counted(o: Any, axis: int, extent: Any, lo: Any, hi: Any) -> Any:
        """Taps of one axis inside [low, high): the first and one past the last, and between."""
        step = window.dilations[axis]
        start = o * window.strides[axis] - lo
        low, high = (-lo, extent + hi) if count_pad else (0, extent)
        first = tirx.max(tirx.floordiv(low - start + step - 1, step), 0)
        last = tirx.min(tirx.floordiv(high - start + step - 1, step), window.kernel[axis])
        return tirx.max(last - first, 0)

    def compute(local: list[Any], sums: te.Tensor) -> te.Tensor:
        extents, before, after = (local[i * window.rank : (i + 1) * window.rank] for i in range(3))

        def at(n: Any, c: Any, *o: Any) -> Any:
            count: Any = 1
            for axis, (i, extent, lo, hi) in enumerate(zip(o, extents, before, after, strict=True)):
                count = count * counted(i, axis, extent, lo, hi)
            return sums(n, c, *o) / tirx.max(count, 1).astype(kind(sums))

        return te.compute(sums.shape, at, name="window_mean")

    dims = [*ctx.shape(0)[2:], *window.before, *window.after]
    return ctx.te_dims(compute, [total], dims, "window_mean")


@converter("LpPool")
def lp_pool(ctx: NodeContext) -> relax.Expr:
    """(sum |x|^p)^(1/p) of each window."""
    window, p = Window(ctx), float(ctx.attrs.get("p", 2))
    if window.plain:
        return ctx.op("lp_pool", ctx.expr(0), p=p, **window.options())  # type: ignore[no-any-return]
    total = _fold_windows(
        ctx, window, "sum", lambda v: tirx.pow(tirx.abs(v), tirx.const(p, kind(v))), "lp_pool"
    )
    return ctx.emit(relax.op.power(total, ctx.const(1.0 / p, ctx.dtype(0))))


@converter("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(ctx: NodeContext) -> relax.Expr:
    """Reduction over all spatial axes."""
    axes = list(range(2, ctx.rank(0)))
    x, dtype = ctx.expr(0), ctx.dtype(0)
    if ctx.op_type == "GlobalAveragePool":
        return ctx.emit(relax.op.mean(x, axes, keepdims=True))
    if ctx.op_type == "GlobalMaxPool":
        return ctx.emit(relax.op.max(x, axes, keepdims=True))
    p = float(ctx.attrs.get("p", 2))
    powered = ctx.emit(relax.op.power(ctx.emit(relax.op.abs(x)), ctx.const(p, dtype)))
    total = ctx.emit(relax.op.sum(powered, axes, keepdims=True))
    return ctx.emit(relax.op.power(total, ctx.const(1.0 / p, dtype)))
