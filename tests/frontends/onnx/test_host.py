"""Operators without converter run on the host: right, reported, priced; or refused on request."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import uif_tvm
from uif_tvm.errors import HostFallbackWarning, RunError, UnsupportedError

F32, I64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
X = np.random.default_rng(0).random((4, 3, 3), dtype=np.float32)


def info(name: str, kind: int, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 20, **weights: Any
) -> Any:
    held = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    domains = {"": opset} | {node.domain: 1 for node in nodes if node.domain}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets)


def determinants(domain: str = "", op: str = "Det") -> Any:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node(op, ["y"], ["d"], name="middle", domain=domain),
        helper.make_node("Neg", ["d"], ["z"]),
    ]
    return model_of(nodes, [info("x", F32, [4, 3, 3])], [info("z", F32, [4])], opset=18)


def on_host(model: Any, inputs: Any, folder: Any) -> tuple[Any, dict[str, str]]:
    """The engine, and the reason for each operator on the host."""
    with pytest.warns(HostFallbackWarning):
        uif_tvm.export(model, inputs, folder / "m.uif")
    engine = uif_tvm.load(folder / "m.uif")
    rows = [row for row in engine.placement() if row["where"] == "host"]
    return engine, {row["op"]: row["reason"] for row in rows}


@pytest.mark.parametrize("level", [0, 2])
def test_host_operator_is_right_reported_and_priced(tmp_path, level):
    path = tmp_path / "m.uif"
    with pytest.warns(HostFallbackWarning, match="Det x1"):
        uif_tvm.export(determinants(), X, path, optimize_level=level)
    engine = uif_tvm.load(path)
    for _ in range(3):
        (out,) = engine.run(X)
        np.testing.assert_allclose(out, -np.linalg.det(X), rtol=1e-5, atol=1e-6)
    stats = engine.get_stats()
    assert stats["host_fallbacks"] == 1
    assert stats["host_ms"]["Det"] > 0
    (row,) = [row for row in engine.placement() if row["where"] == "host"]
    assert (row["op"], row["count"], row["reason"]) == ("Det", 1, "no-kernel")


def test_engines_account_for_their_own_host_time(tmp_path):
    path = tmp_path / "m.uif"
    with pytest.warns(HostFallbackWarning):
        uif_tvm.export(determinants(), X, path)
    busy, idle = uif_tvm.load(path), uif_tvm.load(path)
    busy.run(X)
    assert busy.get_stats()["host_ms"]
    assert not idle.get_stats()["host_ms"]


@pytest.mark.parametrize("mode", ["error", "compose"])
def test_refused_when_the_host_is_not_allowed(tmp_path, mode):
    with pytest.raises(UnsupportedError, match="Det x1 at middle"):
        uif_tvm.export(determinants(), X, tmp_path / "m.uif", fallback_mode=mode)
    assert not list(tmp_path.iterdir())


def test_an_operator_nobody_knows_is_refused_in_every_mode(tmp_path):
    with pytest.raises(UnsupportedError, match="acme::Frobnicate"):
        uif_tvm.export(determinants("acme", "Frobnicate"), X, tmp_path / "m.uif")


def test_a_model_of_native_operators_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        uif_tvm.export(determinants("", "ReduceMax"), X, tmp_path / "m.uif")


def test_all_refused_operators_are_told_at_once_with_place_and_remedy(tmp_path):
    nodes = [
        helper.make_node("Det", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["x"], ["b"], name="second"),
        helper.make_node("Frobnicate", ["a"], ["c"], name="third", domain="acme"),
        helper.make_node("ZipMap", ["c"], ["d"], name="fourth", domain="ai.onnx.ml"),
    ]
    outputs = [info("b", F32, [4]), info("d", F32, None)]
    model = model_of(nodes, [info("x", F32, [4, 3, 3])], outputs)
    with pytest.raises(UnsupportedError) as caught:
        uif_tvm.export(model, X, tmp_path / "m.uif", fallback_mode="error")
    found = {op.op: (op.count, op.locations, op.hint) for op in caught.value.ops}
    assert found["Det"][:2] == (2, ("first", "second"))
    assert "fallback_mode='host'" in found["Det"][2]
    assert "uif.register_op" in found["acme::Frobnicate"][2]
    assert "zipmap" in found["ai.onnx.ml::ZipMap"][2]


def test_results_whose_shapes_the_data_decides_feed_native_operators(tmp_path):
    nodes = [
        helper.make_node("Unique", ["x"], ["u", "", "", "n"], sorted=1),
        helper.make_node("Mul", ["u", "two"], ["y"]),
        helper.make_node("ReduceSum", ["n"], ["total"], keepdims=0),
    ]
    outputs = [info("y", F32, [None]), info("total", I64, [])]
    model = model_of(nodes, [info("x", F32, [6])], outputs, two=np.array(2, np.float32))
    engine, reasons = on_host(model, np.zeros(6, np.float32), tmp_path)
    assert reasons == {"Unique": "no-kernel"}
    for values in ([3, 1, 3, 2, 2, 2], [5] * 6, [1, 2, 3, 4, 5, 6]):
        y, total = engine.run(np.array(values, np.float32))
        np.testing.assert_array_equal(y, 2 * np.unique(values))
        assert total == 6


def test_subgraphs_see_the_values_around_them(tmp_path):
    """Rounds collect outputs, which only the host does; the body reads ``w``, computed outside."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Add", ["s", "w"], ["s_out"]),
            helper.make_node("Mul", ["s", "k"], ["kept"]),
        ],
        "body",
        [info("i", I64, []), info("c", BOOL, []), info("s", F32, [2])],
        [info("c_out", BOOL, []), info("s_out", F32, [2]), info("kept", F32, [2])],
        [numpy_helper.from_array(np.array(10, np.float32), "k")],
    )
    nodes = [
        helper.make_node("Relu", ["v"], ["w"]),
        helper.make_node("Loop", ["m", "", "s0"], ["last", "all"], body=body),
        helper.make_node("Neg", ["all"], ["y"]),
    ]
    inputs = [info("m", I64, []), info("v", F32, [2]), info("s0", F32, [2])]
    model = model_of(nodes, inputs, [info("last", F32, [2]), info("y", F32, [None, 2])])
    start = {"m": np.array(2), "v": np.array([1, -1], np.float32), "s0": np.ones(2, np.float32)}
    engine, reasons = on_host(model, start, tmp_path)
    assert "trip count" in reasons["Loop"]
    for rounds in (0, 1, 5):
        last, y = engine.run(start | {"m": np.array(rounds)})
        np.testing.assert_array_equal(last, [1 + rounds, 1])
        steps = np.arange(rounds)
        np.testing.assert_array_equal(y, -10 * np.stack([1 + steps, steps * 0 + 1], 1))


