"""The public flow, end to end: export, load, run."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import uif
import uif_tvm
from tests.compiler.test_graph_pass import make
from tests.models import fake_target, weights
from uif_tvm import api
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.errors import (
    ArtifactIOError,
    CompileError,
    EnvironmentFault,
    ImportModelError,
    InputError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from uif_tvm.frontends import detect
from uif_tvm.target import registry

ROOT = Path(__file__).parents[1]
W = weights(4, 3)
X = weights(2, 4, seed=1)
WANT = np.maximum(X @ W, 0)


def graph(*nodes, inputs=(("x", TensorProto.FLOAT, [2, 4]),), outputs=("y",), constants=()):
    """An ONNX model; constants are (name, array)."""
    made = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(*row) for row in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tiny():
    return graph(
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Relu", ["xw"], ["y"]),
        constants=[("w", W)],
    )


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(W.copy()))

    def forward(self, x):
        return torch.relu(x @ self.w)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.uif"


@pytest.fixture
def no_import(monkeypatch):
    """Fails the test when the model is looked at: checks must come first."""

    def fail(*_):
        raise AssertionError("the import had begun")

    monkeypatch.setattr(detect, "import_model", fail)


def use(monkeypatch, spec):
    """Let ``spec`` be a target that users can name."""
    real = registry.get_target
    monkeypatch.setattr(
        registry, "get_target", lambda name: spec if name == spec.id else real(name)
    )


def test_short_name_is_the_package():
    assert uif is uif_tvm
    assert uif.export is api.export
    assert {"export", "load", "UifError", "__version__"} <= set(dir(uif))
    with pytest.raises(AttributeError, match="'uif_tvm' has no attribute 'no_such_thing'"):
        uif.no_such_thing  # noqa: B018


class TestModels:
    @pytest.mark.parametrize("level", range(4))
    def test_onnx_model(self, path, level):
        result = uif.export(tiny(), output_path=path, optimize_level=level, verify=True)
        assert result.path == path
        assert result.report["optimize_level"] == level
        assert result.report["source"] == "onnx"
        np.testing.assert_allclose(uif.load(path).run(x=X)[0], WANT, rtol=1e-5)

    def test_onnx_path(self, path, tmp_path):
        onnx.save(tiny(), tmp_path / "tiny.onnx")
        for model in (tmp_path / "tiny.onnx", str(tmp_path / "tiny.onnx")):
            uif.export(model, output_path=path)
            np.testing.assert_allclose(uif.load(path).run(X)[0], WANT, rtol=1e-5)

    @pytest.mark.parametrize("level", range(4))
    def test_torch_module(self, path, level):
        uif.export(Tiny(), torch.from_numpy(X), path, level, verify=True)
        np.testing.assert_allclose(uif.load(path).run(torch.from_numpy(X))[0], WANT, rtol=1e-5)

    def test_exported_program_and_its_file(self, path, tmp_path):
        program = torch.export.export(Tiny().eval(), (torch.from_numpy(X),))
        torch.export.save(program, tmp_path / "tiny.pt2")
        for model in (program, tmp_path / "tiny.pt2"):
            uif.export(model, output_path=path)
            np.testing.assert_allclose(uif.load(path).run(X)[0], WANT, rtol=1e-5)

    def test_default_output_is_in_the_current_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert uif.export(tiny()).path == Path("model.uif")
        assert (tmp_path / "model.uif").is_file()


class TestTargets:
    def test_several_in_one_file(self, path):
        result = uif.export(tiny(), output_path=path, target_device=["x86-64-v3", "cpu"])
        assert list(result.reports) == ["x86-64-v3", "cpu"]
        for target in ("cpu", "x86-64-v3"):
            engine = uif.load(path, target=target)
            assert engine.target == target
            np.testing.assert_allclose(engine.run(X)[0], WANT, rtol=1e-5)
        assert uif.load(path).target == "x86-64-v3"

    @pytest.mark.parametrize("bad", [[], ["cpu", "cpu"], 3, None, [None], b"cpu", {"cpu"}])
    @pytest.mark.usefixtures("no_import")
    def test_no_list_of_targets(self, path, bad):
        with pytest.raises(UsageError, match="target_device must name") as caught:
            uif.export(tiny(), output_path=path, target_device=bad)
        assert caught.value.code == "UIF-USAGE-TARGET"

    @pytest.mark.usefixtures("no_import")
    def test_unknown(self, path):
        with pytest.raises(TargetError, match="did you mean 'cpu'"):
            uif.export(tiny(), output_path=path, target_device="cpuu")


class TestBadRequests:
    @pytest.mark.parametrize("model", [None, 3, object(), torch.ones(2), b"\x08\x07"])
    def test_what_is_no_model(self, path, model):
        with pytest.raises(UsageError, match="cannot export a ") as caught:
            uif.export(model, output_path=path)
        assert "onnx.ModelProto" in caught.value.hint

    @pytest.mark.parametrize("name", ["m.tflite", "m", "m.onnx.gz"])
    def test_unknown_suffix(self, path, name):
        with pytest.raises(UsageError, match="cannot tell what"):
            uif.export(name, output_path=path)

    @pytest.mark.parametrize("name", ["none.onnx", "none.pt2"])
    def test_missing_model_file(self, path, name):
        with pytest.raises((ImportModelError, ArtifactIOError)):
            uif.export(path.with_name(name), output_path=path)
        assert not path.exists()

    @pytest.mark.usefixtures("no_import")
    @pytest.mark.parametrize(
        "options",
        [
            {"optimize_level": 7},
            {"fallback_mode": "maybe"},
            {"disable_passes": ["fuse-kernel"]},
            {"disable_passes": ["legalize"]},
            {"disable_passes": 3},
            {"disable_fusion": [None]},
        ],
    )
    def test_options(self, path, options):
        with pytest.raises(UsageError):
            uif.export(tiny(), output_path=path, **options)


class TestDestination:
    @pytest.mark.usefixtures("no_import")
    @pytest.mark.parametrize("where", ["missing/m.uif", "file/m.uif", "folder", "pipe"])
    def test_unwritable_is_found_before_the_work(self, tmp_path, where):
        (tmp_path / "file").write_text("")
        (tmp_path / "folder").mkdir()
        os.mkfifo(tmp_path / "pipe")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ArtifactIOError, match="cannot write"):
            uif.export(tiny(), output_path=tmp_path / where)
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.usefixtures("no_import")
    def test_the_model_is_not_replaced(self, tmp_path):
        own, link = tmp_path / "own.onnx", tmp_path / "link.uif"
        onnx.save(tiny(), own)
        link.symlink_to(own)
        before = own.read_bytes()
        for output in (own, link, tmp_path / "." / "own.onnx"):
            with pytest.raises(UsageError, match="is the model that is being exported") as caught:
                uif.export(own, output_path=output)
            assert caught.value.code == "UIF-USAGE-OUTPUT"
            assert "another name" in caught.value.hint
        assert own.read_bytes() == before
        assert sorted(tmp_path.iterdir()) == [link, own]

    @pytest.mark.usefixtures("no_import")
    @pytest.mark.parametrize(
        "name", ["other.onnx", "m.pt2", "m.onnx.data", "x.npy", "x.NPZ", "weights", "m.bin"]
    )
    def test_neither_are_other_sources(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"dear data")
        with pytest.raises(UsageError, match=r"is no \.uif file") as caught:
            uif.export(tiny(), output_path=tmp_path / name)
        assert caught.value.code == "UIF-USAGE-OUTPUT"
        assert (tmp_path / name).read_bytes() == b"dear data"
        assert len(list(tmp_path.iterdir())) == 1

    def test_artifacts_and_empty_files_are_replaced(self, tmp_path):
        for name in ("m.uif", "m", "m.bin"):
            path = tmp_path / name
            path.touch()
            for _ in range(2):
                uif.export(tiny(), output_path=path)
            np.testing.assert_allclose(uif.load(path).run(X)[0], WANT, rtol=1e-5)

    @pytest.mark.parametrize("old", [None, b"what stood here before"])
    def test_nothing_is_written_on_failure(self, tmp_path, path, old, monkeypatch):
        if old is not None:
            path.write_bytes(old)
        broken = make("broken", raises=RuntimeError("pass fell over"))
        use(monkeypatch, fake_target(phase_overrides={"layout": lambda ctx: [broken]}))
        with pytest.raises(CompileError, match="pass broken failed: RuntimeError: pass fell over"):
            uif.export(tiny(), output_path=path, target_device="fake")
        with pytest.raises(UnsupportedError):
            uif.export(graph(helper.make_node("NoSuchOperator", ["x"], ["y"])), output_path=path)
        assert [p.name for p in tmp_path.iterdir()] == ([path.name] if old else [])
        assert not old or path.read_bytes() == old

    def test_full_disk_leaves_the_old_file(self, tmp_path, path):
        path.write_bytes(b"old")
        onnx.save(tiny(), tmp_path / "tiny.onnx")
        script = """
