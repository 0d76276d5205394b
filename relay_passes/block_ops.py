"""Block-layout rules for everything between convolutions.

Element-wise operators run per lane and so unchanged on blocked tensors. Pooling, concatenation,
splitting, resizing and padding have per-lane blocked forms. All fire only when an operand is
blocked already: a region starts at a convolution.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm.ir import Call
from uif_tvm.relay_passes.block_lift import blocked_shape

from uif_tvm.compiler.relax_util import make_constant, op_name, static_shape
from uif_tvm.kernels import pool
from uif_tvm.kernels.layout import Window, blocks, gate

if TYPE_CHECKING:
    from uif_tvm.relay_passes.block_layout import Blocked, Rewriter

_UNARY = [
    "abs",
    "negative",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "square",
    "tanh",
    "sigmoid",
    "erf",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "sign",
    "clip",
    "nn.relu",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "nn.leakyrelu",
    "nn.softplus",
    "nn.relu6",
]
_BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power"]
ELEMENTWISE = tuple(f"relax.{name}" for name in (*_UNARY, *_BINARY))


def elementwise(rewriter: Rewriter, call: Call) -> Any:
    """``f(U(a), b) -> U(f(a, B(b)))`` with broadcasting over any axis."""
    shape = static_shape(call)
    if shape is None or len(shape) not in (3, 4):
        return None
    twins = [rewriter.twin(arg) for arg in call.args]
    found = [t for t in twins if t is not None and t.shape[1] == shape[1] and shape[1] > 1]
    if not found:
        return None
    width = found[0].block
    fresh = sum(
        prod(static_shape(arg) or ())
        for arg, twin in zip(call.args, twins, strict=True)
        if twin is None and isinstance(arg, relax.Var) and _is_tensor(arg)
    )
    if fresh > sum(prod(t.shape) for t in found):
        rewriter.decline(f"{fresh} elements would have to change layout first")
        return None
    args = [_operand(rewriter, arg, shape, width) for arg in call.args]
    if any(arg is None for arg in args):
        rewriter.decline("an operand does not broadcast per channel")
        return None
    gated = _gate(rewriter, call, args, shape)
    result = rewriter.emit(
        Call(call.op, args, call.attrs, call.ty_args) if gated is None else gated
    )
    return rewriter.to_plain(result, shape)


def _gate(rewriter: Rewriter, call: Call, args: list[Any], shape: tuple[int, ...]) -> Any:
    """A kernel of its own when an operand is computed and smaller than the result."""
    from uif_tvm.relay_passes.block_layout import call_tir

    name = (op_name(call) or "").removeprefix("relax.")
    shapes = [static_shape(arg) for arg in args]
    if name not in _BINARY or any(s is None or len(s) != 5 for s in shapes):
        return None
    width = max(s[4] for s in shapes if s)
    plane = shape[2:] if len(shape) == 4 else (1, shape[2])
    full = (shape[0], blocks(shape[1], width), *plane, width)
    small = [
        found != full and rewriter.constant(arg) is None
        for arg, found in zip(args, shapes, strict=True)
    ]
    if not any(small):
        return None
    dtype = str(call.ty.dtype.dtype)
    kernel = rewriter.kernel(f"gate_{name}", gate, name, *shapes, dtype)
    return call_tir(kernel, args, full, dtype)


def _is_tensor(expr: Any) -> bool:
    return isinstance(expr.ty, relax.TensorType)


def _operand(rewriter: Rewriter, arg: Any, shape: tuple[int, ...], width: int) -> Any:
    """``arg`` so that it broadcasts against a blocked tensor; ``None`` when it cannot."""
    if not _is_tensor(arg):
        return arg
    own = static_shape(arg)
    if own is None or len(own) > len(shape):
        return None
    if prod(own) == 1:
        array = rewriter.constant(arg)
        return make_constant(array.reshape(())) if array is not None else _scalar(rewriter, arg)
    full = (1,) * (len(shape) - len(own)) + own
    if full[1] == 1:
        plane = full[2:] if len(full) == 4 else (1, full[2])
        target = (full[0], 1, *plane, 1)
        array = rewriter.constant(arg)
        if array is not None:
            return make_constant(array.reshape(target))
        return rewriter.emit(relax.op.reshape(arg, target))
    if full[1] != shape[1]:
        return None
    if full != own:
        array = rewriter.constant(arg)
        if array is None:
            arg = rewriter.emit(relax.op.reshape(arg, full))
        else:
            arg = make_constant(array.reshape(full))
    return rewriter.to_blocked(arg, width).var


def _scalar(rewriter: Rewriter, arg: Any) -> Any:
    return rewriter.emit(relax.op.reshape(arg, (1,) * 5))


def prelu(rewriter: Rewriter, call: Call) -> Any:
    """``prelu(x, a) -> max(x, 0) + a * min(x, 0)`` on blocked ``x``, a constant slope."""
    data, slope = rewriter.twin(call.args[0]), rewriter.constant(call.args[1])
    if data is None or slope is None or int(call.attrs.axis) % len(data.shape) != 1:
        return None
    from uif_tvm.relay_passes.block_layout import block_array

    per_channel = np.broadcast_to(slope.reshape(-1), (data.shape[1],)).reshape(1, -1, 1, 1)
    factor = make_constant(block_array(np.ascontiguousarray(per_channel), data.block))
    zero = relax.const(np.zeros((), slope.dtype))
    below = rewriter.emit(relax.op.minimum(data.var, zero))
    scaled = rewriter.emit(relax.op.multiply(below, factor))
    above = rewriter.emit(relax.op.maximum(data.var, zero))
    result = rewriter.emit(relax.op.add(above, scaled))
    return rewriter.to_plain(result, data.shape)


def pooling(rewriter: Rewriter, call: Call) -> Any:
    """2-D max and average pooling on blocked data."""
    data, attrs = rewriter.twin(call.args[0]), call.attrs
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
        return _pool(rewriter, data, out_shape, "max_pool2d", pool.max_pool, window)
    if window.dilation != (1, 1):
        rewriter.decline("dilated average pooling")
        return None
    counted = (asked[0], asked[1], asked[2], asked[3]) if attrs.count_include_pad else (0, 0, 0, 0)
    return _pool(rewriter, data, out_shape, "avg_pool2d", pool.avg_pool, window, counted)


def adaptive_average(rewriter: Rewriter, call: Call) -> Any:
    """Adaptive average pooling whose windows are all of one size."""
    data, out_shape = rewriter.twin(call.args[0]), static_shape(call)
    if data is None or out_shape is None or len(data.shape) != 4 or call.attrs.layout != "NCHW":
        return None
    rows, columns = data.shape[2:]
    if rows % out_shape[2] or columns % out_shape[3]:
        rewriter.decline(f"{rows}x{columns} does not divide into {out_shape[2]}x{out_shape[3]}")
        return None
    size = rows // out_shape[2], columns // out_shape[3]
    window = Window(size, size)
    return _pool(rewriter, data, out_shape, "avg_pool2d", pool.avg_pool, window, (0, 0, 0, 0))


def mean(rewriter: Rewriter, call: Call) -> Any:
    """Mean over the whole plane."""
    data, out_shape = rewriter.twin(call.args[0]), static_shape(call)
    if data is None or out_shape is None or call.attrs.axis is None:
        return None
    ndim = len(data.shape)
    if sorted(int(a) % ndim for a in call.attrs.axis) != list(range(2, ndim)):
        return None
    plane = data.extents[2], data.extents[3]
    whole = (*data.shape[:2], *(1,) * (ndim - 2))
    window = Window(plane, plane)
    result = _pool(rewriter, data, whole, "avg_pool2d", pool.avg_pool, window, (0, 0, 0, 0))
    if len(out_shape) == ndim:
        return result
    return relax.op.reshape(rewriter.emit(result), out_shape)


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
    twins = [rewriter.twin(part) for part in parts.fields]
    found = [t for t in twins if t is not None]
    axis = int(call.attrs.axis) % len(out_shape)
    if not found or len(out_shape) != 4:
        return None
    width = found[0].block
    shapes = [static_shape(part) for part in parts.fields]
    if any(s is None for s in shapes):
        return None
    if axis == 1 and any(s[1] % width for s in shapes[:-1] if s):
        rewriter.decline(f"channel counts {[s[1] for s in shapes if s]} do not fill blocks")
        return None
    fresh = sum(prod(s) for s, t in zip(shapes, twins, strict=True) if s and t is None)
    if fresh > sum(prod(t.shape) for t in found):
        rewriter.decline(f"{fresh} elements would have to change layout first")
        return None
    blocked = [rewriter.to_blocked(part, width).var for part in parts.fields]
    return rewriter.to_plain(rewriter.emit(relax.op.concat(blocked, axis=axis)), out_shape)


def split(rewriter: Rewriter, call: Call) -> Any:
    """Split along channels at block boundaries."""
    data = rewriter.twin(call.args[0])
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
    data, out_shape = rewriter.twin(call.args[0]), static_shape(call)
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

    data, out_shape, attrs = rewriter.twin(call.args[0]), static_shape(call), call.attrs
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
        "resize2d", pool.resize, data.extents, (out_shape[2], out_shape[3]), options, dtype
    )
    batch, count, _, _, block = data.extents
    target = (batch, count, out_shape[2], out_shape[3], block)
    rewriter.fired(f"blocked {attrs.method} resize")
    return rewriter.to_plain(rewriter.emit(call_tir(kernel, [data.var], target, dtype)), out_shape)


def kernel(rewriter: Rewriter, call: Call) -> Any:
    """A kernel that treats every channel alike (see :mod:`.block_lift`), one result."""
    from uif_tvm.relay_passes.block_layout import call_tir

    args, out_shape = list(call.args[1].fields), static_shape(call)
    twins = [rewriter.twin(arg) for arg in args]
    widths = [t.block for t in twins if t is not None and len(t.shape) == 4]
    if not widths or out_shape is None or len(out_shape) != 4 or len(call.args) > 2:
        return None
    lifted = rewriter.lifted(call.args[0], widths[0])
    if isinstance(lifted, str):
        rewriter.decline(lifted)
        return None
    sources = []
    for arg, axis in zip(args, lifted.axes, strict=True):
        source = _lifted_operand(rewriter, arg, axis, widths[0])
        if source is None:
            rewriter.decline("an operand has no blocked form")
            return None
        sources.append(source)
    dtype = str(call.ty.dtype.dtype)
    target = blocked_shape(out_shape, 1, widths[0])
    rewriter.fired("kernel runs per channel")
    return rewriter.to_plain(rewriter.emit(call_tir(lifted.var, sources, target, dtype)), out_shape)


def _lifted_operand(rewriter: Rewriter, arg: Any, axis: int | None, width: int) -> Any:
    """``arg`` with its channel axis in blocks and the lane last; ``None`` when that needs work."""
    if axis is None:
        return arg
    shape = static_shape(arg)
    if shape is None:
        return None
    if axis == 1 and len(shape) == 4:
        return rewriter.to_blocked(arg, width).var
    array = rewriter.constant(arg)
    if array is None:
        return None
    moved = np.moveaxis(array, axis, -1)
    padded = np.zeros((*moved.shape[:-1], blocks(shape[axis], width) * width), array.dtype)
    padded[..., : shape[axis]] = moved
    split_lanes = padded.reshape(*moved.shape[:-1], -1, width)
    return make_constant(np.ascontiguousarray(np.moveaxis(split_lanes, -2, axis)))


def strided_slice(rewriter: Rewriter, call: Call) -> Any:
    """Slice along channels at block boundaries, or of the plane."""
    data, out_shape = rewriter.twin(call.args[0]), static_shape(call)
    lists = [_integers(rewriter, arg) for arg in call.args[1:]]
    if data is None or out_shape is None or len(data.shape) != 4 or len(out_shape) != 4:
        return None
    if len(lists) < 3 or any(values is None for values in lists):
        return None
    axes, begin, end = lists[:3]
    steps = lists[3] if len(lists) > 3 else [1] * len(axes)
    first, last = list(begin), list(end)
    for k, axis in enumerate(axes):
        if axis % 4 != 1:
            continue
        channels, width = data.shape[1], data.block
        start = min(channels, begin[k] + channels if begin[k] < 0 else begin[k])
        stop = min(channels, end[k] + channels if end[k] < 0 else end[k])
        if steps[k] != 1 or start % width or (stop % width and stop != channels) or stop <= start:
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
    found = [getattr(item, "value", None) for item in value.fields]
    return None if any(item is None for item in found) else [int(item) for item in found]


RULES = {
    "relax.call_tir": kernel,
    "relax.strided_slice": strided_slice,
    "relax.nn.prelu": prelu,
    "relax.nn.max_pool2d": pooling,
    "relax.nn.avg_pool2d": pooling,
    "relax.nn.adaptive_avg_pool2d": adaptive_average,
    "relax.mean": mean,
    "relax.concat": concat,
    "relax.split": split,
    "relax.nn.pad": pad,
    "relax.image.resize2d": resize,
}
