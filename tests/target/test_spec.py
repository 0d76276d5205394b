"""TargetSpec: complete or refused, with the field named."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from tests.models import fake_target
from uif_tvm.errors import TargetError
from uif_tvm.target.spec import MemoryTier, Refusal, Requirement, Roofline, dtype_bytes

SPEC = fake_target()
ROOF = SPEC.roofline


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": ""}, "id must be lower case"),
        ({"id": "My Chip"}, "got 'My Chip'"),
        ({"id": "my_chip"}, "got 'my_chip'"),
        ({"id": "-chip"}, "got '-chip'"),
        ({"id": "../chip"}, "got '../chip'"),
        ({"vendor": ""}, "vendor and description"),
        ({"description": ""}, "vendor and description"),
        ({"tvm_target": {"mcpu": "x"}}, "tvm_target has no 'kind'"),
        ({"memory": ()}, "memory needs at least one tier"),
        ({"memory": (MemoryTier("sram", 0, 1.0),)}, "memory tier 'sram'"),
        ({"schedules": ()}, "schedules needs at least one rule"),
        ({"schedules": SPEC.schedules[-1:] * 2}, "equal names: generic, generic"),
        ({"roofline": replace(ROOF, gflops={})}, "positive peak per dtype"),
        ({"roofline": replace(ROOF, gflops={"float32": 0.0})}, "positive peak per dtype"),
        ({"roofline": replace(ROOF, source="guessed")}, "declared or calibrated, got 'guessed'"),
        ({"roofline": replace(ROOF, gbps=0)}, "roofline.gbps must be positive"),
        ({"machine": replace(SPEC.machine, vector_bytes=0)}, "machine.vector_bytes"),
        ({"machine": replace(SPEC.machine, cores=0)}, "machine.cores must be at least 1"),
        ({"requirement": Requirement("")}, "requirement.arch"),
        ({"capability": None}, "capability must be a function"),
    ],
)
def test_refused_with_the_field(change, complaint):
    with pytest.raises(TargetError) as caught:
        replace(SPEC, **change)
    assert complaint in str(caught.value)
    assert caught.value.code == "UIF-TARGET-BROKEN"
    assert caught.value.hint


def test_a_chip_without_a_third_cache_is_complete():
    assert replace(SPEC, machine=replace(SPEC.machine, l3_bytes=0)).machine.l3_bytes == 0


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        SPEC.id = "other"


def test_schedule_version_changes_with_rules_and_planner():
    class Planner:
        version = 7

    versions = {
        SPEC.schedule_version,
        replace(SPEC, planner=None).schedule_version,
        replace(SPEC, planner=Planner()).schedule_version,
        replace(SPEC, schedules=SPEC.schedules[-1:]).schedule_version,
        replace(SPEC, schedules=SPEC.schedules[::-1]).schedule_version,
    }
    assert len(versions) == 5


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("bool", 1),
        ("int4", 1),
        ("uint8", 1),
        ("float8_e4m3fn", 1),
        ("bfloat16", 2),
        ("float16", 2),
        ("float32", 4),
        ("int64", 8),
        ("complex64", 8),
    ],
)
def test_dtype_bytes(dtype, size):
    assert dtype_bytes(dtype) == size


def test_lanes_are_at_least_one():
    machine = replace(SPEC.machine, vector_bytes=4)
    assert (machine.lanes("float32"), machine.lanes("float64"), machine.lanes("int8")) == (1, 1, 4)


def test_roofline_takes_the_slower_of_compute_and_memory():
    roof = Roofline(
        {"float32": 100.0, "float64": 50.0}, gbps=10.0, launch_us=1.0, source="declared"
    )
    assert roof.seconds(1e9, 0) == pytest.approx(0.01 + 1e-6)
    assert roof.seconds(0, 1e9) == pytest.approx(0.1 + 1e-6)
    assert roof.seconds(1e9, 0, "float64") == pytest.approx(0.02 + 1e-6)
    # A dtype nobody measured counts as the slowest one.
    assert roof.seconds(1e9, 0, "int4") == roof.seconds(1e9, 0, "float64")


def test_refusal_reads_as_code_and_detail():
    assert str(Refusal("dtype", "no int4")) == "dtype: no int4"
