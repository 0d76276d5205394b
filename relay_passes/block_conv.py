"""Block-layout rules for convolutions: pack the weights, call the blocked kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.ir import Call

from uif_tvm.compiler.gain import Gain
from uif_tvm.kernels import blocked_conv
from uif_tvm.kernels.layout import Window, blocks
from uif_tvm.relax_util import make_constant, op_name, static_shape
from uif_tvm.target.schedule import Conv2dPlan, Conv2dProblem
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from uif_tvm.relay_passes.block_layout import Rewriter

Array = np.ndarray[Any, Any]
#: Shares of peak arithmetic that kernels reach, measured on one core from 1 to 256 channels:
#: in plain layout (compiled loops) over windows, over single pixels or with strides, and in blocks.
_PLAIN_WINDOW, _PLAIN_OTHER, _BLOCKED = 0.25, 0.07, 0.85
#: The same of depthwise convolutions, which are bound by memory.
_PLAIN_DEPTHWISE, _BLOCKED_DEPTHWISE = 0.09, 0.3
_LAYOUTS = {"relax.nn.conv2d": ("NCHW", "OIHW"), "relax.nn.conv1d": ("NCW", "OIW")}


def convolution(rewriter: Rewriter, call: Call) -> Any:
    """``conv(x, W) -> U(conv_blocked(B(x), pack(W)))``; 1-D is 2-D with one row."""
    attrs, layouts = call.attrs, _LAYOUTS[op_name(call) or ""]
    if (attrs.data_layout, attrs.kernel_layout) != layouts or attrs.out_layout != layouts[0]:
        rewriter.decline(f"layout {attrs.data_layout}/{attrs.kernel_layout}, needs {layouts}")
        return None
    weight = rewriter.constant(call.args[1])
    if weight is None:
        rewriter.decline("the weight is not a constant")
        return None
    data, padding = _absorb_padding(rewriter, call.args[0], _four(attrs.padding))
    shape, out_shape = static_shape(data), static_shape(call)
    dtypes = {str(data.ty.dtype.dtype), str(weight.dtype), str(call.ty.dtype.dtype)}
    if shape is None or out_shape is None or len(dtypes) != 1:
        rewriter.decline(f"the input is not static, or element types differ: {sorted(dtypes)}")
        return None
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    rows, columns = shape[2:] if len(shape) == 4 else (1, shape[2])
    problem = Conv2dProblem(
        batch=shape[0],
        in_channels=shape[1],
        in_height=rows,
        in_width=columns,
        out_channels=weight.shape[0],
        kernel=(weight.shape[2], weight.shape[3]),
        strides=_two(attrs.strides),
        padding=padding,
        dilation=_two(attrs.dilation),
        groups=int(attrs.groups),
        dtype=dtypes.pop(),
    )
    planner, machine = rewriter.ctx.target.planner, rewriter.ctx.target.machine
    plan = planner.conv2d(problem, machine) if planner else Refusal("planner", "none")
    if isinstance(plan, Refusal):
        rewriter.decline(str(plan))
        return None
    rewriter.trace.width = plan.channel_block
    rewriter.worth(_lost_in_plain_layout(rewriter, problem, plan.channel_block))
    emit = _depthwise if problem.depthwise else _dense
    blocked = emit(rewriter, data, weight, problem, plan)
    rewriter.fired(
        f"{'depthwise' if problem.depthwise else 'direct'} kernel, blocks of {plan.channel_block}"
        f" channels, weight blocks of {plan.out_block}"
    )
    return rewriter.to_plain(blocked, out_shape)


def _lost_in_plain_layout(rewriter: Rewriter, problem: Conv2dProblem, block: int) -> float:
    """Microseconds that the convolution takes longer without its blocked kernel, estimated.

    Blocked kernels compute whole blocks of output channels, so that one with few of them may take
    longer: the figure is below 0 then.
    """
    plane = problem.batch * problem.out_channels * problem.out_height * problem.out_width
    window = problem.kernel[0] * problem.kernel[1]
    dense = window > 1 and problem.strides[1] == 1
    plain, blocked = _PLAIN_WINDOW if dense else _PLAIN_OTHER, _BLOCKED
    if problem.depthwise:
        plain, blocked = _PLAIN_DEPTHWISE, _BLOCKED_DEPTHWISE
    whole = blocks(problem.out_channels, block) * block / problem.out_channels
    taps = problem.in_channels // problem.groups * window
    flops = 2 * plane * taps * (1 / plain - whole / blocked)
    return Gain(flops=flops, dtype=problem.dtype).microseconds(rewriter.ctx.target)


def _dense(
    rewriter: Rewriter, data: Any, weight: Array, problem: Conv2dProblem, plan: Conv2dPlan
) -> Any:
    merged = blocked_conv.merge_groups(problem, plan.channel_block)
    plain = plan.in_block == 1 and len(static_shape(data) or ()) == 4 and not rewriter.twin(data)
    in_block = 1 if plain else plan.channel_block
    groups = (problem.groups, merged.groups)
    packed = blocked_conv.pack_weight(weight, groups, in_block, plan.out_block)
    source = data if plain else rewriter.to_blocked(data, plan.channel_block).var
    kernel = rewriter.kernel(
        "conv2d",
        blocked_conv.conv2d,
        static_shape(source),
        packed.shape,
        (problem.in_channels, problem.out_channels),
        merged.groups,
        _window(problem),
        plan.channel_block,
        problem.dtype,
    )
    return _call(rewriter, kernel, source, packed, problem, plan.channel_block)


def _depthwise(
    rewriter: Rewriter, data: Any, weight: Array, problem: Conv2dProblem, plan: Conv2dPlan
) -> Any:
    source = rewriter.to_blocked(data, plan.channel_block)
    kernel = rewriter.kernel(
        "depthwise_conv2d",
        blocked_conv.depthwise,
        source.extents,
        problem.in_channels,
        _window(problem),
        problem.dtype,
    )
    packed = blocked_conv.pack_depthwise(weight, plan.channel_block)
    return _call(rewriter, kernel, source.var, packed, problem, plan.channel_block)


def _call(
    rewriter: Rewriter, kernel: Any, data: Any, packed: Array, problem: Conv2dProblem, block: int
) -> Any:
    from uif_tvm.relay_passes.block_layout import call_tir

    count = blocks(problem.out_channels, block)
    shape = (problem.batch, count, problem.out_height, problem.out_width, block)
    return rewriter.emit(call_tir(kernel, [data, make_constant(packed)], shape, problem.dtype))


def _window(problem: Conv2dProblem) -> Window:
    return Window(problem.kernel, problem.strides, problem.padding, problem.dilation)


def _two(values: Any) -> tuple[int, int]:
    """Per-axis attribute as (rows, columns); 1-D ones act on columns."""
    found = [int(v) for v in values]
    return (1, found[0]) if len(found) == 1 else (found[0], found[1])


def _four(values: Any) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right); 1-D padding is (left, right)."""
    found = [int(v) for v in values]
    if len(found) == 2:
        return 0, found[0], 0, found[1]
    return found[0], found[1], found[2], found[3]


