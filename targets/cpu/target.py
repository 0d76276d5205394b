"""cpu: the machine this runs on, as found at import."""

from __future__ import annotations

import os
from pathlib import Path

from uif_tvm.targets._x86.levels import KIB, LEVELS, MIB, build

from uif_tvm.runtime.host import host
from uif_tvm.target.spec import Machine, TargetSpec


def create() -> TargetSpec:
    """The host's manifest: highest level its flags allow, its caches and cores.

    Raises:
        NotImplementedError: on a host that is not x86-64.
    """
    here = host()
    if here.arch != "x86_64":
        raise NotImplementedError(
            f"host architecture {here.arch} has no schedules yet; export for another target"
        )
    level = next(lv for lv in LEVELS if set(lv.flags) <= set(here.features))
    return build(
        "cpu",
        "host",
        f"this host: {here.model}, {level.mcpu}",
        level,
        Machine(
            level.vector_bytes,
            level.vector_registers,
            _cache_bytes(1, "Data") or 32 * KIB,
            _cache_bytes(2, "Unified") or 512 * KIB,
            _cache_bytes(3, "Unified") or 8 * MIB,
            cores=here.cores,
        ),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        detected=True,
    )


def _cache_bytes(level: int, kind: str) -> int | None:
    """Size of core 0's cache from sysfs, or ``None`` where the kernel does not tell."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            found = int((index / "level").read_text()), (index / "type").read_text().strip()
            if found == (level, kind):
                return int((index / "size").read_text().strip().rstrip("K")) * KIB
        except (OSError, ValueError):
            continue
    return None
