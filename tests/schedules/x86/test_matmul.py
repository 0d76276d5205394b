"""Matmul schedules: right for every remainder, and free of scalar code where it counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx
from uif_tvm.schedules.x86.matmul import BatchMatmul, PackedMatmul
from uif_tvm.schedules.x86.matmul_planner import plan_matmul

from tests.schedules.harness import (
    MACHINES,
    MIDDLE,
    WIDE,
    assembly,
    build,
    host_spec,
    placeholder,
    run,
    scheduled,
)
from uif_tvm.kernels.matmul import batch_matmul, pack_weight, packed_matmul
from uif_tvm.target.schedule import MatmulPlan, MatmulProblem
from uif_tvm.target.spec import Machine, Refusal


def plan(m: int, n: int, k: int, machine: Machine = WIDE) -> MatmulPlan:
    result = plan_matmul(MatmulProblem(m, n, k, "float32"), machine)
    assert isinstance(result, MatmulPlan)
    return result


def linear(lead: tuple[object, ...], n: int, k: int, chosen: MatmulPlan) -> tirx.PrimFunc:
    """max(x W + bias, 0) + residual, as fusion hands it to a rule."""
    x = placeholder(*lead, k)
    w = placeholder(-(-n // chosen.n_block), k, chosen.n_block, name="w")
    bias, residual = placeholder(n, name="bias"), placeholder(*lead, n, name="residual")
    y = packed_matmul(x, w, n, chosen.m_block)
    z = te.compute(y.shape, lambda *i: te.max(y[i] + bias[i[-1]], 0.0), name="activation")
    out = te.compute(y.shape, lambda *i: z[i] + residual[i], name="sum")
    return te.create_prim_func([x, w, bias, residual, out])


def check_linear(lead: tuple[int, ...], n: int, k: int, machine: Machine, func: tirx.PrimFunc,
                 chosen: MatmulPlan) -> None:  # fmt: skip
    rng = np.random.default_rng(n * k)
    x = rng.standard_normal((*lead, k)).astype("float32")
    w = rng.standard_normal((k, n)).astype("float32")
    bias = rng.standard_normal(n).astype("float32")
    residual = rng.standard_normal((*lead, n)).astype("float32")
    expected = np.maximum(x @ w + bias, 0) + residual
    inputs = [x, pack_weight(w, chosen.n_block), bias, residual]
    result = run(scheduled(PackedMatmul(), func, machine), inputs, expected.shape, "float32")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(
    lead=st.sampled_from([(1,), (5,), (17,), (1, 33), (2, 7), (3, 1, 14), (64,)]),
    n=st.integers(1, 130),
    k=st.integers(1, 70),
    machine=st.sampled_from(MACHINES),
)
def test_every_remainder(lead: tuple[int, ...], n: int, k: int, machine: Machine) -> None:
    chosen = plan(lead[-1], n, k, machine)
    check_linear(lead, n, k, machine, linear(lead, n, k, chosen), chosen)


@pytest.mark.parametrize("rows", [1, 13, 40])
def test_symbolic_rows(rows: int) -> None:
    chosen = plan(0, 50, 24)
    func = linear((tirx.Var("m", "int64"),), 50, 24, chosen)
    check_linear((rows,), 50, 24, WIDE, func, chosen)


def test_symbolic_batch() -> None:
    chosen = plan(0, 33, 20)
    func = linear((tirx.Var("b", "int64"), 9), 33, 20, chosen)
    check_linear((3, 9), 33, 20, WIDE, func, chosen)


@settings(max_examples=8, deadline=None)
@given(
    left=st.sampled_from([(5,), (2, 3), ()]),
    m=st.integers(1, 40),
    n=st.integers(1, 70),
    k=st.integers(1, 40),
    transpose=st.booleans(),
    machine=st.sampled_from(MACHINES),
)
def test_batched(
    left: tuple[int, ...], m: int, n: int, k: int, transpose: bool, machine: Machine
) -> None:
    chosen = plan(m, n, k, machine)
    rng = np.random.default_rng(m * n)
    x = rng.standard_normal((*left, m, k)).astype("float32")
    y = rng.standard_normal((*left, n, k) if transpose else (*left, k, n)).astype("float32")
    a, b = placeholder(*x.shape), placeholder(*y.shape, name="y")
    z = batch_matmul(a, b, (chosen.m_block, chosen.n_block), transpose)
    out = te.compute(z.shape, lambda *i: z[i] * tirx.const(0.125, "float32"), name="scaled")
    expected = (x @ (np.swapaxes(y, -1, -2) if transpose else y)) * 0.125
    func = scheduled(BatchMatmul(), te.create_prim_func([a, b, out]), machine)
    result = run(func, [x, y], expected.shape, "float32")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_other_kernels_are_declined() -> None:
    x = placeholder(4, 4)
    func = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0)])
    for rule in (PackedMatmul(), BatchMatmul()):
        result = rule.apply(func, host_spec(WIDE))
        assert isinstance(result, Refusal)
        assert result.code == "family"


def test_two_results_are_declined() -> None:
    chosen = plan(8, 16, 16)
    x, w = placeholder(8, 16), placeholder(1, 16, chosen.n_block, name="w")
    y = packed_matmul(x, w, 16, chosen.m_block)
    twice = te.compute(y.shape, lambda i, j: y[i, j] * 2.0, name="twice")
    result = PackedMatmul().apply(te.create_prim_func([x, w, y, twice]), host_spec(WIDE))
    assert isinstance(result, Refusal)


def inner_loop(text: str, register: str) -> list[str]:
    """Instructions of the loop with the most multiply-adds."""
    best: list[str] = []
    lines = [line.strip() for line in text.splitlines()]
    starts = {line[:-1]: at for at, line in enumerate(lines) if re.fullmatch(r"\.LBB\w+:", line)}
    for at, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\.LBB\w+)$", line)
        if jump and starts.get(jump[1], at) < at:
            body = lines[starts[jump[1]] : at]
            if sum("vfmadd" in i for i in body) > sum("vfmadd" in i for i in best):
                best = body
    return [line for line in best if register in line]


@pytest.mark.parametrize(
    ("mcpu", "machine", "register"), [("x86-64-v4", WIDE, "zmm"), ("x86-64-v3", MIDDLE, "ymm")]
)
def test_inner_loop_is_multiply_adds_without_spills(
    mcpu: str, machine: Machine, register: str
) -> None:
    chosen = plan(128, 768, 768, machine)
    func = scheduled(PackedMatmul(), linear((128,), 768, 768, chosen), machine)
    body = inner_loop(assembly(func, mcpu), register)
    products = [line for line in body if line.startswith("vfmadd")]
    per_step = chosen.m_block * chosen.n_block // machine.lanes("float32")
    assert len(products) >= per_step
    assert len(products) % per_step == 0
    spills = [line for line in body if re.search(r"\(%r[sb]p\)", line)]
    assert not spills, spills


def test_the_next_panel_is_prefetched_once_a_step() -> None:
    chosen = plan(128, 768, 768)
    func = scheduled(PackedMatmul(), linear((128,), 768, 768, chosen))
    body = assembly(func, "x86-64-v4").splitlines()
    assert any("prefetcht0" in line for line in body)
    few = plan(8, 768, 768)
    text = assembly(scheduled(PackedMatmul(), linear((8,), 768, 768, few)), "x86-64-v4")
    assert "prefetch" not in text


def test_tile_fits_registers_on_any_machine() -> None:
    for machine in MACHINES:
        for m, n, k in [(1, 1000, 2048), (128, 768, 768), (7, 5, 3), (197, 3072, 768), (0, 64, 64)]:
            chosen = plan(m, n, k, machine)
            vectors = chosen.n_block // machine.lanes("float32")
            assert chosen.m_block * vectors + vectors < machine.vector_registers
            assert m == 0 or chosen.m_block <= m


def test_planner_refuses_what_has_no_kernel() -> None:
    for problem in (MatmulProblem(4, 4, 4, "int8"), MatmulProblem(4, 0, 4, "float32")):
        assert isinstance(plan_matmul(problem, WIDE), Refusal)


def test_planner_prefers_tiles_without_remainder() -> None:
    assert plan(49, 768, 768).m_block == 7
    assert 768 % plan(128, 768, 768).n_block == 0


def test_parallel_only_when_it_pays() -> None:
    import tvm_ffi

    def parallel(m: int, n: int, k: int) -> bool:
        kinds: list[int] = []
        func = scheduled(PackedMatmul(), linear((m,), n, k, plan(m, n, k)), WIDE)
        tvm_ffi.structural_walk(func.body, [(tirx.For, lambda loop: kinds.append(loop.kind))])
        return tirx.ForKind.PARALLEL in kinds

    assert parallel(128, 768, 768)
    assert not parallel(4, 32, 32)


def test_double_precision() -> None:
    problem = plan_matmul(MatmulProblem(9, 20, 11, "float64"), WIDE)
    assert isinstance(problem, MatmulPlan)
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((9, 11)), rng.standard_normal((11, 20))
    a = placeholder(9, 11, dtype="float64")
    b = placeholder(*pack_weight(w, problem.n_block).shape, name="w", dtype="float64")
    func = te.create_prim_func([a, b, packed_matmul(a, b, 20, problem.m_block)])
    out = tvm.runtime.tensor(np.zeros((9, 20)))
    packed = tvm.runtime.tensor(pack_weight(w, problem.n_block))
    build(scheduled(PackedMatmul(), func))(tvm.runtime.tensor(x), packed, out)
    np.testing.assert_allclose(out.numpy(), x @ w, rtol=1e-12)
