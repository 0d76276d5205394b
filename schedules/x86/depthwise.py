"""Depthwise convolution over channel blocks: ``acc[pixel] += input[pixel + tap] * weight[tap]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, read_fused, shape_of
from uif_tvm.schedules.x86.conv2d_window import emit_window, plan_window

from uif_tvm.kernels.blocked_conv import DEPTHWISE
from uif_tvm.kernels.layout import Window
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec


class BlockedDepthwise:
    """Hand-written rule for the ``depthwise_blocked`` family."""

    name = "depthwise"
    version = 3
    kind = "hand-written"

    def plan(self, func: PrimFunc, target: TargetSpec) -> FusedKernel | Refusal:
        """The kernel as it was read, or why this rule does not fit it."""
        kernel = read_fused(func, (DEPTHWISE,))
        if isinstance(kernel, Refusal):
            return kernel
        weight = kernel.inputs[1]
        dtype, lanes = str(weight.dtype), shape_of(weight)[3]
        if dtype != "float32" or target.machine.lanes(dtype) != lanes:
            return Refusal("layout", f"{dtype} blocks of {lanes} channels, the vector holds "
                           f"{target.machine.lanes(dtype)}")  # fmt: skip
        return kernel

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        kernel = self.plan(func, target)
        if isinstance(kernel, Refusal):
            return kernel
        weight = kernel.inputs[1]
        lanes = shape_of(weight)[3]

        def combine(acc: Any, value: Any, channel: Any, p: Any, q: Any) -> Any:
            return acc + value * tir.read(weight, channel, p, q, tir.lanes_from(0, lanes))

        window = Window.from_attrs(kernel.anchor.annotations)
        nest = plan_window(kernel, window, target.machine, combine)
        return Scheduled(tir.finish(func, emit_window(nest)), nest.detail)
