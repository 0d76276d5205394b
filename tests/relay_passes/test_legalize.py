"""Every operator becomes a kernel call, or all that cannot are refused at once."""

from __future__ import annotations

import pytest
from tvm import relax
from uif_tvm.relay_passes import legalize

from tests.models import context, module
from uif_tvm.errors import UnsupportedError
from uif_tvm.relax_util import calls, high_level_ops, op_name

X = [("x", (4, 8), "float32")]


def apply(body, inputs=X):
    return legalize.PASS.apply(module(inputs, body), context())


@pytest.mark.parametrize(
    "body",
    [
        lambda x: [relax.op.exp(x), relax.op.add(x, x)],
        lambda x: [relax.op.sort(x, axis=1), relax.op.argsort(x, axis=0)],
        lambda x: [relax.op.cumsum(x, axis=1)],
        lambda x: [relax.op.nn.softmax(x), relax.op.nn.gelu(x)],
        lambda x: [relax.op.reshape(x, (32,)), relax.op.permute_dims(x)],
    ],
)
def test_only_kernel_calls_remain(body):
    mod = apply(body)
    assert not high_level_ops(mod)
    assert {op_name(call) for _, call in calls(mod)} <= {
        "relax.call_tir",
        "relax.call_dps_packed",
        "relax.call_pure_packed",
    }


def test_all_that_have_no_kernel_are_named_at_once(monkeypatch):
    monkeypatch.setattr(relax.transform, "LegalizeOps", lambda table: lambda mod: mod)
    monkeypatch.setattr(relax.backend, "DispatchSortScan", lambda: lambda mod: mod)
    with pytest.raises(UnsupportedError) as caught:
        apply(lambda x: [relax.op.exp(x), relax.op.exp(x), relax.op.nn.gelu(x)])
    error = caught.value
    assert error.code == "UIF-COMPILE-NO-KERNEL"
    assert [(op.op, op.count) for op in error.ops] == [("relax.exp", 2), ("relax.nn.gelu", 1)]
    assert (error.stage, error.target) == ("compile", "cpu")


def test_needs_and_promises():
    assert legalize.PASS.requires == {"indices-safe"}
    assert legalize.PASS.ensures == {"kernels-only"}
    assert not legalize.PASS.optional
