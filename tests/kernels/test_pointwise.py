"""Pointwise kernels: broadcasting, and patterns that fuse."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from tests.models import constant, context, imported, module
from uif_tvm.compiler.lower import compile_module
from uif_tvm.kernels.legalize import LEGALIZE

ELEMENTWISE = 0


def patterns(shapes, body):
    rows = [(f"x{i}", shape, "float32") for i, shape in enumerate(shapes)]
    mod = relax.transform.LegalizeOps(dict(LEGALIZE))(module(rows, body))
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    return [
        int(func.attrs["op_pattern"])
        for func in mod.functions.values()
        if isinstance(func, tirx.PrimFunc)
    ]


@pytest.mark.parametrize("shape", [(1, 4, 1, 5), (2, 3)])
def test_kernels_of_one_shape_are_elementwise_also_over_extents_of_one(shape):
    found = patterns([shape, shape], lambda x, y: [relax.op.maximum(relax.op.clip(x, 0, 6), y)])
    assert set(found) == {ELEMENTWISE}


def test_broadcasting_is_told_apart():
    (found,) = patterns([(1, 4), (3, 1)], lambda x, y: [relax.op.maximum(x, y)])
    assert found > ELEMENTWISE


def test_a_hard_swish_of_two_readers_fuses_into_the_convolution_before_it():
    weight = constant(np.ones((16, 16, 1, 1), np.float32))

    def body(x):
        y = relax.op.nn.conv2d(x, weight)
        gate = relax.op.clip(relax.op.add(y, constant(np.float32(3))), 0, 6)
        return [relax.op.divide(relax.op.multiply(y, gate), constant(np.float32(6)))]

    made = context("cpu", 3)
    model = imported([("x", (1, 16, 8, 8), "float32")], body)
    compile_module(model.mod, made, lambda *_: None)
    groups = [choice.ops for choice in made.report.kernels if "layout" not in choice.ops[0]]
    assert groups == [("conv2d", "hard_swish_blocked")]
