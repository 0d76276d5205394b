"""The x86-64 micro-architecture levels (psABI, section 3.1.1) and the specs built on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uif_tvm.schedules.x86 import PLANNER, RULES

from uif_tvm.target.spec import (
    Machine,
    MemoryTier,
    Refusal,
    Requirement,
    Roofline,
    TargetSpec,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Level:
    """One level: LLVM's name for it, vector registers, and Linux's names of its CPU flags."""

    mcpu: str
    vector_bytes: int
    vector_registers: int
    flags: tuple[str, ...]


_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

BASELINE = Level("x86-64", 16, 16, ())
V3 = Level("x86-64-v3", 32, 16, _V3)
V4 = Level("x86-64-v4", 64, 32, _V4)
LEVELS = (V4, V3, BASELINE)


def capability(op: str, attrs: Mapping[str, Any], dtypes: tuple[str, ...]) -> Refusal | None:
    """Any op whose element types the code generator stores; 4- and 6-bit floats are refused."""
    for dtype in dtypes:
        if dtype.startswith(("float4_", "float6_")):
            return Refusal("dtype", f"{op} on {dtype}: no x86 instruction loads packed {dtype}")
    return None


def build(
    target_id: str,
    vendor: str,
    description: str,
    level: Level,
    machine: Machine,
    *,
    memory_bytes: int,
    detected: bool = False,
) -> TargetSpec:
    """A CPU target at ``level``; roofline figures are declared from cores and vector width."""
    # Two FMA pipes at about 2 GHz sustained under wide vectors: a floor for servers since 2017.
    fma = machine.cores * (level.vector_bytes // 4) * 2 * 2 * 2.0
    return TargetSpec(
        id=target_id,
        vendor=vendor,
        description=description,
        tvm_target={"kind": "llvm", "mcpu": level.mcpu, "num-cores": machine.cores},
        machine=machine,
        memory=(MemoryTier("dram", memory_bytes, 10.0 * machine.cores),),
        roofline=Roofline(
            gflops={"float32": fma, "float64": fma / 2},
            gbps=10.0 * machine.cores,
            launch_us=0.2,
            source="declared",
        ),
        requirement=Requirement("x86_64", level.flags),
        capability=capability,
        schedules=RULES,
        planner=PLANNER,
        detected=detected,
    )
