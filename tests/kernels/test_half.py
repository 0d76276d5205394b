"""Convolutions and Einstein sums of 16-bit floats are rounded once, not after every addition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.runtime.tensors import numpy_dtype

RNG = np.random.default_rng(8)
#: Largest error of one rounding, relative to the value.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def run(build: Any, *arrays: Any) -> Any:
    """``build(*variables)`` on arrays, as float64."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{i}", relax.TensorType(a.shape, a.dtype.name)) for i, a in enumerate(arrays)
    ]
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(build(*variables)))
    with tvm.target.Target("llvm"):
        mod = relax.transform.LegalizeOps(dict(LEGALIZE))(builder.finalize())
        executable = tvm.compile(mod, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    assert result.dtype == arrays[0].dtype
    return result.astype(np.float64)


def assert_rounded_once(got: Any, exact: Any, dtype: str) -> None:
    spread = np.abs(exact).mean()
    assert np.all(np.abs(got - exact) <= 1.2 * ROUNDING[dtype] * (np.abs(exact) + spread / 50))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank: int, dtype: str) -> None:
    space = [6, 4, 3][:rank]
    kind = numpy_dtype(dtype)
    x = RNG.standard_normal((1, 200, *space)).astype(kind)
    w = RNG.standard_normal((3, 200, *[1] * rank)).astype(kind)
    got = run(getattr(relax.op.nn, f"conv{rank}d"), x, w)
    wide = w.astype(np.float64).reshape(3, 200), x.astype(np.float64).reshape(200, -1)
    assert_rounded_once(got.reshape(3, -1), wide[0] @ wide[1], dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_einsum(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    a = RNG.standard_normal((4, 900)).astype(kind)
    b = RNG.standard_normal((900, 3)).astype(kind)
    got = run(lambda p, q: relax.op.einsum((p, q), "ij,jk->ik"), a, b)
    assert_rounded_once(got, a.astype(np.float64) @ b.astype(np.float64), dtype)