import resource, signal, sys
import uif
from uif_tvm.artifact import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
real = files.OutFile.write
def write(self, data):
    # Only the artifact: the linker needs its own files.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    real(self, data)
files.OutFile.write = write
try:
    uif.export(sys.argv[1], output_path=sys.argv[2])
except uif.UifError as error:
    print(error.code)
"""
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "tiny.onnx"), str(path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.stdout == "UIF-ARTIFACT-IO\n", done.stderr
        assert path.read_bytes() == b"old"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.uif", "tiny.onnx"]


class TestEnvironment:
    @pytest.mark.parametrize(("package", "suffix"), [("onnx", "onnx"), ("torch", "pt2")])
    def test_missing_framework(self, tmp_path, package, suffix):
        model = tmp_path / f"m.{suffix}"
        if package == "onnx":
            onnx.save(tiny(), model)
        else:
            torch.export.save(torch.export.export(Tiny(), (torch.from_numpy(X),)), model)
        script = f"""
import sys
sys.modules[{package!r}] = None
import uif
try:
    uif.export({str(model)!r}, output_path={str(tmp_path / "m.uif")!r})
except uif.UifError as error:
    print(type(error).__name__, error.code, error.stage, error.hint)
"""
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
        )
        assert done.stdout == (
            f"EnvironmentFault UIF-ENV-FRONTEND import pip install 'uif[{package}]'\n"
        ), done.stderr

    def test_import_is_light(self):
        script = """
