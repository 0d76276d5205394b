"""The generic rule takes any kernel and never changes what it computes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx, topi
from tvm.script import tirx as T
from uif_tvm.schedules._common.generic import Generic

from tests.schedules.harness import MACHINES, WIDE, Array, host_spec, run_module, scheduled
from tests.schedules.op_cases import CASES, Instance
from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.target.spec import Machine


def legalised(instance: Instance, symbolic: bool = False) -> tvm.IRModule:
    """The instance as kernels: fused where TVM fuses them, with symbolic extents if asked."""
    builder = relax.BlockBuilder()
    parameters = []
    for at, array in enumerate(instance.inputs):
        dims = [
            tirx.Var(f"n{axis}", "int64") if symbolic else extent
            for axis, extent in enumerate(array.shape)
        ]
        parameters.append(relax.Var(f"x{at}", relax.TensorType(dims, str(array.dtype))))
    with builder.function("main", parameters):
        builder.emit_func_output(builder.emit(instance.apply(*parameters)))
    mod = relax.transform.LegalizeOps(dict(LEGALIZE))(builder.get())
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    mod = relax.transform.FuseOps()(mod)
    return relax.transform.FuseTIR()(mod)


def check(results: list[Array], expected: list[Array]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        if wanted.dtype.kind == "f":
            tolerance = {2: 2e-3, 4: 3e-5, 8: 1e-9}[wanted.dtype.itemsize]
            np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), machine=st.sampled_from(MACHINES))
def test_operator_against_numpy(name: str, seed: int, machine: Machine) -> None:
    instance = CASES[name](np.random.default_rng(seed))
    results = run_module(
        legalised(instance), instance.inputs, lambda func: scheduled(Generic(), func, machine)
    )
    check(results, list(instance.expected))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["exp", "softmax", "layer_norm", "sum", "matmul", "transpose", "conv"]
)
def test_symbolic_extents(name: str, rank: int) -> None:
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((3, 5, 7)[:rank]).astype("float32")
    cases = {
        "exp": (relax.op.exp, np.exp(x)),
        "softmax": (
            lambda v: relax.op.nn.softmax(v, -1),
            np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        ),
        "layer_norm": (lambda v: relax.op.subtract(v, relax.op.mean(v, -1, True)),
                       x - x.mean(-1, keepdims=True)),
        "sum": (lambda v: relax.op.sum(v, 0), x.sum(0)),
        "matmul": (lambda v: relax.op.matmul(v, relax.op.permute_dims(v)),
                   x @ x.T if rank == 2 else None),
        "transpose": (relax.op.permute_dims, x.transpose()),
        "conv": (lambda v: relax.op.nn.relu(relax.op.add(v, v)), np.maximum(x + x, 0)),
    }  # fmt: skip
    apply, expected = cases[name]
    if expected is None:
        pytest.skip("matmul of a tensor with its transposition needs rank 2")
    instance = Instance(apply, [x], [expected])
    results = run_module(
        legalised(instance, symbolic=True), [x], lambda func: scheduled(Generic(), func)
    )
    check(results, [expected])


def test_a_function_without_blocks_is_left_alone() -> None:
    @T.prim_func
    def plain(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i] + T.float32(1)

    result = Generic().apply(plain, host_spec(WIDE))
    tvm.ir.assert_structural_equal(result.func, plain)
    assert "left as written" in result.detail


def test_an_opaque_block_is_left_alone_and_said_so() -> None:
    @T.prim_func(s_tir=True)
    def scan(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        with T.sblock("scan"):
            T.reads(a[0:8])
            T.writes(b[0:8])
            b[0] = a[0]
            for i in range(7):
                b[i + 1] = b[i] + a[i + 1]

    result = Generic().apply(scan, host_spec(WIDE))
    assert "as written" in result.detail or "scalar" in result.detail
    x = np.arange(8, dtype="float32")
    out = run_module_kernel(result.func, x)
    np.testing.assert_array_equal(out, np.cumsum(x))


def run_module_kernel(func: tirx.PrimFunc, x: Array) -> Array:
    from tests.schedules.harness import run

    return run(func, [x], x.shape, str(x.dtype))


def test_big_elementwise_kernels_are_parallel_and_vectorised() -> None:
    x = te.placeholder((512, 1024), "float32")
    func = scheduled(Generic(), te.create_prim_func([x, topi.nn.relu(x)]))
    kinds = loop_kinds(func)
    assert tirx.ForKind.PARALLEL in kinds
    assert tirx.ForKind.VECTORIZED in kinds


def test_small_kernels_start_no_threads() -> None:
    x = te.placeholder((8, 16), "float32")
    func = scheduled(Generic(), te.create_prim_func([x, topi.nn.relu(x)]))
    assert tirx.ForKind.PARALLEL not in loop_kinds(func)


def test_convolution_keeps_a_register_tile() -> None:
    x = te.placeholder((1, 64, 32, 32), "float32")
    w = te.placeholder((64, 64, 3, 3), "float32")
    func = te.create_prim_func([x, w, topi.nn.conv2d(x, w, 1, 1, 1)])
    result = Generic().apply(func, host_spec(WIDE))
    assert "tile 4x" in result.detail
    assert tirx.ForKind.VECTORIZED in loop_kinds(result.func)


def loop_kinds(func: tirx.PrimFunc) -> set[int]:
    """Kinds of all loops in ``func``."""
    import tvm_ffi

    kinds: set[int] = set()
    tvm_ffi.structural_walk(func.body, [(tirx.For, lambda loop: kinds.add(int(loop.kind)))])
    return kinds
