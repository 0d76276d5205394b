"""Where Winograd is said to pay, and how tasks are cut: figures of the cost model on one core."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uif_tvm.schedules.x86.conv2d_tile import LAUNCH_CYCLES
from uif_tvm.schedules.x86.winograd_nest import WinogradShape, cut_tasks, plan_cut
from uif_tvm.schedules.x86.winograd_planner import MOST_TIME, direct_cycles, plan_winograd

from tests.schedules import harness
from uif_tvm.kernels.winograd import TILES
from uif_tvm.target.schedule import Conv2dProblem, WinogradPlan
from uif_tvm.target.spec import Machine, Refusal

ONE_CORE = dataclasses.replace(harness.WIDE, cores=1)


def problem(channels: int, size: int, **changes: object) -> Conv2dProblem:
    same = Conv2dProblem(
        1, channels, size, size, channels, (3, 3), (1, 1), (1,) * 4, (1, 1), 1, "float32"
    )
    return dataclasses.replace(same, **changes)


@pytest.mark.parametrize(
    ("channels", "size", "tile", "share"),
    [(64, 56, 4, 0.30), (128, 28, 4, 0.40), (256, 14, 4, 0.54), (512, 7, 2, 0.81)],
)
def test_layers_of_a_residual_network(channels: int, size: int, tile: int, share: float) -> None:
    """Measured: 0.34, 0.32, 0.51 and 0.84 of the direct kernel's time."""
    plan = plan_winograd(problem(channels, size), ONE_CORE, TILES)
    assert isinstance(plan, WinogradPlan), plan
    assert plan.tile == tile
    assert plan.cycles / plan.direct_cycles == pytest.approx(share, abs=0.02)


def test_only_tiles_that_are_accurate_enough_are_taken() -> None:
    plan = plan_winograd(problem(64, 56), ONE_CORE, (2,))
    assert isinstance(plan, WinogradPlan), plan
    assert plan.tile == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"kernel": (5, 5)}, "window"),
        ({"strides": (1, 2)}, "window"),
        ({"dilation": (2, 2)}, "window"),
        ({"groups": 2}, "groups"),
        ({"in_height": 1, "in_width": 1}, "slower"),
    ],
)
def test_what_does_not_fit_or_pay_is_refused(changes: dict[str, object], code: str) -> None:
    refusal = plan_winograd(problem(64, 56, **changes), ONE_CORE, TILES)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 600),
    st.integers(1, 600),
    st.integers(1, 120),
    st.integers(1, 8),
    st.sampled_from((*harness.MACHINES, ONE_CORE)),
)
def test_any_plan_beats_the_direct_kernel_and_fits(
    channels: int, out_channels: int, size: int, batch: int, machine: Machine
) -> None:
    wanted = problem(channels, size, out_channels=out_channels, batch=batch)
    plan = plan_winograd(wanted, machine, TILES)
    if isinstance(plan, Refusal):
        assert plan.code == "slower"
        return
    assert plan.cycles <= MOST_TIME * plan.direct_cycles
    assert plan.direct_cycles == direct_cycles(wanted, machine)
    vectors, rest = divmod(plan.out_block, machine.lanes("float32"))
    assert rest == 0
    shape = WinogradShape.of(wanted, plan.tile, machine)
    cut = cut_tasks(shape, vectors, machine)
    # Accumulators, weight vectors and one broadcast are the registers of the innermost loop.
    assert cut.tiles.size * vectors + vectors + 1 <= machine.vector_registers
    assert sum(cut.tiles.sizes()) == shape.tiles
    assert 1 <= cut.units <= cut.tiles.count
    assert 1 <= cut.blocks <= -(-shape.out_blocks // vectors)


@pytest.mark.parametrize("machine", [*harness.MACHINES, ONE_CORE])
@pytest.mark.parametrize(("channels", "size"), [(64, 224), (192, 52), (512, 56), (1024, 14)])
def test_workspaces_are_bounded_by_the_second_level_cache(
    channels: int, size: int, machine: Machine
) -> None:
    """But for a single register tile, which is the least that there is."""
    shape = WinogradShape.of(problem(channels, size), 4, machine)
    cut = plan_cut(shape, machine)
    tiles = min(shape.tiles, cut.units * cut.tiles.size)
    in_blocks = -(-channels // machine.lanes("float32"))
    held = shape.products * tiles * (in_blocks + cut.vectors) * machine.vector_bytes
    assert held <= machine.l2_bytes or cut.units == 1


def test_more_cores_take_less_time_when_that_outweighs_the_launch() -> None:
    large = WinogradShape.of(problem(128, 56), 4, ONE_CORE)
    alone = plan_cut(large, ONE_CORE)
    shared = plan_cut(large, dataclasses.replace(ONE_CORE, cores=4))
    assert not alone.parallel
    assert shared.parallel
    assert alone.cycles / 4 < shared.cycles < alone.cycles / 3 + LAUNCH_CYCLES
    small = WinogradShape.of(problem(8, 6), 4, ONE_CORE)
    assert not plan_cut(small, dataclasses.replace(ONE_CORE, cores=4)).parallel
