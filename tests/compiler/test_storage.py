"""Storage planned inside branches is made before them."""

from __future__ import annotations

import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

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
        s1 = R.memory.alloc_storage(R.shape([16]), 0, R.str("global"), R.dtype("uint8"))
        s0 = R.memory.alloc_storage(R.shape([16]), 0, R.str("global"), R.dtype("uint8"))
        a = R.memory.alloc_tensor(s0, 0, R.shape([4]), R.dtype("float32"))
        if c:
            b = R.memory.alloc_tensor(s1, 0, R.shape([4]), R.dtype("float32"))
            y = R.add(a, b)
        else:
            y = R.add(a, x)
        return y


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
