"""Local buffers stay on the stack; elementary functions become vector arithmetic."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tests.schedules.harness import assembly, placeholder, run
from uif_tvm.compiler import tir_pipeline
from uif_tvm.compiler.vector_math import allow_vectors, expand_math


def test_registering_twice_is_once() -> None:
    assert tir_pipeline.register() == tir_pipeline.register() == tir_pipeline.PIPELINE


def test_many_threads_may_register_at_once() -> None:
    # In a process of its own: here the pipeline is known already.
    code = (
        "import sys, threading; sys.setswitchinterval(1e-6)\n"
        "import tvm.relax; from uif_tvm.compiler import tir_pipeline\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "gate = threading.Barrier(8)\n"
        "def go(_): gate.wait(); return tir_pipeline.register()\n"
        "print(set(ThreadPoolExecutor(8).map(go, range(8))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "{'uif'}", done.stderr


def with_temporary(size: int, scope: str) -> tirx.PrimFunc:
    """y = 2 x through a temporary of ``size`` elements."""
    x = placeholder(size)
    t = te.compute(x.shape, lambda i: x[i] + x[i], name="t")
    y = te.compute(x.shape, lambda i: t[size - 1 - i], name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    sch.set_scope(sch.get_sblock("t"), 0, scope)
    return sch.mod["main"]


@pytest.mark.parametrize(
    ("size", "scope", "on_stack"),
    [(4096, "local", True), (4096, "global", False), (1 << 16, "local", False)],
)
def test_only_small_local_buffers_stay_on_the_stack(size: int, scope: str, on_stack: bool) -> None:
    func = with_temporary(size, scope)
    assert ("AllocWorkspace" not in assembly(func, "x86-64-v3")) == on_stack
    x = np.arange(size, dtype="float32")
    np.testing.assert_array_equal(run(func, [x], (size,), "float32"), 2 * x[::-1])


def test_guarded_arguments_are_not_moved_before_their_guard() -> None:
    """exp(x[i + 8]) reads past the end unless its condition is tested first."""

    @T.prim_func
    def guarded(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            y[i] = T.if_then_else(i < 4, T.exp(x[i + 4]), T.float32(0))

    mod = expand_math()(tvm.IRModule({"main": guarded}))
    assert "T.exp" in mod["main"].script()
    x = np.linspace(-1, 1, 8).astype("float32")
    result = run(guarded, [x], (8,), "float32")
    np.testing.assert_allclose(result, [*np.exp(x[4:]), 0, 0, 0, 0], rtol=1e-6)


def test_expansion_leaves_no_call_and_keeps_double_precision() -> None:
    @T.prim_func
    def both(x: T.Buffer((8,), "float32"), z: T.Buffer((8,), "float64")):
        for i in range(8):
            x[i] = T.tanh(T.log(x[i]))
            z[i] = T.tanh(z[i])

    text = expand_math()(tvm.IRModule({"main": both}))["main"].script()
    assert text.count("T.tanh") == 1
    assert "T.log(" not in text


def test_functions_with_formulas_are_vectorisable() -> None:
    allow_vectors()
    for name in ("tirx.exp", "tirx.erf", "tirx.log1p", "tirx.tanh", "tirx.sigmoid", "tirx.log"):
        assert tvm.ir.Op.get(name).get_attr("TVectorizable")
