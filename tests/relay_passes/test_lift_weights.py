"""Weights leave the code, once per content; scalars stay immediates."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from uif_tvm.relay_passes.lift_weights import PASS, WEIGHTS_ATTR

from tests.models import compiled, constant, context, engine, imported, weights


@I.ir_module(s_tir=True)
class Before:
    @T.prim_func(private=True, s_tir=True)
    def add(
        a: T.Buffer((2,), "float32"), b: T.Buffer((2,), "float32"), c: T.Buffer((2,), "float32")
    ):
        for i in range(2):
            with T.sblock("c"):
                v = T.axis.spatial(2, i)
                c[v] = a[v] + b[v]

    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tuple(R.Tensor((2,), "float32")):
        cls = Before
        with R.dataflow():
            y = R.call_tir(
                cls.add, (x, R.const([1.0, 2.0], "float32")), out_ty=R.Tensor((2,), "float32")
            )
            z = R.call_tir(
                cls.add, (y, R.const([1.0, 2.0], "float32")), out_ty=R.Tensor((2,), "float32")
            )
            out = (z,)
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def add(
        a: T.Buffer((2,), "float32"), b: T.Buffer((2,), "float32"), c: T.Buffer((2,), "float32")
    ):
        for i in range(2):
            with T.sblock("c"):
                v = T.axis.spatial(2, i)
                c[v] = a[v] + b[v]

    @R.function
    def main(x: R.Tensor((2,), "float32"), weights: R.Any) -> R.Tuple(R.Tensor((2,), "float32")):
        cls = Expected
        with R.dataflow():
            w0: R.Tensor((2,), "float32") = R.call_pure_packed(
                "vm.builtin.tuple_getitem", weights, 0, ty_args=(R.Tensor((2,), "float32"),)
            )
            y = R.call_tir(cls.add, (x, w0), out_ty=R.Tensor((2,), "float32"))
            w1: R.Tensor((2,), "float32") = R.call_pure_packed(
                "vm.builtin.tuple_getitem", weights, 0, ty_args=(R.Tensor((2,), "float32"),)
            )
            z = R.call_tir(cls.add, (y, w1), out_ty=R.Tensor((2,), "float32"))
            out = (z,)
            R.output(out)
        return out


def test_before_and_expected():
    mod = PASS.apply(Before, context())
    (lifted,) = mod.attrs[WEIGHTS_ATTR]
    np.testing.assert_array_equal(lifted.numpy(), [1, 2])
    assert tvm_ffi.structural_equal(mod.without_attr(WEIGHTS_ATTR), Expected, map_free_vars=True), (
        mod.script()
    )


def lifted(body, inputs=(("x", (4, 4), "float32"),), level=2):
    return compiled(imported(inputs, body), level=level).weights


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_equal_contents_are_stored_once(level):
    first, same, other = weights(4, 4), weights(4, 4), weights(4, 4, seed=1)

    def body(x):
        for array in (first, same, other, first):
            x = relax.op.nn.softmax(relax.op.add(x, constant(array)))
        return [x]

    found = lifted(body, level=level).values()
    assert sorted(array.tobytes() for array in found) == sorted([first.tobytes(), other.tobytes()])


def test_equal_bytes_of_another_type_or_shape_are_different_weights(tmp_path):
    zeros = np.zeros(4, np.float32)
    model = imported(
        [],
        lambda: [
            constant(zeros),
            constant(zeros.view(np.int32)),
            constant(zeros.reshape(2, 2)),
            constant(zeros.astype(ml_dtypes.bfloat16)),
            constant(np.zeros((0, 3), np.float32)),
            constant(np.array(True)),
        ],
    )
    payload = compiled(model)
    assert len(payload.weights) == 6
    outputs = engine(tmp_path, model).run()
    assert [str(o.dtype) for o in outputs] == [
        *("float32", "int32", "float32", "bfloat16", "float32", "bool")
    ]
    assert [o.shape for o in outputs] == [(4,), (4,), (2, 2), (4,), (0, 3), ()]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_scalars_stay_immediates(tmp_path, level):
    def body(x):
        two, three = constant(2.0, "float32"), constant(3.0, "float32")
        return [relax.op.multiply(relax.op.add(x, two), three)]

    assert lifted(body, level=level) == {}
    x = weights(4, 4)
    made = engine(tmp_path, imported([("x", (4, 4), "float32")], body), level=level)
    np.testing.assert_allclose(made.run(x)[0], (x + 2) * 3, rtol=1e-6)


def test_special_values_keep_their_bits(tmp_path):
    bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
    (output,) = engine(tmp_path, imported([], lambda: [constant(bits)])).run()
    np.testing.assert_array_equal(output.view(np.uint32), bits.view(np.uint32))
