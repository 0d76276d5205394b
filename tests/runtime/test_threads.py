"""Worker threads: as many as asked for, never the wrong pool, nothing bound to a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from uif_tvm.runtime import threads
from uif_tvm.runtime.ffi import runtime

FFI = runtime()


def in_thread(work):
    """Results of ``work`` in a new thread, which has no pool yet."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def workers():
    """Workers of the pool that serves the calling thread, and the thread's id."""
    return FFI.get_global_func("runtime.NumThreads")(), threading.get_ident()


def ask(count):
    return threads.with_workers(FFI, count, workers)


def names():
    """Helpers of the process by name."""
    return [t.name for t in threading.enumerate() if t.name.startswith("uif-")]


def test_pool_is_made_with_what_is_asked():
    assert in_thread(lambda: ask(3)[0]) == 3


def test_one_worker_is_the_caller():
    assert in_thread(lambda: ask(1) == (1, threading.get_ident()))


def test_several_are_served_by_one_helper_that_is_kept():
    seen = in_thread(lambda: [ask(n) for n in (1, 4, 2, 4, 1)])
    assert [count for count, _ in seen] == [1, 4, 2, 4, 1]
    where = [thread for _, thread in seen]
    assert where[0] == where[4]
    assert where[1] == where[2] == where[3] != where[0]
    # Another caller, after the first has ended, gets the same helper.
    assert in_thread(lambda: ask(4)[1]) == where[1]


def test_calls_at_once_get_a_helper_each_and_no_more(monkeypatch):
    monkeypatch.setattr(threads, "_helpers", threads._Helpers())
    before = len(names())
    meet = threading.Barrier(3)

    def both():
        meet.wait(30)
        return workers()

    def at_once():
        with ThreadPoolExecutor(3) as callers:
            return list(callers.map(lambda _: threads.with_workers(FFI, 2, both), range(3)))

    for _ in range(5):
        seen = at_once()
        assert [count for count, _ in seen] == [2, 2, 2]
        assert len({where for _, where in seen}) == 3
    assert len(names()) - before == 3


def test_main_thread_keeps_its_own_pool():
    script = """
import threading
from uif_tvm.runtime import threads
from uif_tvm.runtime.ffi import runtime
me = threading.get_ident()
ask = lambda n: threads.with_workers(runtime(), n, threading.get_ident)
print([ask(n) == me for n in (2, 1, 2, 3, 2)])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[True, True, True, False, True]"


def test_pool_that_other_code_made_smaller_is_noticed():
    def work():
        FFI.get_global_func("runtime.config_threadpool")(-3, 1, ["0"])
        return ask(2)

    assert in_thread(work)[0] == 2


def test_errors_come_back_from_a_helper():
    def fail():
        raise KeyError("inside")

    def work():
        ask(1)
        with pytest.raises(KeyError, match="inside"):
            threads.with_workers(FFI, 2, fail)
        return ask(2)[0]

    assert in_thread(work) == 2


def test_callers_that_end_leave_no_threads_behind(linear_file):
    script = """
import os, sys, threading, time
import numpy as np
from uif_tvm import api
engine = api.load(sys.argv[1], threads=2)
x = np.ones((4, 64), np.float32)
want = engine.run(x)[0]
tasks = lambda: len(os.listdir("/proc/self/task"))
before, right = tasks(), []
def work():
    right.append(np.array_equal(engine.run(x)[0], want))
for _ in range(50):
    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
# A joined thread may be listed for another moment.
for _ in range(100):
    if tasks() - before <= 8:
        break
    time.sleep(0.02)
print(len(right), all(right), tasks() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(linear_file)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    count, right, more = done.stdout.split()
    assert (count, right) == ("200", "True")
    # Four calls at once: four helpers with one worker each.
    assert int(more) <= 8


def test_one_thread_spawns_nothing(linear_file):
    script = """
import os, sys
import numpy as np
from uif_tvm import api
x = np.ones((4, 64), np.float32)
before = len(os.listdir("/proc/self/task"))
engine = api.load(sys.argv[1], threads=1)
for _ in range(3):
    engine.run(x)
one = len(os.listdir("/proc/self/task"))
other = api.load(sys.argv[1], threads=3)
other.run(x)
# A helper thread and its two workers.
print(one - before, len(os.listdir("/proc/self/task")) - one, engine.threads, other.threads)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(linear_file)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == ["0", "3", "1", "3"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_callers_thread_stays_free():
    before = os.sched_getaffinity(0)
    assert in_thread(lambda: (ask(1), ask(2), os.sched_getaffinity(0))[-1]) == before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TVM_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"TVM_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"TVM_NUM_THREADS": "", "OMP_NUM_THREADS": "2,2"}, 7),
        ({"TVM_NUM_THREADS": "0"}, 7),
        ({"TVM_NUM_THREADS": "-2"}, 7),
        ({}, 7),
    ],
)
def test_default(monkeypatch, environment, expected):
    monkeypatch.setattr(threads, "physical_cores", lambda: 7)
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert threads.default_threads() == expected


def test_siblings_count_once(monkeypatch, tmp_path):
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2")):
        (tmp_path / str(cpu)).write_text(siblings + "\n")
    monkeypatch.setattr(threads, "_SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert threads.physical_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 9})
    assert threads.physical_cores() == 2  # CPU 9's siblings are unknown: a core of its own


def test_settings_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    monkeypatch.delenv("TVM_THREAD_POOL_SPIN_COUNT", raising=False)
    threads.prepare()
    assert os.environ["TVM_BIND_THREADS"] == "1"
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == "20000"
