"""Kernels to object code: keys that say all, kernels compiled once, faults that stay visible."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm
from tvm import te, tirx

from tests.models import fake_target
from uif_tvm.compiler import codegen
from uif_tvm.compiler.codegen import KernelCompiler, buffer_bytes, kernel_key, kernel_symbol
from uif_tvm.compiler.kernel_cache import KernelCache
from uif_tvm.errors import CompileError
from uif_tvm.target.registry import get_target

CPU = get_target("cpu")


def kernel(body=lambda v: v + 1.0, *, size=16, dtype="float32", name="x"):
    x = te.placeholder((size,), dtype, name)
    y = te.compute((size,), lambda i: body(x[i]), "y")
    return te.create_prim_func([x, y])


def test_equal_kernels_have_equal_keys_whatever_their_names():
    func = kernel()
    named = kernel(name="other").with_attr("global_symbol", "something")
    assert kernel_key(func, CPU) == kernel_key(named, CPU) == kernel_key(kernel(), CPU)


def test_key_is_the_same_in_another_process():
    script = "from tests.compiler.test_codegen import *; print(kernel_key(kernel(), CPU), end='')"
    there = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert there.stdout == kernel_key(kernel(), CPU)


@pytest.mark.parametrize(
    "other",
    [
        kernel(lambda v: v + 2.0),
        kernel(lambda v: v * 1.0),
        kernel(tvm.tirx.exp),
        kernel(size=17),
        kernel(dtype="float64", body=lambda v: v + tvm.tirx.const(1.0, "float64")),
        kernel().with_attr("op_pattern", 2),
        kernel().with_attr("tirx.noalias", False),
    ],
)
def test_key_changes_with_the_kernel(other):
    assert kernel_key(other, CPU) != kernel_key(kernel(), CPU)


def test_key_changes_with_everything_that_makes_the_code(monkeypatch):
    func = kernel()
    machine = CPU.machine
    keys = {
        kernel_key(func, CPU),
        kernel_key(func, replace(CPU, machine=replace(machine, cores=machine.cores + 1))),
        kernel_key(func, replace(CPU, machine=replace(machine, l1_bytes=1 << 20))),
        kernel_key(func, replace(CPU, tvm_target={"kind": "llvm", "mcpu": "znver9"})),
        kernel_key(func, replace(CPU, schedules=CPU.schedules[-1:])),
    }
    for module, name, value in ((codegen, "toolchain", lambda target: "another"),):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            keys.add(kernel_key(func, CPU))
    assert len(keys) == 6


def test_key_sees_block_names_and_the_sign_of_zero():
    def choosing(constant, name="y"):
        x = te.placeholder((4,), name="x")
        zero = tirx.FloatImm("float32", constant)
        y = te.compute((4,), lambda i: tirx.Select(x[i] > x[0], x[i], zero), name=name)
        return te.create_prim_func([x, y])

    keys = {kernel_key(f, CPU) for f in (choosing(0.0), choosing(-0.0), choosing(0.0, "z"))}
    assert len(keys) == 3
    assert kernel_key(choosing(0.0), CPU) in keys


def test_key_does_not_change_with_the_targets_name():
    assert kernel_key(kernel(), CPU) == kernel_key(kernel(), fake_target(description="other"))


def test_symbols_are_readable_identifiers():
    symbol = kernel_symbol("fused_nn.conv2d add/relu" + "x" * 99, "a" * 32)
    assert symbol.startswith("nn_conv2d_add_relu")
    assert symbol.endswith("_" + "a" * 12)
    assert symbol.isidentifier()
    assert len(symbol) < 64


def compile_one(cache, target=CPU, func=None):
    func = kernel() if func is None else func
    key = kernel_key(func, target)
    compiler = KernelCompiler(target, cache)
    return compiler.compile_all({key: ("fused_inc", func)}, lambda done, total: None)[key], compiler


def test_second_compilation_comes_from_the_cache(tmp_path):
    (first, cached), _ = compile_one(KernelCache(tmp_path))
    assert not cached
    assert first.code[:4] == b"\x7fELF"
    assert f"__tvm_ffi_{first.symbol}".encode() in first.code
    (second, cached), _ = compile_one(KernelCache(tmp_path))
    assert cached
    assert second == first


def crashing(times):
    left = [times]

    def apply(func, target):
        if left[0]:
            left[0] -= 1
            raise ValueError("schedule fault")
        from uif_tvm.target.spec import Refusal

        return Refusal("no", "not today")

    return SimpleNamespace(name="flaky", version=1, kind="hand-written", apply=apply)


def test_kernel_made_after_a_crash_is_noted_and_not_cached(tmp_path):
    target = fake_target(schedules=(crashing(1), *CPU.schedules))
    (kernel_made, cached), compiler = compile_one(KernelCache(tmp_path), target)
    assert not cached
    assert compiler.crashed == [f"kernel {kernel_made.symbol}: flaky: ValueError: schedule fault"]
    assert kernel_made.declined[-1] == "flaky: ValueError: schedule fault"
    (_, cached), compiler = compile_one(KernelCache(tmp_path), target)
    assert not cached
    assert compiler.crashed == []
    (_, cached), _ = compile_one(KernelCache(tmp_path), target)
    assert cached


@pytest.mark.parametrize("fault", ["LLVM module verification failed: ...", "out of luck"])
def test_code_that_llvm_makes_invalid_is_made_at_its_level_1(fault, tmp_path, monkeypatch):
    targets, build = [], tirx.build

    def at_level_1_only(mod, target, pipeline):
        targets.append(target)
        if target.attrs.get("opt-level") != 1:
            raise RuntimeError(fault)
        return build(mod, target=target, pipeline=pipeline)

    monkeypatch.setattr(tirx, "build", at_level_1_only)
    if "LLVM" not in fault:
        with pytest.raises(CompileError, match="out of luck"):
            compile_one(KernelCache(tmp_path))
        assert len(targets) == 1
        return
    (made, _), compiler = compile_one(KernelCache(tmp_path))
    assert len(targets) == 2
    assert "compiled at LLVM's level 1" in made.detail
    assert compiler.crashed == []
    (again, cached), _ = compile_one(KernelCache(tmp_path))
    assert cached
    assert again.detail == made.detail


def test_one_failure_stops_the_rest():
    started = threading.Event()

    def apply(func, target):
        if "bad" in str(func.attrs.get("mark", "")):
            raise ValueError("hopeless")
        started.set()
        return CPU.schedules[-1].apply(func, target)

    rule = SimpleNamespace(name="only", version=1, kind="generic", apply=apply)
    compiler = KernelCompiler(fake_target(schedules=(rule,)), KernelCache(None))
    funcs = {"a": ("bad", kernel().with_attr("mark", "bad"))}
    with pytest.raises(CompileError, match="only: ValueError: hopeless"):
        compiler.compile_all(funcs, lambda done, total: None)
    assert not started.is_set()


def test_progress_reaches_the_total():
    told = []
    funcs = {f"k{n}": ("inc", kernel(size=n)) for n in (3, 5, 7)}
    KernelCompiler(CPU, KernelCache(None)).compile_all(funcs, lambda *step: told.append(step))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_bytes_of_parameters():
    assert buffer_bytes(kernel(size=10)) == 80
    assert buffer_bytes(kernel(size=10, dtype="float16", body=lambda v: v)) == 40
    symbolic = te.var("n")
    assert buffer_bytes(kernel(size=symbolic)) == 8  # unknown extents count as one
