"""Small helpers over Relax."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tests.compiler.test_lower import Branches
from tests.models import module
from uif_tvm.relax_util import (
    attributes,
    bindings,
    calls,
    constant_array,
    high_level_ops,
    make_constant,
    op_name,
    static_shape,
)

DTYPES = ["float16", "bfloat16", "float32", "float64", "bool", "int8", "uint16", "int64"]


@given(
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.sampled_from("CF"),
)
def test_constants_hold_exactly_what_they_are_made_of(shape, dtype, order):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind, order=order)
    made = make_constant(array)
    assert (str(made.ty.dtype.dtype), static_shape(made)) == (dtype, shape)
    again = constant_array(made)
    assert (again.dtype, again.shape) == (kind, shape)
    np.testing.assert_array_equal(again, array)
    assert not again.flags.writeable


def test_strided_arrays_become_compact_constants():
    array = np.arange(12).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(constant_array(make_constant(array)), array)


@pytest.mark.parametrize(
    "other", [None, relax.prim_value(3), relax.ShapeExpr([1]), relax.Tuple([])]
)
def test_what_is_no_tensor_constant(other):
    assert constant_array(other) is None


def test_bindings_inside_branches_come_along_in_order():
    names = [binding.var.name for binding in bindings(Branches["main"])]
    assert names.index("a") < names.index("b")
    assert [op_name(call) for _, call in calls(Branches)] == [
        "relax.multiply",
        "relax.add",
        "relax.subtract",
        "relax.exp",
    ]
    assert high_level_ops(Branches) == Counter(
        {"relax.multiply": 1, "relax.add": 1, "relax.subtract": 1, "relax.exp": 1}
    )


def test_structural_operators_need_no_kernel():
    mod = module(
        [("x", (2,), "float32")],
        lambda x: [relax.op.memory.view(x, (2,), "float32"), relax.op.exp(x)],
    )
    assert high_level_ops(mod) == Counter({"relax.exp": 1})


def test_static_shape():
    n = tvm.tirx.Var("n", "int64")
    assert static_shape(relax.Var("x", relax.TensorType((2, 3), "float32"))) == (2, 3)
    assert static_shape(relax.Var("x", relax.TensorType((), "float32"))) == ()
    assert static_shape(relax.Var("x", relax.TensorType((n, 3), "float32"))) is None
    assert static_shape(relax.Var("x", relax.TensorType(dtype="float32", ndim=2))) is None


def test_attributes():
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    found = attributes(relax.op.nn.max_pool2d(x, (2, 2), layout="NCHW"))
    assert found["layout"] == "NCHW"
    assert [int(n) for n in found["pool_size"]] == [2, 2]
    assert attributes(relax.op.add(x, x)) == {}
