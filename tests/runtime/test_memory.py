"""Arenas and results: what a run allocates, who owns it, and that runs never share it."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.compiler.test_lower import Branches
from tests.models import compiled, constant, imported, linear, save, weights
from uif_tvm import api
from uif_tvm.errors import InputError
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.runtime.engine import Engine
from uif_tvm.runtime.tensors import aligned, aligned_empty
from uif_tvm.signature import Signature, TensorSpec

SIDE = 256
#: Every operator a kernel of its own, so that there are tensors between them.
ALONE = ("*",)


def chain(x, length: int = 5):
    """Softmaxes, each with a tensor where fusion is off."""
    for _ in range(length):
        x = relax.op.nn.softmax(x)
    return x


def softmaxes(x: np.ndarray, length: int = 5) -> np.ndarray:
    for _ in range(length):
        e = np.exp(x - x.max(-1, keepdims=True))
        x = e / e.sum(-1, keepdims=True)
    return x


@pytest.fixture(scope="module")
def chain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = imported([("x", (SIDE, SIDE), "float32")], lambda x: [chain(x)])
    return save(
        tmp_path_factory.mktemp("chain") / "m.uif", model, compiled(model, disabled_fusion=ALONE)
    )


@pytest.fixture
def chain_engine(chain_file: Path) -> Engine:
    return api.load(chain_file, threads=1)


def check(engine: Engine, seed: int) -> None:
    x = weights(SIDE, SIDE, seed=seed)
    np.testing.assert_allclose(engine.run(x)[0], softmaxes(x), rtol=1e-4, atol=1e-6)


class TestPeak:
    def test_planned_is_measured(self, chain_engine):
        stats = chain_engine.get_stats()
        # The result lies in the caller's memory; the others take turns in two places.
        assert stats["arena_bytes"] == 2 * SIDE * SIDE * 4
        assert stats["measured_peak_mb"] is None
        check(chain_engine, 0)
        stats = chain_engine.get_stats()
        assert stats["planned_peak_mb"] == 3 * SIDE * SIDE * 4 / 2**20
        assert stats["measured_peak_mb"] == pytest.approx(stats["planned_peak_mb"], rel=0.05)

    def test_what_numpy_really_allocates(self, chain_file):
        """NumPy reports its data to tracemalloc: a count that is independent of ours."""
        api.load(chain_file, threads=1).run(weights(SIDE, SIDE))
        x = aligned(weights(SIDE, SIDE))
        tracemalloc.start()
        try:
            engine = api.load(chain_file, threads=1)
            loaded = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            engine.run(x)
            run = tracemalloc.get_traced_memory()[1] - loaded
        finally:
            tracemalloc.stop()
        planned = engine.get_stats()["planned_peak_mb"] * 2**20
        arena = engine.get_stats()["arena_bytes"]
        assert run == pytest.approx(planned - arena, rel=0.05)
        assert loaded >= arena

    def test_the_virtual_machine_allocates_nothing(self, chain_file):
        calls = []
        real = tvm.get_global_func("vm.builtin.alloc_storage")

        def watch(*args):
            calls.append(args)
            return real(*args)

        tvm.register_global_func("vm.builtin.alloc_storage", watch, override=True)
        try:
            planned = api.load(chain_file, threads=1)
            check(planned, 1)
            assert calls == []
        finally:
            tvm.register_global_func("vm.builtin.alloc_storage", real, override=True)

    def test_ten_thousand_runs(self, tmp_path):
        model = imported([("x", (4, 16), "float32")], lambda x: [chain(x)])
        engine = api.load(
            save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)), threads=1
        )
        x, out = aligned(weights(4, 16)), engine.empty_outputs()

        def resident() -> int:
            gc.collect()
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def runs(count: int) -> None:
            for _ in range(count):
                engine.run(x)
                engine.run_into(out, x)

        runs(500)
        before, bytes_before = resident(), engine.get_stats()["measured_peak_mb"]
        runs(5000)
        # One kept result a run would be over 5 MiB with what NumPy keeps beside it.
        assert resident() - before < 1 << 20
        assert engine.get_stats()["measured_peak_mb"] == bytes_before

    def test_open_extents_are_not_measured(self, tmp_path):
        model = imported([("x", ("n", 4), "float32")], lambda x: [chain(x)])
        engine = api.load(save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)))
        for rows in (3, 0, 50):
            x = weights(rows, 4)
            np.testing.assert_allclose(engine.run(x)[0], softmaxes(x), rtol=1e-4, atol=1e-6)
        stats = engine.get_stats()
        assert (stats["planned_peak_mb"], stats["measured_peak_mb"]) == (None, None)
        assert "in each run" in engine.report["memory_plan"]["note"]


class TestThreads:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_each_thread_has_its_arena(self, chain_file, threads):
        engine = api.load(chain_file, threads=threads)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda seed: check(engine, seed), range(60)))

    def test_the_arena_goes_with_the_thread(self, chain_file):
        engine = api.load(chain_file, threads=1)
        sizes = []

        def work() -> None:
            check(engine, 0)
            sizes.append(len(engine._vm._local.machines))

        for _ in range(20):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert sizes == [1] * 20

    def test_a_run_inside_a_run_has_memory_of_its_own(self, chain_engine, monkeypatch):
        machine = chain_engine._vm._local.machines[0]
        real, depth = machine.entry, []

        def nested(*args):
            # The arena holds tensors of this run while another run begins and ends.
            machine.arenas[0][:] = 0x55
            if not depth:
                depth.append(1)
                check(chain_engine, 7)
            assert (machine.arenas[0] == 0x55).all()
            return real(*args)

        monkeypatch.setattr(machine, "entry", nested)
        check(chain_engine, 3)
        assert len(chain_engine._vm._local.machines) == 2

    def test_several_engines_interleaved(self, chain_file, tmp_path):
        other = api.load(save(tmp_path / "m.uif", linear(), compiled(linear())), threads=1)
        engines = [api.load(chain_file, threads=1) for _ in range(3)]
        x = weights(4, 64)
        for seed in range(4):
            for engine in engines:
                check(engine, seed)
                expected = np.maximum(x @ weights(64, 32), 0)
                np.testing.assert_allclose(other.run(x)[0], expected, rtol=1e-3, atol=1e-4)


class TestResults:
    def test_results_that_lie_in_the_arena_are_copied_out(self, tmp_path):
        """A branch decides which tensor is the result, so that none can be written directly."""
        signature = Signature(
            (TensorSpec("x", (4,), "float32"), TensorSpec("flag", (), "bool")),
            (TensorSpec("y", (4,), "float32"),),
        )
        model = ImportedModel(Branches, signature, "test")
        engine = api.load(
            save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)), threads=1
        )
        x, c = weights(4), np.array([2, 3, 4, 5], np.float32)
        kept = [
            (engine.run(x * n, np.array(flag))[0], n, flag)
            for n in (1, 2)
            for flag in (True, False)
        ]
        for result, n, flag in kept:
            want = x * n * c + 1 if flag else np.exp(x * n - c)
            np.testing.assert_allclose(result, want, rtol=1e-5)

    def test_a_result_and_its_reshape_and_a_later_use(self, tmp_path):
        def body(x):
            y = chain(x, 2)
            flat = relax.op.reshape(y, (64,))
            return [flat, y, chain(y, 2), relax.op.reshape(flat, (2, 32))]

        model = imported([("x", (4, 16), "float32")], body)
        engine = api.load(
            save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)), threads=1
        )
        x = weights(4, 16)
        flat, y, later, again = engine.run(x)
        np.testing.assert_allclose(y, softmaxes(x, 2), rtol=1e-4)
        np.testing.assert_allclose(later, softmaxes(x, 4), rtol=1e-4)
        np.testing.assert_array_equal(flat, y.reshape(64))
        np.testing.assert_array_equal(again, y.reshape(2, 32))
        for one, other in ((flat, y), (flat, again), (y, again)):
            assert not np.shares_memory(one, other)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "int8", "uint64"])
    def test_element_types(self, tmp_path, dtype):
        def body(x):
            return [relax.op.concat(relax.op.split(x, 2, axis=1), axis=1), relax.op.flip(x, 1)]

        model = imported([("x", (3, 4), dtype)], body)
        engine = api.load(
            save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)), threads=1
        )
        x = (np.arange(12).reshape(3, 4) % 3).astype(aligned_empty((1,), _numpy(dtype)).dtype)
        same, flipped = engine.run(x)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(flipped, x[:, ::-1])
        out = engine.empty_outputs()
        assert engine.run_into(out, x)[1] is out[1]
        np.testing.assert_array_equal(out[1], x[:, ::-1])


def _numpy(name: str) -> np.dtype:
    from uif_tvm.runtime.tensors import numpy_dtype

    return numpy_dtype(name)


class TestRunInto:
    def test_written_where_the_caller_wants_it(self, chain_engine):
        out = chain_engine.empty_outputs()
        x = aligned(weights(SIDE, SIDE))
        tracemalloc.start()
        try:
            chain_engine.run_into(out, x)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            (result,) = chain_engine.run_into(out, x)
            grown = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert result is out[0]
        assert grown < SIDE * SIDE * 4 / 4  # no tensor, only handles
        np.testing.assert_allclose(out[0], softmaxes(x), rtol=1e-4, atol=1e-6)

    def test_by_name_and_inputs_by_name(self, chain_engine):
        x, out = weights(SIDE, SIDE), np.empty((SIDE, SIDE), np.float32)
        assert chain_engine.run_into({"y0": out}, x=x)[0] is out
        np.testing.assert_allclose(out, softmaxes(x), rtol=1e-4, atol=1e-6)

    def test_left_out(self, chain_engine):
        x = weights(SIDE, SIDE)
        for out in ([None], {}):
            result = chain_engine.run_into(out, x)[0]
            np.testing.assert_allclose(result, softmaxes(x), rtol=1e-4, atol=1e-6)

    def test_arrays_of_any_strides(self, chain_engine):
        x = weights(SIDE, SIDE)
        wide = np.zeros((SIDE, 2 * SIDE), np.float32)
        chain_engine.run_into([wide[:, ::2]], x)
        np.testing.assert_allclose(wide[:, ::2], softmaxes(x), rtol=1e-4, atol=1e-6)
        assert not wide[:, 1::2].any()

    def test_inputs_and_weights_returned(self, tmp_path):
        table = weights(4, 6, seed=9)
        model = imported([("x", (4, 6), "float32")], lambda x: [x, constant(table)])
        engine = api.load(save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)))
        x, out = weights(4, 6), engine.empty_outputs()
        engine.run_into(out, x)
        np.testing.assert_array_equal(out[0], x)
        np.testing.assert_array_equal(out[1], table)

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            ([], "arrays for 1 outputs"),
            (np.empty((SIDE, SIDE), np.float32), "got ndarray"),
            ({"z": None}, "no output 'z'"),
            ([np.empty((SIDE, SIDE), np.float64)], "float64"),
            ([np.empty((SIDE,), np.float32)], "shape"),
            ([[0.0]], "cannot be written to list"),
        ],
    )
    def test_what_does_not_fit(self, chain_engine, out, message):
        with pytest.raises(InputError, match=message) as caught:
            chain_engine.run_into(out, weights(SIDE, SIDE))
        assert caught.value.code == "UIF-RUN-OUT"
        assert chain_engine.get_stats()["runs"] == 0

    def test_read_only_or_shared_memory(self, chain_engine):
        x = aligned(weights(SIDE, SIDE))
        fixed = np.zeros((SIDE, SIDE), np.float32)
        fixed.flags.writeable = False
        for out, message in ((fixed, "read-only"), (x, "shares memory"), (x[::-1], "shares")):
            with pytest.raises(InputError, match=message):
                chain_engine.run_into([out], x)

    def test_sizes_settled_in_the_run(self, tmp_path):
        model = imported([("x", ("n", 4), "float32")], lambda x: [chain(x)])
        engine = api.load(save(tmp_path / "m.uif", model, compiled(model, disabled_fusion=ALONE)))
        x = weights(3, 4)
        assert engine.empty_outputs() == [None]
        out = np.empty((3, 4), np.float32)
        assert engine.run_into([out], x)[0] is out
        np.testing.assert_allclose(out, softmaxes(x), rtol=1e-4)
        with pytest.raises(InputError, match="turned out as") as caught:
            engine.run_into([np.empty((2, 4), np.float32)], x)
        assert caught.value.code == "UIF-RUN-OUT"