import sys
import uif
heavy = {"numpy", "tvm", "tvm_ffi", "torch", "onnx", "rich", "click"} & set(sys.modules)
assert not heavy, heavy
"""
        subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


class TestCache:
    def cached(self, result):
        return [row["cached"] for row in result.report["kernels"]]

    def test_second_export_compiles_nothing(self, path, tmp_path):
        folder = tmp_path / "cache"
        first = uif.export(tiny(), output_path=path, cache_dir=folder)
        second = uif.export(tiny(), output_path=path, cache_dir=str(folder))
        assert self.cached(first) == [False] * len(self.cached(second))
        assert all(self.cached(second))

    def test_switched_off(self, path, tmp_path, monkeypatch):
        monkeypatch.setenv("UIF_CACHE_DIR", str(tmp_path / "cache"))
        for _ in range(2):
            assert not any(self.cached(uif.export(tiny(), output_path=path, cache_dir=None)))
        assert not (tmp_path / "cache").exists()

    def test_users_folder_that_cannot_be_made_costs_time_only(self, path, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.delenv("UIF_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert not any(self.cached(uif.export(tiny(), output_path=path)))

    @pytest.mark.usefixtures("no_import")
    @pytest.mark.parametrize("where", ["file", "file/cache"])
    def test_chosen_by_the_environment_is_chosen(self, path, tmp_path, monkeypatch, where):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("UIF_CACHE_DIR", str(tmp_path / where))
        with pytest.raises(EnvironmentFault, match="UIF_CACHE_DIR=") as caught:
            uif.export(tiny(), output_path=path)
        assert caught.value.code == "UIF-ENV-CACHE"
        assert "unset it" in caught.value.hint

    def test_chosen_folder_that_cannot_be_made_is_an_error(self, path, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(EnvironmentFault, match="kernel cache"):
            uif.export(tiny(), output_path=path, cache_dir=tmp_path / "file" / "cache")

    def test_where_it_is(self, monkeypatch):
        monkeypatch.setenv("UIF_CACHE_DIR", "/a/b")
        assert api.default_cache_dir() == Path("/a/b")
        monkeypatch.delenv("UIF_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", "/c")
        assert api.default_cache_dir() == Path("/c/uif/kernels")
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/home/me")
        assert api.default_cache_dir() == Path("/home/me/.cache/uif/kernels")


class TestConcurrency:
    def test_threads_of_one_process(self, tmp_path):
        def one(n):
            path = tmp_path / f"{n}.uif"
            uif.export(tiny(), output_path=path, cache_dir=tmp_path / "cache", optimize_level=n % 4)
            return uif.load(path).run(X)[0]

        with ThreadPoolExecutor(4) as pool:
            for result in pool.map(one, range(8)):
                np.testing.assert_allclose(result, WANT, rtol=1e-5)

    def test_processes_that_write_the_same_file(self, tmp_path, path):
        onnx.save(tiny(), tmp_path / "tiny.onnx")
        script = """
import sys, uif
for _ in range(3):
    uif.export(sys.argv[1], output_path=sys.argv[2], cache_dir=sys.argv[3])
    uif.load(sys.argv[2])
