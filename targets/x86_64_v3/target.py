"""x86-64-v3: any CPU with AVX2 and FMA (since 2013). Compiles anywhere, runs on such CPUs."""

from __future__ import annotations

from uif_tvm.targets._x86.levels import GIB, KIB, MIB, V3, build

from uif_tvm.target.spec import Machine, TargetSpec


def create() -> TargetSpec:
    """The target's manifest, with cache sizes that every CPU of this level has."""
    return build(
        "x86-64-v3",
        "generic",
        "x86-64 with AVX2 and FMA, 256-bit vectors",
        V3,
        Machine(V3.vector_bytes, V3.vector_registers, 32 * KIB, 256 * KIB, 8 * MIB, cores=2),
        memory_bytes=4 * GIB,
    )
