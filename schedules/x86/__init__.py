"""Hand-written schedules for x86-64, parameterised by vector width, registers and caches.

Rules go from specific to general; the shared generic rule takes what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uif_tvm.schedules._common import RULES as GENERIC_RULES
from uif_tvm.schedules.x86.attention import RULES as ATTENTION_RULES
from uif_tvm.schedules.x86.attention_planner import plan_attention
from uif_tvm.schedules.x86.conv2d import BlockedConv2d
from uif_tvm.schedules.x86.conv2d_layout import LayoutChange
from uif_tvm.schedules.x86.conv_planner import plan_conv2d
from uif_tvm.schedules.x86.depthwise import BlockedDepthwise
from uif_tvm.schedules.x86.matmul import RULES as MATMUL_RULES
from uif_tvm.schedules.x86.matmul_planner import plan_matmul
from uif_tvm.schedules.x86.plane_conv import RULES as PLANE_RULES
from uif_tvm.schedules.x86.pool import BlockedPool
from uif_tvm.schedules.x86.rows import RULES as ROW_RULES
from uif_tvm.schedules.x86.winograd import Winograd
from uif_tvm.schedules.x86.winograd_planner import plan_winograd

if TYPE_CHECKING:
    from uif_tvm.target.schedule import (
        AttentionPlan,
        AttentionProblem,
        Conv2dPlan,
        Conv2dProblem,
        MatmulPlan,
        MatmulProblem,
        WinogradPlan,
    )
    from uif_tvm.target.spec import Machine, Refusal


class Planner:
    """Layouts that the rules below want."""

    version = 1

    def conv2d(self, problem: Conv2dProblem, machine: Machine) -> Conv2dPlan | Refusal:
        """Blocked layout of one convolution."""
        return plan_conv2d(problem, machine)

    def winograd(
        self, problem: Conv2dProblem, machine: Machine, tiles: tuple[int, ...]
    ) -> WinogradPlan | Refusal:
        """Winograd's algorithm for one convolution, where it pays."""
        return plan_winograd(problem, machine, tiles)

    def matmul(self, problem: MatmulProblem, machine: Machine) -> MatmulPlan | Refusal:
        """Packing of one constant right-hand side."""
        return plan_matmul(problem, machine)

    def attention(self, problem: AttentionProblem, machine: Machine) -> AttentionPlan | Refusal:
        """Blocks of one fused attention kernel."""
        return plan_attention(problem, machine)


PLANNER = Planner()
RULES = (
    BlockedConv2d(),
    BlockedDepthwise(),
    Winograd(),
    BlockedPool(),
    LayoutChange(),
    *PLANE_RULES,
    *ATTENTION_RULES,
    *MATMUL_RULES,
    *ROW_RULES,
    *GENERIC_RULES,
)
