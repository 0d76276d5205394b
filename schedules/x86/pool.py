"""Pooling over channel blocks: ``acc[pixel] = max or sum over taps of input[pixel + tap]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import read_fused, shape_of
from uif_tvm.schedules.x86.conv2d_window import emit_window, plan_window

from uif_tvm.kernels.blocked_pool import MAX_POOL, SUM_POOL
from uif_tvm.kernels.layout import Window
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec


class BlockedPool:
    """Hand-written rule for the ``max_pool_blocked`` and ``sum_pool_blocked`` families."""

    name = "pool"
    version = 3
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        from tvm import tirx

        kernel = read_fused(func, (MAX_POOL, SUM_POOL))
        if isinstance(kernel, Refusal):
            return kernel
        data = kernel.inputs[0]
        dtype, lanes = str(data.dtype), shape_of(data)[4]
        if dtype != "float32" or target.machine.lanes(dtype) != lanes:
            return Refusal("layout", f"{dtype} blocks of {lanes} channels, the vector holds "
                           f"{target.machine.lanes(dtype)}")  # fmt: skip
        largest = kernel.family == MAX_POOL

        def merge(a: Any, b: Any) -> Any:
            return tirx.Max(a, b) if largest else a + b

        def combine(acc: Any, value: Any, channel: Any, p: Any, q: Any) -> Any:
            return merge(acc, value)

        window = Window.from_attrs(kernel.anchor.annotations)
        initial = float("-inf") if largest else 0.0
        nest = plan_window(kernel, window, target.machine, combine, initial, merge)
        return Scheduled(tir.finish(func, emit_window(nest)), nest.detail)