def test_texts_go_there_and_back(tmp_path):
    nodes = [
        helper.make_node("StringConcat", ["a", "b"], ["c"]),
        helper.make_node("Gather", ["c", "places"], ["d"]),
        helper.make_node("StringSplit", ["d"], ["parts", "count"], delimiter="-"),
    ]
    inputs = [info("a", STRING, [3]), info("places", I64, [2])]
    outputs = [info("parts", STRING, [2, None]), info("count", I64, [2])]
    model = model_of(nodes, inputs, outputs, b=np.array(["-x", "-y", ""], object))
    first = {"a": np.array(["p", "q", "r"], object), "places": np.array([2, 0])}
    engine, reasons = on_host(model, first, tmp_path)
    assert set(reasons) == {"StringConcat", "StringSplit"}
    parts, count = engine.run(first)
    assert parts.tolist() == [["r", ""], ["p", "x"]]
    assert count.tolist() == [1, 2]
    again = {"a": np.array(["über", "q-q", "r"], object), "places": np.array([1, 0])}
    parts, count = engine.run(again)
    assert parts.tolist() == [["q", "q", "y"], ["über", "x", ""]]


def test_sequences_of_run_time_length(tmp_path):
    """A sequence split at places of the run is a list on the host; joined, a tensor again."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "which"], ["part"]),
        helper.make_node("Neg", ["part"], ["y"]),
        helper.make_node("SequenceLength", ["parts"], ["n"]),
    ]
    inputs = [info("x", F32, [6, 2]), info("sizes", I64, [3]), info("which", I64, [])]
    model = model_of(nodes, inputs, [info("y", F32, [None, 2]), info("n", I64, [])])
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    given = {"x": x, "sizes": np.array([1, 2, 3]), "which": np.array(1)}
    engine, _ = on_host(model, given, tmp_path)
    for sizes, which in (([1, 2, 3], 1), ([4, 1, 1], 0), ([0, 0, 6], -1)):
        y, n = engine.run(given | {"sizes": np.array(sizes), "which": np.array(which)})
        np.testing.assert_array_equal(y, -np.split(x, np.cumsum(sizes)[:-1])[which])
        assert n == 3
    with pytest.raises(RunError, match="SequenceAt"):
        engine.run(given | {"which": np.array(9)})
