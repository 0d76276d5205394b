"""Placement: what the target says is asked for each operator, and told in full."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper
from tvm import relax

from tests.models import constant, context, fake_target, imported, linear, weights
from uif_tvm.compiler.placement import place
from uif_tvm.errors import TargetError, UnsupportedError
from uif_tvm.frontends.onnx import import_onnx
from uif_tvm.target.spec import Refusal


def on(capability, model=None, **options):
    made = context(fake_target(capability=capability), **options)
    place(model or linear(), made)
    return made.report.placements


def host_model():
    out = relax.TensorType((4,), "float32")
    return imported(
        [("x", (4,), "float32")], lambda x: [relax.call_dps_packed("uif.odd", [x], out_ty=out)]
    )


def test_counts_by_operator_most_frequent_first():
    def body(x):
        for _ in range(3):
            x = relax.op.exp(x)
        return [relax.op.log(x)]

    rows = on(lambda *_: None, imported([("x", (2,), "float32")], body))
    assert [(r.op, r.where, r.count, r.reason) for r in rows] == [
        ("exp", "native", 3, ""),
        ("log", "native", 1, ""),
    ]


def test_predicate_gets_name_attributes_and_types():
    asked = []

    def capability(op, attrs, dtypes):
        asked.append((op, dict(attrs), dtypes))

    model = imported(
        [("x", (1, 3, 8, 8), "float16")],
        lambda x: [
            relax.op.nn.conv2d(x, constant(weights(4, 3, 1, 1).astype("float16")), strides=2)
        ],
    )
    on(capability, model)
    ((op, attrs, dtypes),) = asked
    assert (op, dtypes) == ("conv2d", ("float16", "float16"))
    assert [int(n) for n in attrs["strides"]] == [2, 2]


def test_kernels_that_a_frontend_wrote_are_asked_about_by_name_and_types():
    asked = []

    def capability(op, attrs, dtypes):
        asked.append((op, dtypes))

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("HardSwish", ["x"], ["y"])], "g", [x], [y])
    model = import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    on(capability, model)
    assert asked
    assert all(op != "call_tir" for op, _ in asked)
    assert all(set(dtypes) == {"float32"} for _, dtypes in asked)


def test_all_refusals_are_told_at_once_with_their_places():
    def capability(op, attrs, dtypes):
        return Refusal("rank", f"no {op}: here") if op in ("exp", "log") else None

    def body(x):
        emit = relax.BlockBuilder.current().emit
        a = emit(relax.op.exp(x), "first")
        b = emit(relax.op.exp(a), "second")
        return [emit(relax.op.log(relax.op.abs(b)), "third")]

    with pytest.raises(UnsupportedError) as caught:
        on(capability, imported([("x", (2,), "float32")], body), fallback_mode="error")
    error = caught.value
    assert [(o.op, o.count, o.reason, o.locations) for o in error.ops] == [
        ("exp", 2, "rank: no exp: here", ("first", "second")),
        ("log", 1, "rank: no log: here", ("third",)),
    ]
    assert (error.code, error.stage, error.target) == ("UIF-PLACE-REFUSED", "place", "fake")
    assert "allow fallback_mode='compose' or 'host'" in error.hint


def test_host_calls_are_placed_on_the_host():
    (row,) = on(lambda *_: None, host_model())
    assert (row.op, row.where, row.count, row.reason) == ("uif.odd", "host", 1, "no-kernel")


@pytest.mark.parametrize("mode", ["error", "compose"])
def test_host_calls_are_refused_in_other_modes(mode):
    with pytest.raises(UnsupportedError, match=r"uif\.odd x1 .* host only") as caught:
        on(lambda *_: None, host_model(), fallback_mode=mode)
    assert "allow fallback_mode='host'" in caught.value.hint


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        (lambda *_: False, "answered False, neither None nor a Refusal"),
        (lambda *_: "no", "answered 'no', neither None"),
        (lambda op: None, "failed: TypeError"),
        (lambda op, attrs, dtypes: attrs["missing"], "failed: KeyError: 'missing'"),
    ],
)
def test_predicate_that_is_wrong(capability, text):
    with pytest.raises(TargetError) as caught:
        on(capability)
    assert text in str(caught.value)
    assert (caught.value.code, caught.value.op) == ("UIF-TARGET-BROKEN", "matmul")
