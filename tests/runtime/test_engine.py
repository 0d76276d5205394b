"""The engine: right under threads, forks and interrupts; outputs that nobody else writes to."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.models import compiled, constant, imported, linear, save, weights
from uif_tvm import api
from uif_tvm.errors import ArtifactError, InputError, RunError, UsageError
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.runtime.tensors import aligned, aligned_empty
from uif_tvm.signature import Signature, TensorSpec

W = weights(64, 32)


def want(x):
    return np.maximum(x @ W, 0)


def check(engine, seed):
    x = weights(4, 64, seed=seed)
    np.testing.assert_allclose(engine.run(x)[0], want(x), rtol=1e-3, atol=1e-4)


def in_new_process(script: str, *args: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestDescription:
    def test_signature_target_threads_and_text(self, linear_engine):
        assert [str(spec) for spec in linear_engine.inputs] == ["x: float32[4, 64]"]
        assert [str(spec) for spec in linear_engine.outputs] == ["y0: float32[4, 32]"]
        assert linear_engine.target == "cpu"
        assert linear_engine.threads >= 1
        assert repr(linear_engine) == (
            "<uif.Engine on cpu: (x: float32[4, 64]) -> (y0: float32[4, 32])>"
        )

    def test_placement_and_report(self, linear_engine):
        rows = {row["op"]: row["where"] for row in linear_engine.placement()}
        assert rows == {"matmul": "native", "relu": "native"}
        assert linear_engine.report["optimize_level"] == 2

    @pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
    def test_threads_must_be_a_positive_integer(self, linear_file, threads):
        with pytest.raises(UsageError, match="positive integer") as caught:
            api.load(linear_file, threads=threads)
        assert caught.value.code == "UIF-USAGE-THREADS"

    def test_unknown_target(self, linear_file):
        with pytest.raises(ArtifactError):
            api.load(linear_file, target="npu")

    @pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_copies_are_refused_with_the_remedy(self, linear_engine, copier):
        with pytest.raises(UsageError, match="cannot be pickled") as caught:
            copier(linear_engine)
        assert "uif.load" in caught.value.hint


class TestZeroCopy:
    def test_aligned_inputs_reach_the_kernel_where_they_lie(self, linear_engine, monkeypatch):
        seen = []
        real = linear_engine._vm.tensor

        def watch(array):
            tensor = real(array)
            seen.append(tensor)
            return tensor

        monkeypatch.setattr(linear_engine._vm, "tensor", watch)
        x = aligned_empty((4, 64), np.dtype(np.float32))
        x[...] = weights(4, 64)
        linear_engine.run(x)
        assert np.from_dlpack(seen[-2]).ctypes.data == x.ctypes.data
        read_only = x.view()
        read_only.flags.writeable = False
        linear_engine.run(read_only)
        assert np.from_dlpack(seen[-2]).ctypes.data == x.ctypes.data

    def test_inputs_are_never_written(self, aliasing):
        x = aligned(weights(4, 6))
        before = x.copy()
        for output in aliasing.run(x):
            output[...] = -1
        np.testing.assert_array_equal(x, before)

    def test_weights_are_mapped_not_copied(self, linear_engine, linear_file):
        (spot,) = [array.ctypes.data for array in linear_engine._weights]
        rows = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        mine = [
            row
            for row in rows
            if row[-1] == str(linear_file)
            and int(row[0].split("-")[0], 16) <= spot < int(row[0].split("-")[1], 16)
        ]
        assert len(mine) == 1
        assert mine[0][1] == "r--s" or mine[0][1].startswith("r--")


class TestOutputs:
    def test_values(self, aliasing):
        x, table = weights(4, 6, seed=2), weights(4, 6)
        same, flat, const, view, total, again, square = aliasing.run(x)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(flat, x.reshape(-1))
        np.testing.assert_array_equal(const, table)
        np.testing.assert_array_equal(view, table.reshape(2, 12))
        for output in (total, again, square.reshape(4, 6)):
            np.testing.assert_array_equal(output, x + x)

    def test_no_two_share_memory_and_all_may_be_written(self, aliasing):
        x = aligned(weights(4, 6))
        first = aliasing.run(x)
        taken = [*first, x, *aliasing._weights]
        for index, output in enumerate(first):
            assert output.flags.writeable
            for other in taken[index + 1 :]:
                assert not np.shares_memory(output, other)

    def test_writing_to_outputs_changes_no_later_run(self, aliasing):
        x = weights(4, 6)
        before = [output.copy() for output in aliasing.run(x)]
        for output in aliasing.run(x):
            output[...] = np.nan
        for output, expected in zip(aliasing.run(x), before, strict=True):
            np.testing.assert_array_equal(output, expected)

    def test_stay_valid_after_later_runs_and_after_the_engine(self, linear_file):
        engine = api.load(linear_file)
        xs = [weights(4, 64, seed=seed) for seed in range(30)]
        kept = [engine.run(x)[0] for x in xs]
        del engine
        gc.collect()
        scratch = [np.full((4, 32), -1, np.float32) for _ in range(100)]
        for x, output in zip(xs, kept, strict=True):
            np.testing.assert_allclose(output, want(x), rtol=1e-3, atol=1e-4)
        assert len(scratch) == 100

    def test_weights_returned_outlive_engine_and_file(self, tmp_path):
        table = weights(50, 7)
        model = imported([], lambda: [constant(table)])
        path = save(tmp_path / "m.uif", model, compiled(model))
        engine = api.load(path)
        (output,) = engine.run()
        path.unlink()
        del engine
        gc.collect()
        np.testing.assert_array_equal(output, table)


class TestFile:
    def test_may_be_deleted(self, tmp_path, linear_file):
        path = tmp_path / "m.uif"
        path.write_bytes(linear_file.read_bytes())
        engine = api.load(path)
        path.unlink()
        check(engine, 1)

    def test_may_be_replaced_by_another_model(self, tmp_path, linear_file):
        path = tmp_path / "m.uif"
        path.write_bytes(linear_file.read_bytes())
        engine = api.load(path)
        model = imported([("x", (2,), "float32")], lambda x: [relax.op.negative(x)])
        save(path, model, compiled(model))
        check(engine, 1)
        np.testing.assert_array_equal(api.load(path).run(np.ones(2, np.float32))[0], [-1, -1])
        check(engine, 2)


class TestThreads:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_eight_threads_on_one_engine(self, linear_file, threads):
        engine = api.load(linear_file, threads=threads)

        def work(first):
            for seed in range(first, first + 200):
                check(engine, seed)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(0, 8 * 200, 200)))
        assert engine.get_stats()["runs"] == 1600

    def test_many_engines_at_once(self, linear_file):
        engines = [api.load(linear_file, threads=1 + n % 3) for n in range(12)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda job: check(*job), [(e, s) for s in range(10) for e in engines]))

    def test_machines_of_dead_threads_are_released(self, linear_engine):
        class Marker:
            pass

        markers = []

        def work(seed):
            check(linear_engine, seed)
            marker = linear_engine._vm._local.marker = Marker()
            markers.append(weakref.ref(marker))

        for seed in range(20):
            thread = threading.Thread(target=work, args=(seed,))
            thread.start()
            thread.join()
        gc.collect()
        # Whatever hangs on a thread's machine goes with the thread.
        assert [ref() for ref in markers] == [None] * 20

    def test_two_threads_overlap(self, tmp_path):
        """A run releases the interpreter lock: Python code goes on meanwhile."""
        side = 1000
        model = imported(
            [("x", (side, side), "float32"), ("y", (side, side), "float32")],
            lambda x, y: [relax.op.matmul(x, relax.op.matmul(x, y))],
        )
        engine = api.load(save(tmp_path / "m.uif", model, compiled(model)), threads=1)
        x = weights(side, side)
        engine.run(x, x)
        real, window = engine._vm._local.machines[0].entry, []

        def timed(*args):
            window.append(time.perf_counter())
            results = real(*args)
            window.append(time.perf_counter())
            return results

        engine._vm._local.machines[0].entry = timed
        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.perf_counter())

        thread = threading.Thread(target=tick)
        thread.start()
        for _ in range(10):
            window.clear()
            engine.run(x, x)
            third = (window[1] - window[0]) / 3
            inside = [t for t in ticks if window[0] + third < t < window[1] - third]
            if inside:
                break
        done.set()
        thread.join()
        # With the lock held, nothing could tick in the middle of the native call.
        assert inside


class TestFork:
    SCRIPT = """
