"""Chooses blocked layouts for convolutions: one channel block for all, weights by cost."""

from __future__ import annotations

from uif_tvm.schedules.x86.conv2d_tile import best_vectors

from uif_tvm.kernels.blocked_conv import merge_groups
from uif_tvm.target.schedule import Conv2dPlan, Conv2dProblem
from uif_tvm.target.spec import Machine, Refusal

#: Plain inputs of fewer channels per vector lane than this are read as they are.
PLAIN_INPUT_SHARE = 0.5


def plan_conv2d(problem: Conv2dProblem, machine: Machine) -> Conv2dPlan | Refusal:
    """Activations in blocks of one vector; weight blocks of as many vectors as run fastest.

    An ``in_block`` of 1 means that the input is best read unblocked, when it is unblocked.
    """
    if problem.dtype != "float32":
        return Refusal("dtype", f"blocked convolutions take float32, not {problem.dtype}")
    if min(problem.out_height, problem.out_width) < 1:
        return Refusal("shape", "the result is empty")
    lanes = machine.lanes(problem.dtype)
    if problem.depthwise:
        return Conv2dPlan(lanes, lanes, lanes)
    merged = merge_groups(problem, lanes)
    plain = merged.groups == 1 and problem.in_channels < lanes * PLAIN_INPUT_SHARE
    return Conv2dPlan(lanes, 1 if plain else lanes, best_vectors(merged, machine) * lanes)
