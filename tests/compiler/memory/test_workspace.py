"""Kernels take what they allocate as an argument, or a stack slot, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from uif_tvm.compiler import tir_pipeline
from uif_tvm.compiler.memory.workspace import MAX_STACK_BYTES, Lifted, lifting

SIDE = 256
SMALL = 32


@I.ir_module(s_tir=True)
class Transposed:
    """The whole matrix between two loops."""

    @T.prim_func(s_tir=True)
    def f(A: T.Buffer((SIDE, SIDE), "float32"), B: T.Buffer((SIDE, SIDE), "float32")):
        C = T.alloc_buffer((SIDE, SIDE), "float32")
        for i, j in T.grid(SIDE, SIDE):
            with T.sblock("c"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vj, vi] * 2.0
        for i in T.parallel(SIDE):
            for j in range(SIDE):
                with T.sblock("d"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = C[vi, vj] + 1.0


def rows(count: int, width: int):
    """Each row reversed through a buffer of its own, made inside the parallel loop."""

    @T.prim_func(s_tir=True)
    def f(A: T.Buffer((count, width), "float32"), B: T.Buffer((count, width), "float32")):
        for i in T.parallel(count):
            with T.sblock("row"):
                vi = T.axis.spatial(count, i)
                T.reads(A[vi, 0:width])
                T.writes(B[vi, 0:width])
                C = T.alloc_buffer((width,), "float32")
                for j in range(width):
                    with T.sblock("c"):
                        vj = T.axis.spatial(width, j)
                        C[vj] = A[vi, width - 1 - vj]
                for j in range(width):
                    with T.sblock("d"):
                        vj = T.axis.spatial(width, j)
                        B[vi, vj] = C[vj] + C[width - 1 - vj] * 3.0

    return tvm.IRModule({"f": f})


def built(mod: tvm.IRModule, parts: int) -> tuple[object, Lifted, str]:
    """(the function, what was found, its code)."""
    mod = tvm.IRModule({"f": mod["f"].with_attr("global_symbol", "f")})
    with lifting(parts) as found:
        library = tirx.build(mod, target="llvm", pipeline=tir_pipeline.register())
    return library["f"], found, library.inspect_source()


def call(function, found: Lifted, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = tvm.runtime.tensor(np.zeros_like(a))
    workspace = tvm.runtime.tensor(np.full(found.workspace, 0xFF, np.uint8))
    arguments = [tvm.runtime.tensor(a), out, *([workspace] if found.workspace else [])]
    function(*arguments)
    return out.numpy(), workspace.numpy()


def reversed_rows(a: np.ndarray) -> np.ndarray:
    return a[:, ::-1] + a * 3


def test_what_lies_outside_of_parallel_loops_becomes_an_argument():
    function, found, source = built(Transposed, 2)
    assert found.workspace == SIDE * SIDE * 4
    assert "TVMBackendAllocWorkspace" not in source
    a = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    out, workspace = call(function, found, a)
    np.testing.assert_array_equal(out, a.T * 2 + 1)
    np.testing.assert_array_equal(workspace.view(np.float32).reshape(SIDE, SIDE), a.T * 2)


def test_without_a_listener_nothing_changes():
    mod = tvm.IRModule({"f": Transposed["f"].with_attr("global_symbol", "f")})
    library = tirx.build(mod, target="llvm", pipeline=tir_pipeline.register())
    a = tvm.runtime.tensor(np.ones((SIDE, SIDE), np.float32))
    out = tvm.runtime.tensor(np.zeros((SIDE, SIDE), np.float32))
    library["f"](a, out)
    assert (out.numpy() == 3).all()


def test_small_buffers_of_workers_stay_on_their_stacks():
    width = MAX_STACK_BYTES // 16
    function, found, source = built(rows(5, width), 2)
    assert found.workspace == 0
    assert "TVMBackendAllocWorkspace" not in source
    a = np.random.default_rng(1).standard_normal((5, width)).astype(np.float32)
    np.testing.assert_array_equal(call(function, found, a)[0], reversed_rows(a))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("parts", [1, 3, 4])
def test_large_buffers_of_workers_are_slices(count, parts):
    width = MAX_STACK_BYTES // 2
    function, found, source = built(rows(count, width), parts)
    assert found.workspace == min(parts, count) * width * 4
    assert "TVMBackendAllocWorkspace" not in source
    a = np.random.default_rng(2).standard_normal((count, width)).astype(np.float32)
    out, _ = call(function, found, a)
    np.testing.assert_array_equal(out, reversed_rows(a))


def test_sizes_known_in_a_run_only_are_left_and_counted():
    @T.prim_func(s_tir=True)
    def f(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        C = T.alloc_buffer((n,), "float32")
        for i in range(n):
            with T.sblock("c"):
                vi = T.axis.spatial(n, i)
                C[vi] = A[n - 1 - vi]
        for i in range(n):
            with T.sblock("d"):
                vi = T.axis.spatial(n, i)
                B[vi] = C[vi] + A[vi]

    function, found, _ = built(tvm.IRModule({"f": f}), 2)
    assert (found.workspace, found.left) == (0, 1)
    a = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(call(function, found, a)[0], a + a[::-1])


def test_workspace_comes_last_of_the_buffers_also_where_sizes_stand_between_them():
    scale = tirx.Var("scale", "int64")
    source = Transposed["f"]
    a, out = source.params
    mixed = tirx.PrimFunc([a, scale, out], source.body, source.ret_type, source.attrs)
    function, found, _ = built(tvm.IRModule({"f": mixed}), 2)
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    y = tvm.runtime.tensor(np.zeros_like(x))
    function(tvm.runtime.tensor(x), 5, y, tvm.runtime.tensor(np.zeros(found.workspace, np.uint8)))
    np.testing.assert_array_equal(y.numpy(), x.T * 2 + 1)