"""
        command = [sys.executable, "-c", script, tmp_path / "tiny.onnx", path, tmp_path / "cache"]
        running = [
            subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for process in running:
            _, said = process.communicate(timeout=240)
            assert process.returncode == 0, said
        np.testing.assert_allclose(uif.load(path).run(X)[0], WANT, rtol=1e-5)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "m.uif", "tiny.onnx"]


class Doubling(GraphPass):
    """Wrong on purpose: every addition becomes one of twice the second operand."""

    name = "acme-doubling"

    def apply(self, mod, ctx):
        from tvm.relax.expr_functor import PyExprMutator, mutator

        @mutator
        class Double(PyExprMutator):
            def visit_call_(self, call):
                call = self.visit_expr_post_order(call)
                if str(getattr(call.op, "name", "")) != "relax.nn.relu":
                    return call
                return relax.op.add(self.builder_.emit(call), self.builder_.emit(call))

        mod = mod.clone() if hasattr(mod, "clone") else mod
        mod["main"] = Double(mod).visit_expr(mod["main"])
        return mod


class TestVerify:
    @pytest.mark.parametrize("level", range(4))
    def test_right_models_pass_and_the_report_says_so(self, path, level):
        result = uif.export(tiny(), output_path=path, optimize_level=level, verify=True)
        note = "verified against level 0: 1 outputs agree on random inputs"
        assert note in result.report["notes"]
        assert note in uif.load(path).report["notes"]

    @pytest.mark.parametrize("level", [1, 2, 3])
    def test_wrong_pass_is_caught(self, path, level, monkeypatch):
        use(monkeypatch, fake_target(phase_overrides={"canonicalise": lambda ctx: [Doubling()]}))
        options = {"output_path": path, "target_device": "fake", "optimize_level": level}
        with pytest.raises(CompileError, match="departs from level 0") as caught:
            uif.export(tiny(), {"x": X}, verify=True, **options)
        assert caught.value.code == "UIF-COMPILE-VERIFY"
        assert "disable_passes=" in caught.value.hint
        assert not path.exists()
        uif.export(tiny(), {"x": X}, verify=True, disable_passes=["acme-doubling"], **options)
        assert path.exists()

    def test_example_inputs_are_used_in_any_container(self, path):
        x = torch.from_numpy(X)
        for example in (x, (x,), [x], {"x": x}):
            result = uif.export(Tiny(), example, path, verify=True)
            assert "agree on the example inputs" in result.report["notes"][-1]


class TestOptions:
    def test_dumps_go_to_one_folder_per_target(self, path, tmp_path):
        uif.export(
            tiny(),
            output_path=path,
            target_device=["cpu", "x86-64-v3"],
            save_temps=tmp_path / "ir",
        )
        folders = sorted((tmp_path / "ir").iterdir())
        assert [folder.name for folder in folders] == ["cpu", "x86-64-v3"]
        for folder in folders:
            names = [p.name.split("-", 1)[1] for p in sorted(folder.iterdir())]
            assert "legalize.py" in names

    def test_disabled_pass_and_fusion_are_reported(self, path):
        report = uif.export(
            tiny(), output_path=path, disable_passes=["pack-matmul"], disable_fusion=["*relu"]
        ).report
        assert "pass pack-matmul disabled on request" in report["notes"]
        assert "pack-matmul" not in report["passes"]
        assert len(report["kernels"]) == 2

    def test_a_plain_string_is_one_entry(self, path):
        report = uif.export(
            tiny(), output_path=path, disable_passes="pack-matmul", disable_fusion="*relu"
        ).report
        assert "pass pack-matmul disabled on request" in report["notes"]
        assert len(report["kernels"]) == 2

    @pytest.mark.parametrize("threads", [0, -1, True, 1.0, "1", 10**6])
    def test_threads_that_cannot_be_meant(self, path, threads):
        with pytest.raises(UsageError, match="threads") as caught:
            uif.load(path, threads=threads)
        assert caught.value.code == "UIF-USAGE-THREADS"

    def test_threads_of_the_environment(self, path, monkeypatch):
        monkeypatch.setenv("TVM_NUM_THREADS", "1000000")
        with pytest.raises(UsageError, match="TVM_NUM_THREADS or OMP_NUM_THREADS asks for"):
            uif.load(path)

    def test_64_threads_are_allowed_anywhere(self, path):
        uif.export(tiny(), output_path=path)
        assert uif.load(path, threads=64).threads == 64

    @pytest.mark.parametrize("kind", ["onnx", "pt2"])
    def test_load_of_a_model(self, tmp_path, kind):
        model = tmp_path / f"m.{kind}"
        if kind == "onnx":
            onnx.save(tiny(), model)
        else:
            torch.export.save(torch.export.export(Tiny(), (torch.from_numpy(X),)), model)
        with pytest.raises(UsageError, match="run uif export first") as caught:
            uif.load(model)
        assert caught.value.code == "UIF-USAGE-MODEL"

    def test_progress(self, path):
        told = []
        uif.export(tiny(), output_path=path, progress=lambda *step: told.append(step))
        assert told[0] == ("import", 0, 1)
        assert told[-1] == ("write", 1, 1)

    def test_load_of_a_missing_file(self, path):
        with pytest.raises(ArtifactIOError, match="cannot read"):
            uif.load(path)


HUGE = [2**62, -(2**62), 2**31, -(2**31) - 1, 10**9, -(10**9)]


class TestHostileIndices:
    """Indices from data never reach outside a tensor; results are of the table or defined."""

    @pytest.mark.parametrize("level", range(4))
    @pytest.mark.parametrize("axis", [0, 1])
    def test_onnx_gather(self, path, level, axis):
        table = weights(5, 6)
        model = graph(
            helper.make_node("Gather", ["t", "i"], ["y"], axis=axis),
            inputs=(("i", TensorProto.INT64, ["n"]),),
            constants=[("t", table)],
        )
        try:
            uif.export(model, {"i": np.zeros(len(HUGE) + 2, np.int64)}, path, level)
        except UsageError:
            pytest.skip("symbolic inputs need an example here")
        engine = uif.load(path)
        (y,) = engine.run(np.array([0, -1, *HUGE]))
        assert np.isin(y, table).all()
        want = np.take(table, [0, -1], axis)
        np.testing.assert_array_equal(np.take(y, [0, 1], axis), want)

    @pytest.mark.parametrize("level", range(4))
    def test_torch_embedding_and_indexing(self, path, level):
        table = weights(50, 6)

        class Lookup(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(table))

            def forward(self, ids, x):
                return self.embedding(ids), x[ids], x.index_select(0, ids), x[-1]

        ids = torch.tensor([0, 49, *[3] * len(HUGE)])
        uif.export(Lookup(), (ids, torch.from_numpy(table)), path, level)
        engine = uif.load(path)
        wild = np.array([0, 49, *HUGE])
        for _ in range(3):
            *found, last = engine.run(wild, table)
            for y in found:
                assert np.isin(y, table).all()
                np.testing.assert_array_equal(y[:2], table[[0, 49]])
            np.testing.assert_array_equal(last, table[-1])

    @pytest.mark.parametrize("level", range(4))
    def test_scatter_writes_nowhere_else(self, path, level):
        class Write(torch.nn.Module):
            def forward(self, x, ids, values):
                return x.index_put((ids,), values), x.scatter(0, ids, values)

        x, values = torch.zeros(16), torch.arange(1.0, 9.0)
        uif.export(Write(), (x, torch.arange(8), values), path, level)
        engine = uif.load(path)
        for _ in range(3):
            for y in engine.run(x, np.array([3, 4, *HUGE]), values):
                assert y[3] == 1
                assert y[4] == 2
                assert np.isin(y, [0, *range(1, 9)]).all()


def open_tiny():
    return graph(
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Relu", ["xw"], ["y"]),
        inputs=(("x", TensorProto.FLOAT, ["batch", 4]),),
        constants=[("w", W)],
    )


@pytest.mark.parametrize("level", [0, 2, 3])
def test_one_file_serves_a_range_of_extents(tmp_path, level):
    path = tmp_path / "m.uif"
    ranges = {"x": {0: ("n", 0, 40)}}
    result = uif.export(open_tiny(), None, path, level, dynamic_shapes=ranges, verify=level == 3)
    engine = uif.load(path)
    assert str(engine.inputs[0]) == "x: float32[n=0..40, 4]"
    assert engine.outputs[0].shape == ("n", 3)
    for size in (0, 1, 5, 40):
        x = weights(size, 4)
        np.testing.assert_allclose(engine.run(x)[0], np.maximum(x @ W, 0), rtol=1e-5, atol=1e-6)
    with pytest.raises(
        InputError, match=r"axis 0 \('n'\) is 41, the model takes 0 to 40"
    ) as caught:
        engine.run(weights(41, 4))
    assert caught.value.code == "UIF-RUN-RANGE"
    if level >= 2:
        assert any("upper ends" in note for note in result.report["notes"])


def test_empty_inputs_need_a_range_that_says_so(tmp_path):
    path = tmp_path / "m.uif"
    uif.export(open_tiny(), None, path, dynamic_shapes="auto")
    with pytest.raises(InputError, match="the model takes 1 or more"):
        uif.load(path).run(weights(0, 4))
