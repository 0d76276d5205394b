"""Ten thousand runs take no more memory than a few hundred."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.models import constant, engine, imported, weights

RUNS = 10_000
#: Runs until caches, thread pools and the allocator's free lists are what they will be.
WARM = 500
#: A page more per hundred runs would be 400 KiB.
MOST = 384 << 10

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="resident size is read from /proc"
)


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("level", [0, 2, 3])
@pytest.mark.parametrize("extent", [8, "n"])
def test_memory_does_not_grow_over_ten_thousand_runs(
    level: int, extent: int | str, tmp_path: Path
) -> None:
    matrix = constant(weights(32, 32))

    def body(x: relax.Var) -> list[relax.Expr]:
        hidden = relax.op.nn.relu(relax.op.matmul(x, matrix))
        return [relax.op.add(relax.op.nn.softmax(hidden), x), relax.op.sum(hidden, 1)]

    model = imported([("x", (extent, 32), "float32")], body)
    loaded = engine(tmp_path, model, level=level, threads=1)
    feeds = [np.full((n, 32), 0.5, np.float32) for n in ((8,) if extent == 8 else (8, 3, 20))]

    def run(times: int) -> None:
        for number in range(times):
            loaded.run(feeds[number % len(feeds)])

    run(WARM)
    arena, before = loaded.get_stats()["arena_bytes"], resident()
    run(RUNS)
    assert resident() - before < MOST
    stats = loaded.get_stats()
    assert stats["arena_bytes"] == arena
    assert stats["runs"] == WARM + RUNS
    if level >= 2 and extent == 8:
        assert stats["measured_peak_mb"] == pytest.approx(stats["planned_peak_mb"], rel=0.05)


def test_a_leak_of_a_small_array_would_be_seen() -> None:
    """In a process of its own: this one may have freed memory left over to serve it from."""
    script = (
        "import numpy as np\n"
        "from tests.memory.test_growth import MOST, RUNS, resident\n"
        "before, kept = resident(), []\n"
        "for _ in range(RUNS):\n"
        "    kept.append(np.zeros(32, np.float32))\n"
        "assert resident() - before > MOST\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
