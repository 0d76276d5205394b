"""x86-64-v4: any CPU with AVX-512 F/BW/CD/DQ/VL. Compiles anywhere, runs on such CPUs."""

from __future__ import annotations

from uif_tvm.targets._x86.levels import GIB, KIB, MIB, V4, build

from uif_tvm.target.spec import Machine, TargetSpec


def create() -> TargetSpec:
    """The target's manifest, with cache sizes that every CPU of this level has."""
    return build(
        "x86-64-v4",
        "generic",
        "x86-64 with AVX-512 F/BW/CD/DQ/VL, 512-bit vectors",
        V4,
        Machine(V4.vector_bytes, V4.vector_registers, 32 * KIB, 1 * MIB, 16 * MIB, cores=2),
        memory_bytes=8 * GIB,
    )
