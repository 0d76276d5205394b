"""Storage planned inside branches is made before them."""

from __future__ import annotations

import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.models import module
from uif_tvm.compiler.storage import hoist_storage


@I.ir_module(s_tir=True)
class Before:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        s0 = R.memory.alloc_storage(R.shape([16]), 0, R.str("global"), R.dtype("uint8"))
        a = R.memory.alloc_tensor(s0, 0, R.shape([4]), R.dtype("float32"))
        if c:
            s1 = R.memory.alloc_storage(R.shape([16]), 0, R.str("global"), R.dtype("uint8"))
            b = R.memory.alloc_tensor(s1, 0, R.shape([4]), R.dtype("float32"))
            y = R.add(a, b)
        else:
            y = R.add(a, x)
        return y


@I.ir_module(s_tir=True)
class Expected:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        s0 = R.memory.alloc_storage(R.shape([16]), 0, R.str("global"), R.dtype("uint8"))
        a = R.memory.alloc_tensor(s0, 0, R.shape([4]), R.dtype("float32"))
        s1 = R.memory.alloc_storage(R.shape([16]), 0, R.str("global"), R.dtype("uint8"))
        if c:
            b = R.memory.alloc_tensor(s1, 0, R.shape([4]), R.dtype("float32"))
            y = R.add(a, b)
        else:
            y = R.add(a, x)
        return y


@I.ir_module(s_tir=True)
class Sized:
    """One size is the input's, the other is read inside the branch."""

    @R.function(pure=False)
    def main(
        x: R.Tensor(("n",), "float32"), k: R.Tensor((1,), "int64"), c: R.Tensor((), "bool")
    ) -> R.Object:
        n = T.int64()
        m = T.int64()
        if c:
            s0 = R.memory.alloc_storage(R.shape([n * 4]), 0, R.str("global"), R.dtype("uint8"))  # noqa: F841
            size = R.tensor_to_shape(k)
            _ = R.match_cast(size, R.Shape([m]))
            s1 = R.memory.alloc_storage(R.shape([m * 4]), 0, R.str("global"), R.dtype("uint8"))
            y = R.memory.alloc_tensor(s1, 0, R.shape([m]), R.dtype("float32"))
        else:
            s2 = R.memory.alloc_storage(R.shape([n * 4]), 0, R.str("global"), R.dtype("uint8"))
            y = R.memory.alloc_tensor(s2, 0, R.shape([n]), R.dtype("float32"))
        return y


def test_sizes_read_in_a_branch_stay_there():
    main = hoist_storage(Sized)["main"]
    text = main.script()
    before, inside = text.split("if c:")
    assert before.count("alloc_storage") == 2
    assert inside.count("alloc_storage") == 1
    assert "m * 4" in inside


def merged(mod):
    """Without the boundary between the moved block and the first one."""
    return relax.transform.Normalize()(mod)


def test_before_and_expected():
    tvm_ffi_equal = tvm_ffi.structural_equal(
        merged(hoist_storage(Before)), merged(Expected), map_free_vars=True
    )
    assert tvm_ffi_equal, hoist_storage(Before).script()


def test_modules_without_branches_stay_as_they_are():
    mod = relax.transform.ToNonDataflow()(
        module([("x", (2,), "float32")], lambda x: [relax.op.exp(x)])
    )
    assert hoist_storage(mod) is mod
