"""The planner: layouts follow the vector width, tiles fit the registers, tasks cover the work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uif_tvm.schedules.x86 import conv2d_tile as tile
from uif_tvm.schedules.x86.conv_planner import plan_conv2d

from tests.schedules import harness
from uif_tvm.target.schedule import Conv2dProblem
from uif_tvm.target.spec import Refusal


def problem(channels, out, groups=1, size=14, dtype="float32"):
    return Conv2dProblem(
        1, channels, size, size, out, (3, 3), (1, 1), (1,) * 4, (1, 1), groups, dtype
    )


@pytest.mark.parametrize("machine", harness.MACHINES, ids=["wide", "middle", "narrow"])
@pytest.mark.parametrize("size", [1, 7, 14, 56, 113])
def test_register_tiles_fit(machine, size):
    plan = plan_conv2d(problem(64, 96, size=size), machine)
    lanes = machine.lanes("float32")
    assert plan.channel_block == lanes
    vectors = plan.out_block // lanes
    tiling = tile.plan_tiling((size, size), False, vectors, machine)
    pixels = tiling.units.size * tiling.columns.size
    assert pixels * vectors + vectors + 1 <= machine.vector_registers
    assert sum(tiling.units.sizes()) == size
    assert sum(tiling.columns.sizes()) == size


def test_few_input_channels_are_read_plain():
    assert plan_conv2d(problem(3, 64), harness.WIDE).in_block == 1
    assert plan_conv2d(problem(64, 64), harness.WIDE).in_block == 16


def test_other_types_are_refused():
    refusal = plan_conv2d(problem(64, 64, dtype="float16"), harness.WIDE)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "dtype"


def test_empty_results_are_refused():
    empty = Conv2dProblem(1, 8, 2, 2, 8, (5, 5), (1, 1), (0,) * 4, (1, 1), 1, "float32")
    assert plan_conv2d(empty, harness.WIDE).code == "shape"


@given(st.integers(1, 500), st.integers(1, 31))
def test_tiles_partition_a_row(length, widest):
    tiles = tile.Tiles.split(length, widest)
    assert sum(tiles.sizes()) == length
    assert max(tiles.sizes()) <= widest
    assert min(tiles.sizes()) >= 1
    position = 0
    for index, size in enumerate(tiles.sizes()):
        assert tiles.start(index) == position
        position += size


@given(st.integers(1, 60), st.integers(1, 60), st.floats(1, 1e6), st.integers(1, 1 << 20))
def test_tasks_balance_and_never_cost_more_than_one(units, blocks, cycles, block_bytes):
    grid = tile.Grid(1, 1, units, blocks, cycles, block_bytes)
    task = tile.choose_task(grid, harness.WIDE)
    assert 1 <= task.units <= units
    assert 1 <= task.blocks <= blocks
    alone = units * blocks * cycles + blocks * block_bytes / tile.FAR_BYTES
    assert task.cycles <= alone + tile.LAUNCH_CYCLES


def test_large_work_is_split_evenly_over_two_cores():
    grid = tile.Grid(1, 1, 7, 16, 1e6, 1 << 12)
    task = tile.choose_task(grid, harness.WIDE)
    tasks = -(-7 // task.units) * -(-16 // task.blocks)
    assert task.parallel
    assert tasks % 2 == 0
