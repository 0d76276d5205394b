"""Block-layout rules for what runs per element or per channel: operators and importers' kernels.

Element-wise operators run per lane and so unchanged on blocked tensors; kernels that treat every
channel alike are lifted (see :mod:`.block_lift`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm.ir import Call
from uif_tvm.relay_passes.block_lift import blocked_shape

from uif_tvm.kernels.layout import OPAQUE, blocks, gate
from uif_tvm.relax_util import make_constant, op_name, static_shape

if TYPE_CHECKING:
    from uif_tvm.relay_passes.block_layout import Rewriter

_UNARY = [
    "astype",
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
#: Operators that fuse with their producers.
_PASSING = frozenset((*ELEMENTWISE, "relax.reshape"))


def elementwise(rewriter: Rewriter, call: Call) -> Any:
    """``f(U(a), b) -> U(f(a, B(b)))`` with broadcasting over any axis."""
    shape = static_shape(call)
    if shape is None or len(shape) not in (3, 4):
        return None
    width = rewriter.width([arg for arg in call.args if _channels(arg) == shape[1] > 1])
    if not width:
        return None
    args = [_operand(rewriter, arg, shape, width) for arg in call.args]
    if any(arg is None for arg in args):
        rewriter.decline("an operand does not broadcast per channel")
        return None
    gated = _gate(rewriter, call, args, shape)
    if gated is None:
        rewriter.fuses()
    result = rewriter.emit(
        Call(call.op, args, call.attrs, call.ty_args) if gated is None else gated
    )
    return rewriter.to_plain(result, shape)


def _channels(expr: Any) -> int:
    """Extent of axis 1 of a tensor with a blocked form, 0 for anything else."""
    shape = static_shape(expr) if _is_tensor(expr) else None
    return shape[1] if shape is not None and len(shape) in (3, 4) else 0


def _gate(rewriter: Rewriter, call: Call, args: list[Any], shape: tuple[int, ...]) -> Any:
    """A kernel of its own when an operand is smaller than the result and made by a schedule."""
    from uif_tvm.relay_passes.block_layout import call_tir

    name = (op_name(call) or "").removeprefix("relax.")
    shapes = [static_shape(arg) for arg in args]
    if name not in _BINARY or any(s is None or len(s) != 5 for s in shapes):
        return None
    width = max(s[4] for s in shapes if s)
    plane = shape[2:] if len(shape) == 4 else (1, shape[2])
    full = (shape[0], blocks(shape[1], width), *plane, width)
    small = [
        found != full and _scheduled(rewriter, arg) for arg, found in zip(args, shapes, strict=True)
    ]
    if not any(small):
        return None
    dtype = str(call.ty.dtype.dtype)
    kernel = rewriter.kernel(f"gate_{name}", gate, name, *shapes, dtype)
    return call_tir(kernel, args, full, dtype)


def _scheduled(rewriter: Rewriter, expr: Any) -> bool:
    """Whether ``expr`` comes, element by element, from a kernel with a schedule to lose.

    Scalars do not: what computes them is never merged with a convolution.
    """
    value = rewriter.resolve(expr)
    shape = static_shape(value) if isinstance(value, Call) else None
    if not isinstance(value, Call) or (shape is not None and prod(shape) == 1):
        return False
    name, operands = op_name(value) or "", list(value.args)
    if name == "relax.call_tir":
        pattern = rewriter.pattern(value.args[0])
        if pattern is not None:
            return pattern != OPAQUE
        operands = list(value.args[1].fields)
    elif name not in _PASSING:
        return True
    return any(_scheduled(rewriter, arg) for arg in operands if isinstance(arg, relax.Var))


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
        if array is not None:
            return make_constant(array.reshape(()))
        return arg if not own else rewriter.emit(relax.op.reshape(arg, (1,) * 5))
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


def prelu(rewriter: Rewriter, call: Call) -> Any:
    """``prelu(x, a) -> max(x, 0) + a * min(x, 0)`` on blocked ``x``, a constant slope."""
    data, slope = rewriter.source(call.args[0]), rewriter.constant(call.args[1])
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
    rewriter.fuses()
    return rewriter.to_plain(result, data.shape)


def kernel(rewriter: Rewriter, call: Call) -> Any:
    """A kernel that treats every channel alike (see :mod:`.block_lift`), one result."""
    from uif_tvm.relay_passes.block_layout import call_tir

    args, out_shape = list(call.args[1].fields), static_shape(call)
    width = rewriter.width([arg for arg in args if len(static_shape(arg) or ()) == 4])
    if not width or out_shape is None or len(out_shape) != 4 or len(call.args) > 2:
        return None
    lifted = rewriter.lifted(call.args[0], width)
    if isinstance(lifted, str):
        rewriter.decline(lifted)
        return None
    if lifted.elementwise:
        rewriter.fuses()
    sources = []
    for arg, axis in zip(args, lifted.axes, strict=True):
        source = _lifted_operand(rewriter, arg, axis, width)
        if source is None:
            rewriter.decline("an operand has no blocked form")
            return None
        sources.append(source)
    dtype = str(call.ty.dtype.dtype)
    target = blocked_shape(out_shape, 1, width)
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


RULES = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "relax.nn.prelu": prelu,
    "relax.call_tir": kernel,
}
