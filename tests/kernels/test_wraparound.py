"""Integers wrap around, in kernels of one operator and in fused ones."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, te

from tests.models import engine, imported
from tests.schedules.harness import run
from uif_tvm.kernels import wraparound

OPERATIONS = {
    "add": (wraparound.add, np.add),
    "subtract": (wraparound.subtract, np.subtract),
    "multiply": (wraparound.multiply, np.multiply),
}
TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def edges(dtype):
    info = np.iinfo(dtype)
    around = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, info.max // 2 + 1]
    small = [v for v in (-7, -2, -1, 0, 1, 2, 3, 100) if info.min <= v <= info.max]
    random = np.random.default_rng(0).integers(info.min, info.max, 16, dtype, endpoint=True)
    return np.concatenate([np.array([*around, *small], dtype), random])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_pair_of_edges(name, dtype):
    kernel, reference = OPERATIONS[name]
    values = edges(dtype)
    a, b = (np.ascontiguousarray(side) for side in np.meshgrid(values, values))
    x, y = (te.placeholder(a.shape, dtype, name=side) for side in "xy")
    out = te.compute(a.shape, lambda i, j: kernel(x(i, j), y(i, j)), "out")
    func = te.create_prim_func([x, y, out])
    with np.errstate(over="ignore"):
        want = reference(a, b)
    np.testing.assert_array_equal(run(func, [a, b], a.shape, dtype), want)


def constant(value, like):
    return relax.const(value, str(like.ty.dtype.dtype))


CHAINS = {
    "product-remainder": lambda x: relax.op.floor_mod(
        relax.op.multiply(x, constant(6, x)), constant(6, x)
    ),
    "product-quotient": lambda x: relax.op.floor_divide(
        relax.op.multiply(x, constant(3, x)), constant(3, x)
    ),
    "sum-greater": lambda x: relax.op.greater(relax.op.add(x, constant(1, x)), x),
    "difference-less": lambda x: relax.op.less(relax.op.subtract(x, constant(1, x)), x),
    "sum-maximum": lambda x: relax.op.maximum(relax.op.add(x, constant(5, x)), x),
    "sum-widened": lambda x: relax.op.astype(relax.op.add(x, constant(1, x)), "int64"),
    "negative-greater": lambda x: relax.op.greater(relax.op.negative(x), constant(0, x)),
    "absolute-quotient": lambda x: relax.op.floor_divide(relax.op.abs(x), constant(2, x)),
    "large-sum-greater": lambda x: relax.op.greater(relax.op.add(x, constant(100, x)), x),
}


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_fused_chains_equal_single_operators(tmp_path, dtype):
    values = edges(dtype)
    model = imported(
        [("x", values.shape, dtype)], lambda x: [chain(x) for chain in CHAINS.values()]
    )
    want = engine(tmp_path, model, level=0).run(values)
    have = engine(tmp_path, model, level=2).run(values)
    for name, left, right in zip(CHAINS, have, want, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)
    wrapped = values + np.asarray(1, dtype)
    np.testing.assert_array_equal(want[list(CHAINS).index("sum-greater")], wrapped > values)
