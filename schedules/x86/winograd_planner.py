"""Says where Winograd convolution beats the direct kernel, by both kernels' cost models.

Measured on one core with AVX-512 (ratio of CPU time to the direct kernel, float32, one image,
weights from memory): F(4x4) takes 0.34 at 56x56x64, 0.32 at 28x28x128, 0.51 at 14x14x256, where
its four times larger weights start to show; at 7x7x512 they cost more than the arithmetic saves
(1.08), and F(2x2) takes 0.81.
"""

from __future__ import annotations

from functools import lru_cache

from uif_tvm.schedules.x86.conv2d_tile import (
    Grid,
    best_vectors,
    choose_task,
    plan_tiling,
    plane_cycles,
)
from uif_tvm.schedules.x86.winograd_nest import WinogradShape, plan_cut

from uif_tvm.kernels.winograd import TAPS
from uif_tvm.target.schedule import Conv2dProblem, WinogradPlan
from uif_tvm.target.spec import Machine, Refusal, dtype_bytes

#: Share of the direct kernel's time that Winograd may take at most: the models are not exact.
MOST_TIME = 0.85


@lru_cache(maxsize=1024)
def plan_winograd(
    problem: Conv2dProblem, machine: Machine, tiles: tuple[int, ...]
) -> WinogradPlan | Refusal:
    """The fastest of ``tiles``, or why the direct kernel is the better one."""
    if problem.dtype != "float32":
        return Refusal("dtype", f"Winograd kernels take float32, not {problem.dtype}")
    if (problem.kernel, problem.strides, problem.dilation) != ((TAPS, TAPS), (1, 1), (1, 1)):
        return Refusal(
            "window",
            f"window {problem.kernel}, strides {problem.strides}, dilation {problem.dilation}; "
            "Winograd kernels take 3x3 windows of stride and dilation 1",
        )
    if problem.groups != 1:
        return Refusal("groups", f"{problem.groups} groups, Winograd kernels take one")
    direct = direct_cycles(problem, machine)
    plans = []
    for tile in tiles:
        shape = WinogradShape.of(problem, tile, machine)
        cut = plan_cut(shape, machine)
        width = cut.vectors * machine.lanes(problem.dtype)
        plans.append(WinogradPlan(tile, width, cut.cycles, direct))
    best = min(plans, key=lambda plan: plan.cycles)
    if best.cycles > MOST_TIME * direct:
        share = ", ".join(f"F({p.tile}x{p.tile}) {p.cycles / direct:.2f}" for p in plans)
        return Refusal(
            "slower", f"estimated share of the direct kernel's time: {share}; at most {MOST_TIME}"
        )
    return best


def direct_cycles(problem: Conv2dProblem, machine: Machine) -> float:
    """Cycles of the direct kernel on the longest-running core."""
    vectors = best_vectors(problem, machine)
    lanes = machine.lanes(problem.dtype)
    plane = problem.out_height, problem.out_width
    tiling = plan_tiling(plane, False, vectors, machine)
    steps = problem.in_channels * problem.kernel[0] * problem.kernel[1]
    padded = problem.in_width + problem.padding[1] + problem.padding[3]
    in_blocks = -(-problem.in_channels // lanes)
    cycles = plane_cycles(tiling, vectors, steps, machine.vector_bytes)
    grid = Grid(
        batch=problem.batch,
        groups=1,
        units=tiling.units.count,
        blocks=-(-problem.out_channels // (lanes * vectors)),
        piece_cycles=cycles / tiling.units.count,
        block_bytes=steps * vectors * machine.vector_bytes,
        unit_rows=tiling.units.size,
        reach=problem.kernel[0] + tiling.units.size - 1,
        row_bytes=padded * in_blocks * lanes * dtype_bytes(problem.dtype),
    )
    return choose_task(grid, machine).cycles
