"""Operators that the target refuses: composed, run on the host, or refused, always told."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.models import context, engine, fake_target, imported
from uif_tvm import ops, standard_ops
from uif_tvm.compiler.fallback import Rehearsal, composable
from uif_tvm.compiler.placement import place
from uif_tvm.errors import UnsupportedError, UsageError
from uif_tvm.ops import infer
from uif_tvm.ops.spec import Attribute, OpSpec, TensorType
from uif_tvm.relax_util import calls, op_name
from uif_tvm.target.spec import Refusal

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def _twice_plus(builder, operands, attrs):
    (x,) = operands
    return builder.op("add", builder.op("multiply", x, builder.const(2, "float32")), x)


def _sum_and_negative(x):
    return x + x, -x


@pytest.fixture(scope="module", autouse=True)
def _operators():
    for spec in (
        OpSpec(
            "test_triple",
            "test",
            lambda x: 3 * x,
            infer.same,
            decompose=_twice_plus,
            cases=lambda: (),
        ),
        OpSpec(
            "test_shifted",
            "test",
            lambda x, by: x + np.float32(by),
            infer.same,
            attributes=(Attribute("by", 1.5),),
            cases=lambda: (),
        ),
        OpSpec(
            "test_two_results",
            "test",
            _sum_and_negative,
            lambda types, attrs: (types[0], types[0]),
            results=2,
            decompose=lambda b, o, a: (b.op("add", o[0], o[0]), b.op("negative", o[0])),
            cases=lambda: (),
        ),
    ):
        ops.register(spec)
    yield
    for name in ("test_triple", "test_shifted", "test_two_results"):
        ops._by_graph_name.pop(ops._by_name.pop(name).graph_name)


def refusing(*names):
    return fake_target(
        capability=lambda op, attrs, dtypes: Refusal("op", f"no {op}") if op in names else None
    )


def applied(name, **attrs):
    def body(x):
        value = relax.BlockBuilder.current().emit(standard_ops.call(name, x, **attrs), "node")
        if isinstance(value.ty, relax.TupleType):
            return [relax.TupleGetItem(value, i) for i in range(len(value.ty.fields))]
        return [value]

    return imported([("x", X.shape, "float32")], body)


def placed(model, target, **options):
    made = context(target, **options)
    return place(model, made).mod, [(p.op, p.where, p.reason) for p in made.report.placements]


def test_an_operator_without_kernel_is_composed(tmp_path):
    mod, rows = placed(applied("test_triple"), refusing())
    assert rows == [("test_triple", "composed", "no-kernel")]
    assert [op_name(call) for _, call in calls(mod)] == ["relax.multiply", "relax.add"]
    (have,) = engine(tmp_path, applied("test_triple"), fallback_mode="compose").run(X)
    np.testing.assert_array_equal(have, 3 * X)


def test_what_cannot_be_composed_runs_on_the_host(tmp_path):
    _, rows = placed(applied("test_shifted", by=0.5), refusing())
    assert rows == [("test_shifted", "host", "no-kernel")]
    compiled = engine(tmp_path, applied("test_shifted", by=0.5))
    (row,) = compiled.placement()
    assert (row["reason"], row["host_ms"]) == ("no-kernel", None)
    (have,) = compiled.run(X)
    assert compiled.placement()[0]["host_ms"] > 0
    np.testing.assert_array_equal(have, X + np.float32(0.5))
    assert compiled.get_stats()["host_fallbacks"] == 1
    assert compiled.get_stats()["host_ms"]["test_shifted"] > 0


def test_several_results_are_composed_and_run_on_the_host(tmp_path):
    for names, way in ((("none",), "composed"), (("negative",), "host")):
        model, target = applied("test_two_results"), refusing(*names)
        assert placed(model, target)[1][0][1] == way
        summed, negative = engine(tmp_path, model, target=target).run(X)
        np.testing.assert_array_equal(summed, X + X)
        np.testing.assert_array_equal(negative, -X)


def test_refused_by_the_target_goes_to_the_host_with_the_targets_reason(tmp_path):
    model = imported([("x", X.shape, "float32")], lambda x: [relax.op.exp(x)])
    assert placed(model, refusing("exp"))[1] == [("exp", "host", "op")]
    (have,) = engine(tmp_path, model, target=refusing("exp")).run(X)
    np.testing.assert_allclose(have, np.exp(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "name", "refuses", "hint"),
    [
        ("error", "test_triple", (), "allow fallback_mode='compose' or 'host'"),
        ("compose", "test_shifted", (), "allow fallback_mode='host'"),
        ("compose", "test_triple", ("multiply",), "allow fallback_mode='host'"),
    ],
)
def test_modes_that_do_not_allow_it_refuse_with_a_remedy(mode, name, refuses, hint):
    with pytest.raises(UnsupportedError, match=rf"{name} x1 at node: no-kernel") as caught:
        placed(applied(name), refusing(*refuses), fallback_mode=mode)
    assert hint in str(caught.value)


def test_a_decomposition_is_rehearsed_before_anything_is_emitted():
    spec = ops.find("test_triple")
    types = [TensorType(("n", 4), "float32")]
    asked = []

    def ask(op, attrs, dtypes):
        asked.append((op, dtypes))
        return Refusal("no", "no") if op == "add" else None

    rehearsal = Rehearsal(ask)
    spec.decompose(rehearsal, types, {})
    assert rehearsal.refused == ["add (no)"]
    assert asked == [("multiply", ("float32",) * 2), ("add", ("float32",) * 2)]
    assert not composable(spec, types, {}, ask)
    assert composable(spec, types, {}, lambda *_: None)


def test_the_budget_limits_the_estimated_time_on_the_host():
    model = applied("test_shifted")
    with pytest.raises(
        UnsupportedError, match=r"test_shifted x1: on the host .* 100\.0%"
    ) as caught:
        placed(model, refusing(), fallback_budget=20)
    assert caught.value.code == "UIF-PLACE-BUDGET"
    assert placed(model, refusing(), fallback_budget=100)[1][0][1] == "host"
    with pytest.raises(UsageError, match="from 0 to 100, got 101"):
        context(refusing(), fallback_budget=101)


def test_a_version_of_the_operator_that_is_not_installed_is_told(tmp_path, monkeypatch):
    from uif_tvm.errors import UifError
    from uif_tvm.runtime import reference_ops

    compiled = engine(tmp_path, applied("test_shifted"))
    reference_ops._plan.cache_clear()
    monkeypatch.setattr(reference_ops.ops, "find", lambda name: ops._by_name["test_triple"])
    object.__setattr__(ops._by_name["test_triple"], "version", 2)
    with pytest.raises(UifError, match=r"version 1 of operator 'test_triple'; version 2"):
        compiled.run(X)
    object.__setattr__(ops._by_name["test_triple"], "version", 1)
    reference_ops._plan.cache_clear()
