"""From a module to a library: kernels shared, helpers built, branches kept, memory planned."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tests.models import compiled, constant, context, engine, imported, linear, weights
from uif_tvm.compiler import codegen, lower
from uif_tvm.errors import CompileError, EnvironmentFault
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.signature import Signature, TensorSpec

LEVELS = (0, 1, 2, 3)


@pytest.mark.parametrize("level", LEVELS)
def test_equal_kernels_are_compiled_once(tmp_path, level):
    def body(x):
        for _ in range(3):
            x = relax.op.nn.softmax(x)
        return [x]

    model = imported([("x", (4, 10), "float32")], body)
    made = engine(tmp_path, model, level=level, disabled_fusion=("softmax",))
    (row,) = made.report["kernels"]
    assert row["calls"] == 3
    assert len(row["sources"]) == 3
    assert made.get_stats()["op_count"] == 3


def test_sources_of_equal_fused_kernels_are_all_named(tmp_path):
    first, second = constant(weights(8, 8)), constant(weights(8, 8, seed=1))

    def body(x):
        for matrix in (first, second):
            x = relax.op.nn.relu(relax.op.matmul(x, matrix))
        return [x]

    report = compiled(imported([("x", (4, 8), "float32")], body)).report
    rows = [row for row in report["kernels"] if "matmul" in row["kernel"]]
    assert sum(row["calls"] for row in rows) == 2
    assert sum(len(row["sources"]) for row in rows) >= 4


@pytest.mark.parametrize("level", LEVELS)
def test_shapes_computed_at_run_time(tmp_path, level):
    def body(x):
        n = x.ty.shape.values[0]
        flat = relax.op.reshape(x, (n * 8,))
        return [relax.op.add(flat, flat), relax.op.concat([x, x], axis=0)]

    model = imported([("x", ("n", 8), "float32")], body)
    assert model.signature.outputs[0].shape == ("n * T.int64(8)",)
    made = engine(tmp_path, model, level=level)
    for rows in (1, 5, 0, 1000):
        x = weights(rows, 8)
        flat, twice = made.run(x)
        np.testing.assert_array_equal(flat, 2 * x.reshape(-1))
        np.testing.assert_array_equal(twice, np.concatenate([x, x]))


@I.ir_module(s_tir=True)
class Branches:
    @R.function
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")) -> R.Tuple(
        R.Tensor((4,), "float32")
    ):
        if flag:
            a = R.multiply(x, R.const([2.0, 3.0, 4.0, 5.0], "float32"))
            y = R.add(a, R.const([1.0, 1.0, 1.0, 1.0], "float32"))
        else:
            b = R.subtract(x, R.const([2.0, 3.0, 4.0, 5.0], "float32"))
            y = R.exp(b)
        return (y,)


@pytest.mark.parametrize("level", LEVELS)
def test_branches_with_kernels_and_weights_inside(tmp_path, level):
    signature = Signature(
        (TensorSpec("x", (4,), "float32"), TensorSpec("flag", (), "bool")),
        (TensorSpec("y", (4,), "float32"),),
    )
    made = engine(tmp_path, ImportedModel(Branches, signature, "test"), level=level)
    x, c = weights(4), np.array([2, 3, 4, 5], np.float32)
    for _ in range(2):
        np.testing.assert_allclose(made.run(x, np.array(True))[0], x * c + 1, rtol=1e-6)
        np.testing.assert_allclose(made.run(x, np.array(False))[0], np.exp(x - c), rtol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_model_without_any_kernel(tmp_path, level):
    model = imported([("x", (3,), "int64")], lambda x: [x])
    made = engine(tmp_path, model, level=level)
    x = np.arange(3)
    (y,) = made.run(x)
    np.testing.assert_array_equal(y, x)
    assert made.get_stats()["op_count"] == 0


@pytest.mark.parametrize("level", LEVELS)
def test_model_that_is_a_constant(tmp_path, level):
    value = weights(5, 3)
    made = engine(tmp_path, imported([], lambda: [constant(value)]), level=level)
    np.testing.assert_array_equal(made.run()[0], value)


@pytest.mark.parametrize("level", LEVELS)
def test_model_with_an_unused_input(tmp_path, level):
    inputs = [("x", (3,), "float32"), ("unused", (2,), "float32")]
    made = engine(tmp_path, imported(inputs, lambda x, unused: [relax.op.exp(x)]), level=level)
    x = weights(3)
    np.testing.assert_allclose(made.run(x, weights(2))[0], np.exp(x), rtol=1e-6)


def test_without_a_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_args, **_kwargs: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    from tvm.support import cc

    cache = getattr(cc.get_cc, "cache_clear", None)
    if cache:
        cache()
    with pytest.raises(EnvironmentFault) as caught:
        compiled(linear())
    assert caught.value.code == "UIF-ENV-LINKER"
    assert "g++" in caught.value.hint
    assert caught.value.stage == "compile"
    if cache:
        cache()


def test_linker_that_fails(monkeypatch):
    def fail(self, *args, **kwargs):
        raise RuntimeError("ld: out of memory")

    monkeypatch.setattr(relax.vm_build.VMExecutable, "export_library", fail)
    with pytest.raises(CompileError, match="ld: out of memory") as caught:
        compiled(linear())
    assert caught.value.code == "UIF-COMPILE-LINK"


@pytest.mark.parametrize("cache", [True, False])
def test_no_room_for_temporary_files(monkeypatch, cache):
    compiled(linear())  # with a cache, only the link has files to write

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(codegen.tempfile, "TemporaryDirectory", fail)
    with pytest.raises(EnvironmentFault, match="No space left on device") as caught:
        compiled(linear(), **({} if cache else {"cache_dir": None}))
    assert "TMPDIR" in caught.value.hint


def test_progress_names_the_stages():
    told = []
    lower.compile_module(linear().mod, context(), lambda *step: told.append(step))
    names = [phase for phase, _, _ in told]
    assert names[0] == "phase 1 make-safe"
    assert names[-2:] == ["link", "link"]
    assert "compile kernels" in names
    assert all(0 <= done <= total for _, done, total in told)


def test_every_target_level_gives_the_same_answers(tmp_path):
    x = weights(4, 64, seed=5)
    want = np.maximum(x @ weights(64, 32), 0)
    for target in ("cpu", "x86-64-v3"):
        for level in LEVELS:
            made = engine(tmp_path, linear(), target, level)
            np.testing.assert_allclose(made.run(x)[0], want, rtol=1e-4, atol=1e-4)
            assert made.target == target


def test_tvm_is_what_the_report_says():
    report = compiled(linear(), level=1).report
    assert (report["tvm"], report["optimize_level"]) == (tvm.__version__, 1)