import os, sys, signal
import numpy as np
from uif_tvm import api
threads = int(sys.argv[2])
engine = api.load(sys.argv[1], threads=threads)
x = np.ones((4, 64), np.float32)
want = engine.run(x)[0]
def child():
    signal.alarm(60)  # a deadlock ends as a signal
    for _ in range(3):
        assert np.array_equal(engine.run(x)[0], want)
    assert np.array_equal(api.load(sys.argv[1], threads=threads + 1).run(x)[0], want)
def safely(work):
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)
pid = os.fork()
if pid == 0:
    def again():
        child()
        pid = os.fork()
        if pid == 0:
            safely(child)
        assert os.waitpid(pid, 0)[1] == 0
    safely(again)
status = os.waitpid(pid, 0)[1]
assert status == 0, status
assert np.array_equal(engine.run(x)[0], want)
print("fine")
"""

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_child_can_run(self, tmp_path, threads):
        # Large enough that the kernel's loop really is shared among workers.
        model = imported(
            [("x", (4, 64), "float32")],
            lambda x: [
                relax.op.nn.relu(
                    relax.op.matmul(
                        relax.op.matmul(x, constant(weights(64, 4096))), constant(weights(4096, 64))
                    )
                )
            ],
        )
        path = save(tmp_path / "m.uif", model, compiled(model))
        assert in_new_process(self.SCRIPT, path, str(threads)) == "fine\n"

    def test_multiprocessing_pool(self, linear_file):
        script = """
