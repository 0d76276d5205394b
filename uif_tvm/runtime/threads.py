"""How many worker threads a run uses, and on which thread it may run at all.

TVM keeps one worker pool per calling thread, made at first use and never resized, and its own
default leaves out every second CPU. So each call says how many workers it wants. TVM's workers
also outlive the thread they were made for, so only threads that last make any: the main thread,
and helper threads shared by the whole process, one per call at a time. The last helper to become
free serves next, and a new one starts only when none is free that is large enough; so there are
never more pools than calls that once ran at the same time (for each number of workers).

A call runs on a helper when it wants several workers and

- comes from another thread than the main one;
- or the main thread's pool was made with fewer (by an engine with a smaller ``threads=``);
- or the process was forked since: a pool's workers do not survive that, and waiting for them
  would last for ever.

One thing cannot be mended from here: a child that inherited a pool of several workers aborts when
it leaves through ``exit`` (after Python has finished, when TVM joins workers that are gone).
Children of ``multiprocessing`` leave through ``os._exit`` and are spared; others load after the
fork, or run with one thread before it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from uif_tvm.runtime.host import available_cores

T = TypeVar("T")

# TVM's affinity mode for "these CPUs, shared by all workers": the one mode that takes a count.
_SHARE_ALL = -3
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
#: What TVM reads when it makes a pool; a user's own choice stays.
_POOL_SETTINGS = {
    # Pinning would bind the caller's own thread too, and through it every thread that the
    # application starts later.
    "TVM_BIND_THREADS": "0",
    # Yields before an idle worker sleeps: about 10 ms, far above the gap between two kernels.
    # TVM's 300,000 burn a core for a good while after each run.
    "TVM_THREAD_POOL_SPIN_COUNT": "20000",
}


class _Pool(threading.local):
    """What is known about the calling thread's pool."""

    #: Workers it was made with, the thread itself included; 1 when a fork has left it alone;
    #: ``None`` before it exists.
    size: int | None = None

    def __init__(self) -> None:
        #: Whether the thread lives as long as the process, and so may have workers.
        self.lasting = threading.get_ident() == threading.main_thread().ident


_pool = _Pool()


def _last() -> None:
    _pool.lasting = True


class _Helpers:
    """Threads with pools of their own that no call uses just now, the latest one last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[tuple[int, ThreadPoolExecutor]] = []

    def run(self, threads: int, call: Callable[[], T]) -> T:
        """``call()`` on a helper whose pool has at least ``threads`` workers."""
        size, executor = self._take(threads)

        def work() -> T:
            # Given back here, not by the caller: one that is interrupted leaves earlier.
            try:
                return call()
            finally:
                with self._lock:
                    self._free.append((size, executor))

        return executor.submit(work).result()

    def _take(self, threads: int) -> tuple[int, ThreadPoolExecutor]:
        with self._lock:
            for index in reversed(range(len(self._free))):
                if self._free[index][0] >= threads:
                    return self._free.pop(index)
        return threads, ThreadPoolExecutor(1, f"uif-{threads}-workers", initializer=_last)


_helpers = _Helpers()


def _after_fork_in_child() -> None:
    """Only the forking thread lives on; the workers of its pool and all helpers are gone."""
    global _helpers
    _pool.size = None if _pool.size is None else 1
    _helpers = _Helpers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def default_threads() -> int:
    """``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` where set, else the physical cores we may use."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        asked = os.environ.get(name, "")
        if asked.isdecimal() and int(asked) > 0:
            return int(asked)
    return physical_cores()


def physical_cores() -> int:
    """Cores behind the logical CPUs of this process's affinity; siblings count once."""
    if not hasattr(os, "sched_getaffinity"):
        return available_cores()
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add(Path(_SIBLINGS.format(cpu)).read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def prepare() -> None:
    """Settings that must stand before TVM makes its first pool."""
    for name, value in _POOL_SETTINGS.items():
        os.environ.setdefault(name, value)


def with_workers(ffi: Any, threads: int, call: Callable[[], T]) -> T:
    """``call()`` with ``threads`` workers, on this thread or on a helper.

    Args:
        ffi: the FFI module with TVM's runtime functions registered.
        threads: workers, the calling thread included.
        call: what to run. It must hold all memory that it uses: a caller that is interrupted
            leaves while a helper still runs. Thread-local things are to be looked up inside.
    """
    size = _pool.size
    if (threads == 1 or _pool.lasting) and (size is None or threads <= size):
        ffi.get_global_func("runtime.config_threadpool")(_SHARE_ALL, threads, ["0"] * threads)
        if size is None:
            # Fewer than asked for where other code of this thread has made the pool before.
            size = _pool.size = int(ffi.get_global_func("runtime.NumThreads")())
        if threads <= size:
            return call()
    return _helpers.run(threads, lambda: with_workers(ffi, threads, call))
