"""What machine this is, and how many multiply-adds it can do: the yardstick of the benchmark."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from uif_tvm.errors import EnvironmentFault

#: Widths of vector registers tried, bytes; the fastest counts.
VECTOR_BYTES = (16, 32, 64)
_SOURCE = Path(__file__).with_name("fma_peak.cc")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-pthread")


@dataclass(frozen=True)
class Peak:
    """Measured float32 peak: GFLOP/s for each number of threads, and the vector width used."""

    gflops: dict[int, float]
    vector_bytes: int


def measure_peak(threads: Sequence[int]) -> Peak:
    """Measure the peak of fused multiply-add, compiled here and now for this machine.

    Raises:
        EnvironmentFault: no ``g++``, or it fails.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise EnvironmentFault(
            "g++ is needed to measure this machine's peak",
            code="UIF-ENV-COMPILER",
            hint="install it with the system's package manager, e.g. apt-get install g++",
        )
    best = Peak({}, 0)
    with tempfile.TemporaryDirectory() as folder:
        for width in VECTOR_BYTES:
            binary = Path(folder, f"peak{width}")
            build = [compiler, *_FLAGS, f"-DVECTOR_BYTES={width}", str(_SOURCE), "-o", str(binary)]
            _run(build)
            gflops = {n: float(_run([str(binary), str(n)])) for n in sorted(set(threads))}
            if not best.gflops or min(gflops.values()) > min(best.gflops.values()):
                best = Peak(gflops, width)
    return best


def higher(first: Peak, second: Peak) -> Peak:
    """The higher of two measurements, for each number of threads."""
    gflops = {n: max(value, second.gflops[n]) for n, value in first.gflops.items()}
    return Peak(gflops, max(first.vector_bytes, second.vector_bytes))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise EnvironmentFault(
            f"{command[0]} failed with code {done.returncode}: {done.stderr.strip()[-500:]}",
            code="UIF-ENV-COMPILER",
            hint="check that g++ can build a C++17 program with threads",
        )
    return done.stdout


def describe(packages: Sequence[str]) -> dict[str, Any]:
    """The machine and the versions of ``packages``, as plain data."""
    return {
        "cpu": cpu_name(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "cpu model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
