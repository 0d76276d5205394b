"""Local buffers stay on the stack; elementary functions become vector arithmetic."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx, topi
from tvm.script import tirx as T

from tests.schedules.harness import assembly, placeholder, run
from uif_tvm.compiler import tir_pipeline
from uif_tvm.compiler.vector_math import allow_vectors, expand_math
from uif_tvm.kernels import movement


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


def _reindexed(steps):
    """A kernel that copies ``x`` through index changes, and what NumPy makes of them."""
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    source = te.placeholder(x.shape, "float32", name="x")
    value, want = source, x
    for name, how in steps:
        if name == "reshape":
            value, want = topi.reshape(value, how), want.reshape(how)
        elif name == "roll":
            axes = tuple(range(want.ndim))
            value = movement.roll(value, [how] * want.ndim, axes)
            want = np.roll(want, [how] * want.ndim, axes)
        else:
            first, last = how
            value = topi.strided_slice(value, [0, first], [want.shape[0], last], [1, 1])
            want = want[:, first:last]
    func = te.create_prim_func([source, value])
    schedule = s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root"))[:-1]:
        schedule.compute_inline(block)
    return schedule.mod["main"], x, want


@pytest.mark.parametrize(
    "steps",
    [
        [("reshape", (4, 4, 4)), ("roll", -1), ("reshape", (64,))],
        [("reshape", (2, 8, 4)), ("roll", 3), ("reshape", (8, 8)), ("roll", 1)],
        [("slice", (2, 6)), ("reshape", (32,))],
        [("reshape", (16, 4)), ("slice", (1, 4)), ("reshape", (6, 8)), ("slice", (3, 8))],
        [("reshape", (4, 16)), ("slice", (5, 13)), ("reshape", (2, 16)), ("roll", -3)],
    ],
    ids=lambda steps: "-".join(name for name, _ in steps),
)
def test_offsets_inside_divisions_survive_flattening(steps):
    func, x, want = _reindexed(steps)
    built = tirx.build(
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")}),
        target="llvm",
        pipeline=tir_pipeline.register(),
    )
    out = tvm.runtime.empty(want.shape, "float32")
    built["main"](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), want)


def test_guards_leave_no_trace():
    func, _, _ = _reindexed([("reshape", (4, 4, 4)), ("roll", -1), ("reshape", (64,))])
    mod = tvm.IRModule({"main": func})
    guarded = tir_pipeline.guard_shifts()(mod)
    assert "& -1" in guarded["main"].script()
    assert "& -1" not in tir_pipeline.release_shifts()(guarded)["main"].script()


@pytest.mark.parametrize(
    "index",
    [
        lambda i, n: (i % 8 + n) // 4,
        lambda i, n: (i % 8 + 2 * n - 1) // 4,
        lambda i, n: (i % (n * 4) + n) // n,
        lambda i, n: (i * 4 + 8) // 4 % 8,
    ],
    ids=["symbol", "scaled symbol", "symbolic divisor", "divisible"],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_symbolic_offsets_inside_divisions_survive_flattening(index, size):
    n = tirx.Var("n", "int64")
    source = te.placeholder((8, 2), "float32", name="x")
    sized = te.placeholder((n,), "float32", name="sized")
    value = te.compute((16, 2), lambda i, j: source[index(i, n), j] + sized[0])
    func = te.create_prim_func([source, sized, value]).with_attr("global_symbol", "main")
    built = tirx.build(
        tvm.IRModule({"main": func}), target="llvm", pipeline=tir_pipeline.register()
    )
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    out = tvm.runtime.empty((16, 2), "float32")
    built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros(size, np.float32)), out)
    np.testing.assert_array_equal(out.numpy(), x[[index(i, size) for i in range(16)]])


def test_offsets_of_inner_quotients_count():
    i, n = tirx.Var("i", "int64"), tirx.Var("n", "int64")
    assert tir_pipeline.offset((i + 8) // 4 + i % 2, {i}) == 2
    assert tir_pipeline.offset(i * n - 3, {i}) == -3
    assert tir_pipeline.offset((i + 1) * n, {i}) is None
    assert tir_pipeline.offset(i + n * 4, {i}) is None


def test_truth_values_in_buffers_of_their_own_are_vectorised():
    """Stored by vectors in one loop and read by vectors in the next."""

    @T.prim_func(private=True, s_tir=True)
    def func(
        x: T.Buffer((3, 16), "int64"), y: T.Buffer((16,), "bool"), out: T.Buffer((3, 16), "bool")
    ):
        seen = T.alloc_buffer((16,), "bool")
        for j in T.vectorized(16):
            with T.sblock("seen"):
                v = T.axis.spatial(16, j)
                seen[v] = x[1, v] != T.int64(0)
        for i in range(3):
            for j in T.vectorized(16):
                with T.sblock("out"):
                    w, v = T.axis.remap("SS", [i, j])
                    out[w, v] = seen[v] and (y[v] or x[w, v] > T.int64(0))

    rng = np.random.default_rng(0)
    x, y = rng.integers(-1, 2, (3, 16)), rng.integers(0, 2, 16).astype(bool)
    want = (x[1] != 0) & (y | (x > 0))
    np.testing.assert_array_equal(run(func, [x, y], (3, 16), "bool"), want)
