"""Standard operators in graphs: made, registered, read back."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.models import module
from uif_tvm import ops
from uif_tvm.errors import UsageError
from uif_tvm.ops.spec import TensorType
from uif_tvm.relax_util import calls
from uif_tvm.standard_ops import call, read


def made(shape, body):
    mod = module([("x", shape, "float32")], lambda x: [body(x)])
    return [value for _, value in calls(mod)][-1]


def test_operators_that_relax_lacks_are_read_back_as_they_were_made():
    node = made((2, 3, 4), lambda x: call("lp_normalize", x, axis=1, p=1))
    spec, operands, attrs = read(node)
    assert (spec.name, len(operands), attrs) == ("lp_normalize", 1, {"axis": 1, "p": 1})
    assert [int(n) for n in node.ty.shape] == [2, 3, 4]


def test_operands_left_out_are_none_again():
    weight = relax.const(np.ones((5, 4), np.float32))
    scale = made((3, 4), lambda x: call("linear", x, weight))
    assert [operand is None for operand in read(scale)[1]] == [False, False, True]


@pytest.mark.parametrize(
    "body",
    [
        lambda x: relax.op.nn.max_pool2d(x, (2, 2), layout="NHWC"),
        lambda x: relax.op.nn.avg_pool2d(x, (2, 2), ceil_mode=True),
        lambda x: relax.op.matmul(x, x, out_dtype="float64"),
        lambda x: relax.op.nn.adaptive_avg_pool2d(x, (2, 2), layout="NHWC"),
    ],
)
def test_calls_that_do_more_than_the_spec_says_are_not_read(body):
    assert read(made((1, 4, 4, 4), body)) is None


def test_plain_calls_of_relax_are_read():
    spec, _, attrs = read(made((1, 4, 4, 4), lambda x: relax.op.nn.avg_pool2d(x, (2, 2))))
    assert (spec.name, attrs["pool_size"]) == ("avg_pool2d", (2, 2))


def test_misfits_are_typed_errors():
    with pytest.raises(UsageError, match=r"lrn.*needs attribute 'size'"):
        made((1, 4, 4), lambda x: call("lrn", x))
    x, parameter = TensorType((1, 4, 4), "float32"), TensorType((4,), "float32")
    attrs = {"num_groups": 3, "channel_axis": 1, "axes": (2,)}
    with pytest.raises(UsageError, match=r"group_norm.*4 channels in 3 groups"):
        ops.find("group_norm").result_types([x, parameter, parameter], attrs)
