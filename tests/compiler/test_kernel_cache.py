"""The kernel cache: damage, races, full disks and read-only folders cost time, never rightness."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from uif_tvm.compiler.kernel_cache import CompiledKernel, KernelCache
from uif_tvm.errors import EnvironmentFault

KERNEL = CompiledKernel(
    code=bytes(range(256)) * 8,
    symbol="add_0123",
    rule="generic",
    kind="generic",
    detail="vectors of 16",
    declined=("conv2d: no: because",),
    flops=12.0,
)
KEY = "0" * 32


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "a" / "b")


def test_round_trip(cache):
    assert cache.get(KEY) is None
    assert cache.put(KEY, KERNEL)
    assert cache.get(KEY) == KERNEL


def test_no_folder_keeps_nothing():
    cache = KernelCache(None)
    assert not cache.put(KEY, KERNEL)
    assert cache.get(KEY) is None
    assert cache.prune(0) == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_a_miss(data):
    sound = KERNEL.to_bytes()
    at = data.draw(st.integers(0, len(sound) - 1))
    if data.draw(st.booleans()):
        damaged = sound[:at]
    else:
        flipped = bytearray(sound)
        flipped[at] ^= 1 << data.draw(st.integers(0, 7))
        damaged = bytes(flipped)
    assert CompiledKernel.from_bytes(damaged) is None
    assert CompiledKernel.from_bytes(sound) == KERNEL


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x02\x00\x00\x00[]",
        b"\x04\x00\x00\x00null",
        b'\x03\x00\x00\x00"x"',
        b'\x0f\x00\x00\x00{"declined": 1}',
        b'\x10\x00\x00\x00{"declined": []}',
        b"\xff\xff\xff\xff{}",
    ],
)
def test_sound_digest_over_another_versions_content_is_a_miss(body):
    assert CompiledKernel.from_bytes(blake3(body).digest() + body) is None


def test_damage_on_disk_is_mended_by_the_next_put(cache, tmp_path):
    cache.put(KEY, KERNEL)
    (path,) = (tmp_path / "a" / "b").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.get(KEY) is None
    cache.put(KEY, KERNEL)
    assert cache.get(KEY) == KERNEL


def _hammer(folder: Path, seed: int, wrong: multiprocessing.Queue) -> None:
    cache = KernelCache(folder)
    mine = replace(KERNEL, code=KERNEL.code * (seed + 1), symbol=f"from_{seed}")
    for turn in range(200):
        cache.put(KEY, mine)
        found = cache.get(KEY)
        # Another writer's kernel is as good; a mixture of two is not.
        if found is None or len(found.code) != len(KERNEL.code) * (int(found.symbol[-1]) + 1):
            wrong.put((seed, turn))
        if turn % 20 == 0:
            cache.prune(1 << 30)


def test_writers_on_several_processes(tmp_path):
    spawn = multiprocessing.get_context("fork")
    wrong = spawn.Queue()
    writers = [spawn.Process(target=_hammer, args=(tmp_path, seed, wrong)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert wrong.empty()
    assert [path.suffix for path in tmp_path.iterdir()] == [".kernel"]


def test_read_only_folder_still_serves(cache, tmp_path, monkeypatch):
    cache.put(KEY, KERNEL)

    def refuse(*_args, **_kwargs):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert cache.get(KEY) == KERNEL
    assert not cache.put("1" * 32, KERNEL)
    assert cache.prune(0) == 0


def test_full_disk_costs_the_entry_only(tmp_path):
    script = f"""
import resource, signal
from pathlib import Path
from tests.compiler.test_kernel_cache import KERNEL, KEY
from uif_tvm.compiler.kernel_cache import KernelCache
cache = KernelCache(Path({str(tmp_path)!r}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
assert not cache.put(KEY, KERNEL)
assert cache.get(KEY) is None
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("under", ["", "deeper"])
def test_folder_that_cannot_be_made(tmp_path, under):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault) as caught:
        KernelCache(tmp_path / "file" / under)
    assert caught.value.code == "UIF-ENV-CACHE"
    assert "cache_dir=None" in caught.value.hint
    assert caught.value.stage == "compile"


def test_prune_takes_the_least_recently_used(cache, tmp_path):
    folder = tmp_path / "a" / "b"
    keys = [str(n) * 32 for n in range(4)]
    for age, key in enumerate(keys):
        cache.put(key, KERNEL)
        os.utime(folder / f"{key}.kernel", (1000 + age, 1000 + age))
    assert cache.get(keys[0])  # a hit makes the oldest the youngest
    size = (folder / f"{keys[0]}.kernel").stat().st_size
    assert cache.prune(2 * size) == 2
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True]


def test_prune_removes_what_dead_writers_left_but_not_live_ones(cache, tmp_path):
    folder = tmp_path / "a" / "b"
    for name, age in ((".tmp-dead", 10**9), (".tmp-live", None), ("README", 10**9)):
        (folder / name).write_text("x")
        if age:
            os.utime(folder / name, (age, age))
    cache.prune()
    assert sorted(path.name for path in folder.iterdir()) == [".tmp-live", "README"]