def _absorb_padding(
    rewriter: Rewriter, data: Any, padding: tuple[int, int, int, int]
) -> tuple[Any, tuple[int, int, int, int]]:
    """``conv(pad(x, p), q) -> conv(x, p + q)`` for zero padding of the plane."""
    source, pads = rewriter.padded.get(data, (data, (0, 0, 0, 0)))
    if any(pads):
        rewriter.passes_by(data)
        rewriter.fired("zero padding absorbed")
    top, left, bottom, right = (a + b for a, b in zip(padding, pads, strict=True))
    return source, (top, left, bottom, right)


def zero_padded(rewriter: Rewriter, call: Call) -> tuple[Any, tuple[int, int, int, int]] | None:
    """What is padded and by how much (t, l, b, r), when ``call`` is zero padding of a plane."""
    if op_name(call) == "relax.call_tir":
        pads = rewriter.zero_padding(call.args[0])
        return None if pads is None else (call.args[1].fields[0], pads)
    if op_name(call) != "relax.nn.pad":
        return None
    widths = [int(w) for w in call.attrs.pad_width]
    simple = call.attrs.pad_mode == "constant" and float(call.attrs.pad_value) == 0.0
    if len(widths) not in (6, 8) or not simple or any(widths[:4]) or min(widths) < 0:
        return None
    rows = widths[4:6] if len(widths) == 8 else [0, 0]
    return call.args[0], (rows[0], widths[-2], rows[1], widths[-1])


RULES = {"relax.nn.conv2d": convolution, "relax.nn.conv1d": convolution}
