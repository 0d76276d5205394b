"""Block-layout rules for pooling, joining, cutting, padding and resizing.

All have per-lane blocked forms; they fire only when an operand is blocked already: a region starts
at a convolution.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm.ir import Call

from uif_tvm.kernels import blocked_pool
from uif_tvm.kernels.layout import Window, blocks
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import make_constant, op_name, static_shape

if TYPE_CHECKING:
    from uif_tvm.relay_passes.block_layout import Blocked, Rewriter


def pooling(rewriter: Rewriter, call: Call) -> Any:
    """2-D max and average pooling on blocked data."""
    data, attrs = rewriter.source(call.args[0]), call.attrs
    out_shape = static_shape(call)
    if data is None or out_shape is None or len(data.shape) != 4:
        return None
    if attrs.layout != "NCHW" or attrs.out_layout != "NCHW":
        rewriter.decline(f"layout {attrs.layout}")
        return None
    asked = tuple(int(p) for p in attrs.padding)
    strides = int(attrs.strides[0]), int(attrs.strides[1])
    window = Window(
        (int(attrs.pool_size[0]), int(attrs.pool_size[1])),
        strides,
        (asked[0], asked[1], asked[2], asked[3]),
        (int(attrs.dilation[0]), int(attrs.dilation[1])),
    )
    # Ceil mode lets windows start that end past the padding; as padding, that is a larger pad.
    extra = [
        max(0, (out_shape[2 + a] - 1) * strides[a] + window.reach(a)
            - (data.shape[2 + a] + asked[a] + asked[a + 2]))
        for a in (0, 1)
    ]  # fmt: skip
    padding = (asked[0], asked[1], asked[2] + extra[0], asked[3] + extra[1])
    window = Window(window.kernel, strides, padding, window.dilation)
    if op_name(call) == "relax.nn.max_pool2d":
        return _pool(rewriter, data, out_shape, "max_pool2d", blocked_pool.max_pool, window)
    if window.dilation != (1, 1):
        rewriter.decline("dilated average pooling")
        return None
    counted = (asked[0], asked[1], asked[2], asked[3]) if attrs.count_include_pad else (0, 0, 0, 0)
    return _pool(rewriter, data, out_shape, "avg_pool2d", blocked_pool.avg_pool, window, counted)


def adaptive_average(rewriter: Rewriter, call: Call) -> Any:
    """Adaptive average pooling whose windows are all of one size."""
    data, out_shape = rewriter.source(call.args[0]), static_shape(call)
    if data is None or out_shape is None or len(data.shape) != 4 or call.attrs.layout != "NCHW":
        return None
    rows, columns = data.shape[2:]
    if rows % out_shape[2] or columns % out_shape[3]:
        rewriter.decline(f"{rows}x{columns} does not divide into {out_shape[2]}x{out_shape[3]}")
        return None
    size = rows // out_shape[2], columns // out_shape[3]
    window = Window(size, size)
    return _pool(
        rewriter, data, out_shape, "avg_pool2d", blocked_pool.avg_pool, window, (0, 0, 0, 0)
    )


def mean(rewriter: Rewriter, call: Call) -> Any:
    """Mean over the whole plane."""
    data, out_shape = rewriter.source(call.args[0]), static_shape(call)
    if data is None or out_shape is None or call.attrs.axis is None:
        return None
    ndim = len(data.shape)
    if sorted(int(a) % ndim for a in call.attrs.axis) != list(range(2, ndim)):
        return None
    plane = data.extents[2], data.extents[3]
    whole = (*data.shape[:2], *(1,) * (ndim - 2))
    window = Window(plane, plane)
    result = _pool(rewriter, data, whole, "avg_pool2d", blocked_pool.avg_pool, window, (0, 0, 0, 0))
    if len(out_shape) == ndim:
        return result
    return relax.op.reshape(rewriter.emit(result), out_shape)


def extreme(rewriter: Rewriter, call: Call) -> Any:
    """``max(x)`` over everything ``->  max(where(lane has a channel, x', least))``; so ``min``."""
    out_shape, given = static_shape(call), static_shape(call.args[0])
    if out_shape is None or given is None or len(given) not in (3, 4):
        return None
    axes = call.attrs.axis
    if axes is not None and {int(a) % len(given) for a in axes} != set(range(len(given))):
        return None
    data = rewriter.source(call.args[0])
    if data is None:
        return None
    rewriter.ends()
    value, dtype = data.var, str(data.var.ty.dtype.dtype)
    channels, width = data.shape[1], data.block
    if channels % width:
        lanes = np.arange(data.extents[1] * width).reshape(1, -1, 1, 1, width)
        mask = make_constant(lanes < channels)
        worst = _least(dtype) if op_name(call) == "relax.max" else _largest(dtype)
        value = rewriter.emit(relax.op.where(mask, value, make_constant(worst)))
    make = relax.op.max if op_name(call) == "relax.max" else relax.op.min
    if not out_shape:
        return make(value)
    return relax.op.reshape(rewriter.emit(make(value)), out_shape)


def _least(dtype: str) -> Any:
    """Never larger than anything: the identity of a maximum."""
    kind = numpy_dtype(dtype)
    return np.asarray(np.iinfo(kind).min if kind.kind in "iu" else -np.inf, kind)


def _largest(dtype: str) -> Any:
    """The identity of a minimum."""
    kind = numpy_dtype(dtype)
    return np.asarray(np.iinfo(kind).max if kind.kind in "iu" else np.inf, kind)


def _pool(
    rewriter: Rewriter,
    data: Blocked,
    out_shape: tuple[int, ...],
    name: str,
    make: Any,
    window: Window,
    *more: Any,
) -> Any:
    from uif_tvm.relay_passes.block_layout import call_tir

    dtype = str(data.var.ty.dtype.dtype)
    if dtype != "float32":
        rewriter.decline(f"pooling of {dtype}")
        return None
    batch, count, rows, columns, block = data.extents
    kernel = rewriter.kernel(name, make, data.extents, window, *more, dtype)
    target = (batch, count, *window.out(rows, columns), block)
    rewriter.fired(f"blocked pooling, window {window.kernel}")
    return rewriter.to_plain(rewriter.emit(call_tir(kernel, [data.var], target, dtype)), out_shape)


def concat(rewriter: Rewriter, call: Call) -> Any:
    """Concatenation; along channels, all parts but the last must fill their blocks."""
    parts = rewriter.resolve(call.args[0])
    out_shape = static_shape(call)
    if not isinstance(parts, relax.Tuple) or out_shape is None or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(out_shape)
    width = rewriter.width(parts.fields)
    if not width or len(out_shape) != 4:
        return None
    shapes = [static_shape(part) for part in parts.fields]
    if any(s is None for s in shapes):
        return None
    if axis == 1 and any(s[1] % width for s in shapes[:-1] if s):
        rewriter.decline(f"channel counts {[s[1] for s in shapes if s]} do not fill blocks")
        return None
    blocked = [rewriter.to_blocked(part, width).var for part in parts.fields]
    return rewriter.to_plain(rewriter.emit(relax.op.concat(blocked, axis=axis)), out_shape)


def split(rewriter: Rewriter, call: Call) -> Any:
    """Split along channels at block boundaries."""
    data = rewriter.source(call.args[0])
    if data is None or len(data.shape) != 4 or int(call.attrs.axis) % 4 != 1:
        return None
    channels, width = data.shape[1], data.block
    given = call.attrs.indices_or_sections
    if hasattr(given, "__len__"):
        bounds = [int(getattr(b, "value", b)) for b in given]
    else:
        size = -(-channels // int(getattr(given, "value", given)))
        bounds = list(range(size, channels, size))
    if any(b % width or not 0 < b < channels for b in bounds) or bounds != sorted(set(bounds)):
        rewriter.decline(f"channels are split at {bounds}, blocks hold {width}")
        return None
    parts = rewriter.emit(relax.op.split(data.var, [b // width for b in bounds], axis=1))
    fields = []
    edges = [0, *bounds, channels]
    for index, (start, end) in enumerate(pairwise(edges)):
        part = rewriter.emit(relax.TupleGetItem(parts, index))
        shape = (data.shape[0], end - start, *data.shape[2:])
        fields.append(rewriter.emit(rewriter.to_plain(part, shape)))
    return relax.Tuple(fields)


def pad(rewriter: Rewriter, call: Call) -> Any:
    """Padding of the plane with a constant."""
    data, out_shape = rewriter.source(call.args[0]), static_shape(call)
    if data is None or out_shape is None or len(data.shape) != 4:
        return None
    widths = [int(w) for w in call.attrs.pad_width]
    if call.attrs.pad_mode != "constant" or any(widths[:4]) or min(widths) < 0:
        return None
    padded = relax.op.nn.pad(data.var, [*widths, 0, 0], "constant", float(call.attrs.pad_value))
    return rewriter.to_plain(rewriter.emit(padded), out_shape)


def resize(rewriter: Rewriter, call: Call) -> Any:
    """Nearest and bilinear resizing through the blocked form of the same kernel."""
    from uif_tvm.relay_passes.block_layout import call_tir

    data, out_shape, attrs = rewriter.source(call.args[0]), static_shape(call), call.attrs
    if data is None or out_shape is None or attrs.layout != "NCHW":
        return None
    if attrs.method not in ("nearest_neighbor", "linear"):
        rewriter.decline(f"method {attrs.method}")
        return None
    options = (
        ("method", str(attrs.method)),
        ("coordinate_transformation_mode", str(attrs.coordinate_transformation_mode)),
        ("rounding_method", str(attrs.rounding_method)),
    )
    dtype = str(data.var.ty.dtype.dtype)
    kernel = rewriter.kernel(
        "resize2d", blocked_pool.resize, data.extents, (out_shape[2], out_shape[3]), options, dtype
    )
    batch, count, _, _, block = data.extents
    target = (batch, count, out_shape[2], out_shape[3], block)
    rewriter.fired(f"blocked {attrs.method} resize")
    return rewriter.to_plain(rewriter.emit(call_tir(kernel, [data.var], target, dtype)), out_shape)


def strided_slice(rewriter: Rewriter, call: Call) -> Any:
    """Slice along channels from a block boundary on, or of the plane."""
    data, out_shape = rewriter.source(call.args[0]), static_shape(call)
    if data is None or out_shape is None or len(data.shape) != 4 or len(out_shape) != 4:
        return None
    lists = [_integers(rewriter, arg) for arg in call.args[1:]]
    axes, begin, end, steps, *_ = [*lists, None, None, None]
    if axes is None or begin is None or end is None:
        return None
    steps = [1] * len(axes) if steps is None else steps
    if len(lists) > 3 and lists[3] is None:
        return None
    first, last = list(begin), list(end)
    for k, axis in enumerate(axes):
        if axis % 4 != 1:
            continue
        channels, width = data.shape[1], data.block
        start = min(channels, begin[k] + channels if begin[k] < 0 else begin[k])
        stop = min(channels, end[k] + channels if end[k] < 0 else end[k])
        # Lanes past the last channel mean nothing, so only the first has to begin a block.
        if steps[k] != 1 or start % width or stop <= start:
            rewriter.decline(f"channels {start} to {stop} by {steps[k]}, blocks hold {width}")
            return None
        first[k], last[k] = start // width, blocks(stop, width)
    part = relax.op.strided_slice(data.var, [axis % 4 for axis in axes], first, last, steps)
    return rewriter.to_plain(rewriter.emit(part), out_shape)


def _integers(rewriter: Rewriter, expr: Any) -> list[int] | None:
    """Values of a tuple of integers."""
    value = rewriter.resolve(expr)
    if not isinstance(value, relax.Tuple):
        return None
    found: list[int] = []
    for item in value.fields:
        number = getattr(item, "value", None)
        if number is None:
            return None
        found.append(int(number))
    return found


RULES = {
    "relax.strided_slice": strided_slice,
    "relax.nn.max_pool2d": pooling,
    "relax.nn.avg_pool2d": pooling,
    "relax.nn.adaptive_avg_pool2d": adaptive_average,
    "relax.mean": mean,
    "relax.max": extreme,
    "relax.min": extreme,
    "relax.concat": concat,
    "relax.split": split,
    "relax.nn.pad": pad,
    "relax.image.resize2d": resize,
}
