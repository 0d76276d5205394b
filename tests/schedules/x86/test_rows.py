"""Row schedules: every length of row, with prologues and epilogues, small and parallel."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx
from uif_tvm.schedules.x86.rows import RowKernel

from tests.schedules.harness import (
    MACHINES,
    WIDE,
    assembly,
    host_spec,
    placeholder,
    run,
    scheduled,
)
from uif_tvm.kernels import norm, reduce
from uif_tvm.target.spec import Machine, Refusal


@settings(max_examples=6, deadline=None)
@given(
    lead=st.sampled_from([(1,), (3, 2), (70,)]),
    width=st.sampled_from([1, 7, 16, 31, 64, 100, 257]),
    machine=st.sampled_from(MACHINES),
)
def test_softmax(lead: tuple[int, ...], width: int, machine: Machine) -> None:
    x = np.random.default_rng(width).standard_normal((*lead, width)).astype("float32") * 5
    a = placeholder(*x.shape)
    func = scheduled(RowKernel(), te.create_prim_func([a, norm.softmax(a, -1)]), machine)
    expected = scipy.special.softmax(x.astype("float64"), -1)
    np.testing.assert_allclose(run(func, [x], x.shape, "float32"), expected, atol=1e-6)


@settings(max_examples=5, deadline=None)
@given(width=st.sampled_from([5, 48, 77, 384]), machine=st.sampled_from(MACHINES))
def test_layer_norm_with_residual_before_and_activation_after(width: int, machine: Machine) -> None:
    rng = np.random.default_rng(width)
    x, r = rng.standard_normal((2, 4, 9, width)).astype("float32")
    g, b = rng.standard_normal((2, width)).astype("float32")
    a, c = placeholder(4, 9, width), placeholder(4, 9, width, name="r")
    s, t = placeholder(width, name="g"), placeholder(width, name="b")
    total = te.compute(a.shape, lambda *i: a[i] + c[i], name="residual")
    y = norm.layer_norm(total, s, t, 1e-5)
    out = te.compute(y.shape, lambda *i: te.max(y[i], 0.0), name="relu")
    func = scheduled(RowKernel(), te.create_prim_func([a, c, s, t, out]), machine)
    exact = x.astype("float64") + r
    centred = exact - exact.mean(-1, keepdims=True)
    expected = np.maximum(centred / np.sqrt(exact.var(-1, keepdims=True) + 1e-5) * g + b, 0)
    result = run(func, [x, r, g, b], x.shape, "float32")
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("keepdims", [False, True])
def test_mean_over_planes(keepdims: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 50, 7, 7)).astype("float32")
    a = placeholder(*x.shape)
    reduced = reduce.reduce_rows(a, [2, 3], keepdims, norm.SUM, mean=True)
    func = scheduled(RowKernel(), te.create_prim_func([a, reduced]))
    expected = x.astype("float64").mean((2, 3), keepdims=keepdims)
    np.testing.assert_allclose(run(func, [x], expected.shape, "float32"), expected, atol=1e-6)


def test_symbolic_rows() -> None:
    a = placeholder(tirx.Var("n", "int64"), 33)
    func = scheduled(RowKernel(), te.create_prim_func([a, norm.rms_norm(a, None, 1e-6)]))
    x = np.random.default_rng(0).standard_normal((11, 33)).astype("float32")
    expected = x / np.sqrt((x.astype("float64") ** 2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(run(func, [x], x.shape, "float32"), expected, rtol=1e-5)


def test_rows_without_a_row_axis_are_declined() -> None:
    a = placeholder(40)
    result = RowKernel().apply(te.create_prim_func([a, norm.softmax(a, 0)]), host_spec(WIDE))
    assert isinstance(result, Refusal)


def test_columns_are_declined() -> None:
    a = placeholder(40, 30)
    result = RowKernel().apply(te.create_prim_func([a, norm.softmax(a, 0)]), host_spec(WIDE))
    assert isinstance(result, Refusal)


def test_no_workspace_calls_inside_the_row_loop() -> None:
    a = placeholder(512, 128)
    func = scheduled(RowKernel(), te.create_prim_func([a, norm.softmax(a, -1)]))
    text = assembly(func, "x86-64-v4")
    assert "TVMBackendAllocWorkspace" not in text
    assert "zmm" in text


def test_parallel_only_for_many_rows() -> None:
    import tvm_ffi

    def parallel(rows: int) -> bool:
        kinds: list[int] = []
        a = placeholder(rows, 128)
        func = scheduled(RowKernel(), te.create_prim_func([a, norm.softmax(a, -1)]))
        tvm_ffi.structural_walk(func.body, [(tirx.For, lambda loop: kinds.append(loop.kind))])
        return tirx.ForKind.PARALLEL in kinds

    assert parallel(1536)
    assert not parallel(8)


def test_a_kernel_of_another_family_is_declined() -> None:
    a = placeholder(4, 4)
    func = te.create_prim_func([a, te.compute(a.shape, lambda i, j: a[i, j] * 2.0)])
    result = RowKernel().apply(func, host_spec(WIDE))
    assert isinstance(result, Refusal)
    assert isinstance(func, tvm.tirx.PrimFunc)
