"""Operator specs: each agrees with the kernel that the compiler makes for it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import relax

from tests.models import engine, imported
from uif_tvm.ops import REGISTRY
from uif_tvm.ops.spec import OpSpec

RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((3, 4)).astype(np.float32)
OTHER = RNG.standard_normal((1, 4)).astype(np.float32)
BOOLS = FLOATS > 0
#: Operators whose operands are not two arrays of any floats.
SPECIAL = {
    "sqrt": [np.abs(FLOATS)],
    "rsqrt": [np.abs(FLOATS) + 0.1],
    "log": [np.abs(FLOATS) + 0.1],
    "logical_not": [BOOLS],
    "logical_and": [BOOLS, ~BOOLS[:1]],
    "logical_or": [BOOLS, ~BOOLS[:1]],
    "where": [BOOLS, FLOATS, OTHER],
    "power": [np.abs(FLOATS) + 0.1, OTHER],
    "permute_dims": [FLOATS],
    "expand_dims": [FLOATS],
    "squeeze": [OTHER],
    "astype": [FLOATS * 10],
}
ATTRS = {
    "permute_dims": [{"axes": [1, 0]}, {"axes": None}],
    "expand_dims": [{"axis": [0]}, {"axis": [1, 3]}],
    "squeeze": [{"axis": [0]}, {"axis": None}],
    "astype": [{"dtype": "int32"}, {"dtype": "float64"}],
}
UNARY = {
    name
    for name in REGISTRY
    if name not in SPECIAL
    and hasattr(relax.op, name)
    and name in ("abs", "ceil", "cos", "exp", "floor", "negative", "sigmoid", "sign", "sin", "tanh")
}


def operands(name):
    return SPECIAL.get(name) or ([FLOATS] if name in UNARY else [FLOATS, OTHER])


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_reference_agrees_with_the_kernel(tmp_path, name):
    spec, arrays = REGISTRY[name], operands(name)
    for attrs in ATTRS.get(name, [{}]):
        model = imported(
            [(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)],
            lambda *xs, attrs=attrs: [getattr(relax.op, name)(*xs, **attrs)],
        )
        (have,) = engine(tmp_path, model, level=0).run(*arrays)
        want = spec.evaluate(arrays, attrs)
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_specs_are_complete(name):
    spec = REGISTRY[name]
    assert spec.name == name
    assert re.fullmatch(r"[a-z_0-9]+", name)
    assert spec.family in ("elementwise", "shape")
    assert spec.version >= 1
    assert spec.flops_per_element >= 0
    assert hasattr(relax.op, name), "graph passes find the operator by this name"


def test_only_named_attributes_reach_the_reference():
    spec = OpSpec("twice", "elementwise", lambda x, by: x * by, attributes=("by",))
    value = spec.evaluate([np.ones(2)], {"by": 3, "other": "ignored"})
    np.testing.assert_array_equal(value, [3, 3])


def test_integer_division_by_zero_does_not_raise():
    value = REGISTRY["divide"].evaluate([np.array([1, -7]), np.array([0, 2])], {})
    np.testing.assert_array_equal(value[1:], [-3])
