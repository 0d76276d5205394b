"""What blocked pooling computes: ``[N, C/cb, H, W, cb] -> [N, C/cb, OH, OW, cb]``.

A mean over the whole plane is average pooling with a window of the plane's size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.layout import (
    ELEMENTWISE_FUSABLE,
    INJECTIVE,
    Window,
    extents,
    prim_func,
    reduce_axis,
    within,
)
from uif_tvm.kernels.norm import MAXIMUM
from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    import tvm

MAX_POOL = "max_pool_blocked"
SUM_POOL = "sum_pool_blocked"
Blocked = tuple[int, int, int, int, int]


def max_pool(data: Blocked, window: Window, dtype: str = "float32") -> tvm.tirx.PrimFunc:
    """Largest element under the window; padding never wins.

    Args:
        data: blocked shape of the input.
        window: pads of ceil mode are part of ``window.padding``.
        dtype: element type.
    """
    from tvm import te, tirx

    x = te.placeholder(extents(*data), dtype, name="data")
    kh, kw = reduce_axis(window.kernel[0], "kh"), reduce_axis(window.kernel[1], "kw")
    height, width = data[2], data[3]
    largest = te.comm_reducer(MAXIMUM.fold, lambda t: MAXIMUM.identity(str(t)), name="max_pool")

    def body(n: Any, co: Any, oy: Any, ox: Any, ci: Any) -> Any:
        y, xx = window.rows(oy, kh), window.columns(ox, kw)
        value = x[n, co, y, xx, ci]
        inside = within(window, height, width, y, xx)
        if inside is not None:
            value = tirx.if_then_else(inside, value, tirx.const(float("-inf"), dtype))
        return largest(value, axis=[kh, kw])

    shape = (data[0], data[1], *window.out(height, width), data[4])
    attrs = {FAMILY_ATTR: MAX_POOL, **window.attrs()}
    out = te.compute(extents(*shape), body, name="max_pool", attrs=attrs)
    return prim_func([x, out], ELEMENTWISE_FUSABLE)


def avg_pool(
    data: Blocked,
    window: Window,
    counted: tuple[int, int, int, int],
    dtype: str = "float32",
) -> tvm.tirx.PrimFunc:
    """Mean under the window.

    Args:
        data: blocked shape of the input.
        window: pads of ceil mode are part of ``window.padding``.
        counted: pads (t, l, b, r) whose zeros count in the divisor: those that the model asks
            for when it includes padding, else all 0; never the extra pads of ceil mode.
        dtype: element type.
    """
    from tvm import te, tirx

    x = te.placeholder(extents(*data), dtype, name="data")
    kh, kw = reduce_axis(window.kernel[0], "kh"), reduce_axis(window.kernel[1], "kw")
    height, width = data[2], data[3]

    def body(n: Any, co: Any, oy: Any, ox: Any, ci: Any) -> Any:
        y, xx = window.rows(oy, kh), window.columns(ox, kw)
        value = x[n, co, y, xx, ci]
        inside = within(window, height, width, y, xx)
        if inside is not None:
            value = tirx.if_then_else(inside, value, tirx.const(0, dtype))
        return te.sum(value, axis=[kh, kw])

    shape = (data[0], data[1], *window.out(height, width), data[4])
    attrs = {FAMILY_ATTR: SUM_POOL, **window.attrs()}
    total = te.compute(extents(*shape), body, name="sum_pool", attrs=attrs)

    def taps(axis: int, position: Any, size: int) -> Any:
        """Window positions along ``axis`` that count, for one output position."""
        before, after = counted[axis], counted[axis + 2]
        start = position * window.strides[axis] - window.padding[axis]
        end = start + window.kernel[axis]
        if -window.padding[axis] < -before:
            start = tirx.max(start, tirx.IntImm("int64", -before))
        return tirx.min(end, tirx.IntImm("int64", size + after)) - start

    def mean(n: Any, co: Any, oy: Any, ox: Any, ci: Any) -> Any:
        if window.padding == counted:
            scale = tirx.const(1.0 / (window.kernel[0] * window.kernel[1]), dtype)
            return total[n, co, oy, ox, ci] * scale
        count = taps(0, oy, height) * taps(1, ox, width)
        return total[n, co, oy, ox, ci] / count.astype(dtype)

    out = te.compute(extents(*shape), mean, name="avg_pool")
    return prim_func([x, out], ELEMENTWISE_FUSABLE)


def resize(
    data: Blocked, size: tuple[int, int], options: tuple[tuple[str, str], ...], dtype: str
) -> tvm.tirx.PrimFunc:
    """Resized planes, ``[N, C/cb, H, W, cb] -> [N, C/cb, *size, cb]``.

    Args:
        data: blocked shape of the input.
        size: rows and columns of the result.
        options: (name, value) pairs as TOPI's ``resize2d`` takes them.
        dtype: element type.
    """
    from tvm import te, topi

    x = te.placeholder(extents(*data), dtype, name="data")
    roi = [0.0, 0.0, 0.0, 0.0]
    layout = f"NCHW{data[4]}c"
    out = topi.image.resize2d(x, roi, extents(*size), layout=layout, **dict(options))
    return prim_func([x, out], INJECTIVE)