import sys, multiprocessing
import numpy as np
from uif_tvm import api
engine = api.load(sys.argv[1], threads=2)
x = np.ones((4, 64), np.float32)
want = engine.run(x)[0]
def work(_):
    return bool(np.array_equal(engine.run(x)[0], want))
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert all(pool.map_async(work, range(20)).get(60))
print("fine")
"""
        assert in_new_process(script, linear_file) == "fine\n"


class TestFailures:
    def test_kernel_error_is_typed_and_the_engine_goes_on(self, linear_engine, monkeypatch):
        def fail(*_args):
            raise ValueError("kernel said no")

        with monkeypatch.context() as patch:
            patch.setattr(linear_engine._vm._local.machines[0], "entry", fail)
            with pytest.raises(RunError, match="ValueError: kernel said no") as caught:
                linear_engine.run(weights(4, 64))
        assert caught.value.target == "cpu"
        assert isinstance(caught.value.__cause__, ValueError)
        assert linear_engine.get_stats()["runs"] == 0
        check(linear_engine, 3)

    @pytest.mark.parametrize("names", [["count"], []])
    def test_value_that_was_compiled_in(self, tmp_path, names):
        builder = relax.BlockBuilder()
        count = relax.Var("count", relax.TensorType([1], "int64"))
        with builder.function("main", [count]):
            read = builder.emit(relax.op.tensor_to_shape(count))
            builder.match_cast(read, relax.ShapeType([tvm.tirx.IntImm("int64", 3)]))
            builder.emit_func_output(relax.Tuple([builder.emit(relax.op.add(count, count))]))
        signature = Signature(
            (TensorSpec("count", (1,), "int64"),), (TensorSpec("y0", (1,), "int64"),)
        )
        model = ImportedModel(builder.get(), signature, "test", specialised=tuple(names))
        engine = api.load(save(tmp_path / "m.uif", model, compiled(model)))
        assert engine.run([3])[0].tolist() == [6]
        with pytest.raises(InputError, match="compiled for other input values") as caught:
            engine.run([4])
        assert caught.value.code == "UIF-RUN-SPECIALISED"
        assert ("'count'" in caught.value.message) == bool(names)
        assert "export the model again" in caught.value.hint
        assert engine.run([3])[0].tolist() == [6]

    @pytest.mark.parametrize("threads", [1, 2])
    def test_interrupt_during_a_run(self, tmp_path, threads):
        # What runs in the background of a shell starts with interrupts ignored.
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)
        side = 700
        model = imported(
            [("x", (side, side), "float32"), ("y", (side, side), "float32")],
            lambda x, y: [relax.op.matmul(x, relax.op.matmul(x, y))],
        )
        engine = api.load(save(tmp_path / "m.uif", model, compiled(model)), threads=threads)
        x = weights(side, side)
        expected = engine.run(x, x)[0]
        interrupts = 0
        for delay in (0.001, 0.003, 0.01, 0.02):
            signal.setitimer(signal.ITIMER_REAL, delay)
            old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
            try:
                for _ in range(200):
                    engine.run(x, x)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, old)
            np.testing.assert_array_equal(engine.run(x, x)[0], expected)
        signal.signal(signal.SIGINT, usual)
        assert interrupts == 4


class TestStats:
    def test_before_any_run(self, linear_engine):
        stats = linear_engine.get_stats()
        assert stats["runs"] == 0
        assert stats["latency_ms"] is None
        assert stats["first_run_ms"] is None
        assert stats["load_ms"] > 0

    def test_after_runs(self, linear_engine):
        check(linear_engine, 1)
        stats = linear_engine.get_stats()
        assert stats["latency_ms"] == stats["first_run_ms"] > 0
        for seed in range(10):
            check(linear_engine, seed)
        stats = linear_engine.get_stats()
        assert stats["runs"] == 11
        assert 0 < stats["latency_ms"] <= stats["latency_p90_ms"] <= stats["latency_p99_ms"]
        assert stats["op_count"] == sum(stats["kernels_by_kind"].values()) == 1
        assert stats["host_fallbacks"] == 0
        assert stats["target"] == "cpu"

    def test_memory_is_weights_activations_inputs_and_outputs(self, linear_engine):
        planned = linear_engine.get_stats()["peak_memory_mb"] * (1 << 20)
        # The one activation is the output.
        assert planned == 4 * (64 * 32 + 4 * 64 + 4 * 32)
        assert linear_engine.get_stats()["process_peak_mb"] > 1

    def test_caller_may_change_the_answer(self, linear_engine):
        linear_engine.get_stats().clear()
        linear_engine.placement().clear()
        assert linear_engine.get_stats()
        assert linear_engine.placement()

    def test_memory_is_unknown_where_an_extent_is(self, two, tmp_path):
        assert two.get_stats()["peak_memory_mb"] is None
        assert "activations" not in two.report["memory"]
        # Known activations do not help when an input's size is open.
        inputs = [("x", (3,), "float32"), ("unused", ("n",), "float32")]
        model = imported(inputs, lambda x, unused: [relax.op.exp(x)])
        made = api.load(save(tmp_path / "m.uif", model, compiled(model)))
        assert made.report["memory"]["activations"] == 12
        assert made.get_stats()["peak_memory_mb"] is None


class TestLeaks:
    def resident(self):
        gc.collect()
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_runs(self, linear_engine, echoes):
        x, y = weights(4, 64), weights(64, 4)

        def batch(count):
            for _ in range(count):
                linear_engine.run(x)
                echoes["float32"].run(y)

        batch(200)
        before = self.resident()
        batch(2000)
        # One kept output a run would be over 2 MiB.
        assert self.resident() - before < 1 << 20

    def test_loading_and_unloading(self, tmp_path):
        model = imported(
            [("x", (4, 512), "float32")],
            lambda x: [relax.op.matmul(x, constant(weights(512, 512)))],
        )
        path = save(tmp_path / "m.uif", model, compiled(model))
        x = weights(4, 512)

        def cycle(count):
            for _ in range(count):
                api.load(path).run(x)

        cycle(10)
        before, maps = self.resident(), len(Path("/proc/self/maps").read_text().splitlines())
        cycle(50)
        # One kept mapping of the weights an engine would be 50 MiB.
        assert self.resident() - before < 8 << 20
        assert len(Path("/proc/self/maps").read_text().splitlines()) - maps < 25


def test_loading_and_running_need_neither_the_compiler_nor_a_model_framework(linear_file):
    script = """
import sys
import uif
heavy = {"numpy", "tvm", "torch", "onnx", "tvm_ffi"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
engine = uif.load(sys.argv[1])
import numpy as np
engine.run(np.ones((4, 64), np.float32))
engine.get_stats()
heavy -= {"numpy", "tvm_ffi"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
print("fine")
"""
    assert in_new_process(script, linear_file) == "fine\n"


def test_linear_is_what_the_fixtures_say(linear_engine):
    assert linear().signature.inputs == linear_engine.inputs
    check(linear_engine, 0)
