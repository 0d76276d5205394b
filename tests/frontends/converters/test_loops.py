"""Loops: unrolled, counted at run time, nested; on the host with outputs collected."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import uif_tvm
from tests.frontends.onnx.harness import execute
from uif_tvm.errors import HostFallbackWarning, UnsupportedError
from uif_tvm.frontends.onnx import import_onnx

F = np.float32
BOOL, F32, I64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64


def info(name: str, kind: int, shape: list[int] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], **weights: Any) -> Any:
    held = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def doubling(collects: bool = False, grows: bool = False) -> Any:
    """s = s * x + k while s[0] < 1e4 and fewer than m rounds ran; x is of the outer graph."""
    nodes = [
        helper.make_node("Gather", ["s", "zero"], ["head"]),
        helper.make_node("Less", ["head", "top"], ["c_out"]),
        helper.make_node("Mul", ["s", "x"], ["product"]),
        helper.make_node("Add", ["product", "k"], ["s_out"]),
        helper.make_node("Concat" if grows else "Identity", ["n", "n"][: 1 + grows], ["n_out"],
                         **({"axis": 0} if grows else {})),
    ]  # fmt: skip
    outputs = [info("c_out", BOOL, []), info("s_out", F32, [100]), info("n_out", I64, None)]
    if collects:
        nodes.append(helper.make_node("Identity", ["s"], ["kept"]))
        outputs.append(info("kept", F32, [100]))
    body = helper.make_graph(
        nodes, "body",
        [info("i", I64, []), info("c_in", BOOL, []), info("s", F32, [100]), info("n", I64, [1])],
        outputs,
        [numpy_helper.from_array(np.full(100, 0.5, F), "k"),
         numpy_helper.from_array(np.array(1e4, F), "top"),
         numpy_helper.from_array(np.array(0), "zero")],
    )  # fmt: skip
    results = ["s_end", "n_end"] + ["all"] * collects
    loop = helper.make_node("Loop", ["m", "c", "s0", "n0"], results, body=body)
    return model_of(
        [helper.make_node("Relu", ["x0"], ["x"]), loop],
        [info("m", I64, []), info("c", BOOL, []), info("s0", F32, [100]), info("x0", F32, [100])],
        [info("s_end", F32, [100]), info("n_end", I64, None)]
        + ([info("all", F32, [None, 100])] if collects else []),
        n0=np.array([1]),
    )


START = {"m": np.array(2), "c": np.array(True), "s0": np.ones(100, F), "x0": np.full(100, 1.5, F)}


@pytest.mark.parametrize("rounds", [0, 1, 7, 1000])
@pytest.mark.parametrize("going", [True, False])
def test_rounds_and_condition_of_the_run(rounds: int, going: bool) -> None:
    model = doubling()
    given = START | {"m": np.array(rounds), "c": np.array(going)}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    imported = import_onnx(model, START)
    assert not imported.specialised
    for ours, theirs in zip(execute(imported, given), session.run(None, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_loop_in_a_loop() -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["ci"], ["co"]), helper.make_node("Add", ["t", "s"], ["to"])],
        "inner", [info("j", I64, []), info("ci", BOOL, []), info("t", F32, [3])],
        [info("co", BOOL, []), info("to", F32, [3])],
    )  # fmt: skip
    outer = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Add", ["i", "one"], ["count"]),
            helper.make_node("Loop", ["count", "", "s"], ["s_out"], body=inner),
        ],
        "outer", [info("i", I64, []), info("c", BOOL, []), info("s", F32, [3])],
        [info("c_out", BOOL, []), info("s_out", F32, [3])],
        [numpy_helper.from_array(np.array(1), "one")],
    )  # fmt: skip
    model = model_of(
        [helper.make_node("Loop", ["m", "", "s0"], ["y"], body=outer)],
        [info("m", I64, []), info("s0", F32, [3])],
        [info("y", F32, [3])],
    )
    given = {"m": np.array(3), "s0": np.array([1, 2, 3], F)}
    (got,) = execute(import_onnx(model, given), given)
    np.testing.assert_array_equal(got, given["s0"] * (2 * 3 * 4))


@pytest.mark.parametrize("rounds", [0, 2, 5])
def test_collected_outputs_run_on_the_host(tmp_path: Any, rounds: int) -> None:
    model, path = doubling(collects=True), tmp_path / "m.uif"
    with pytest.warns(HostFallbackWarning, match="Loop"):
        uif_tvm.export(model, START, path)
    given = START | {"m": np.array(rounds)}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    engine = uif_tvm.load(path)
    for ours, theirs in zip(engine.run(given), session.run(None, given), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    (row,) = [row for row in engine.placement() if row["op"] == "Loop"]
    assert row["where"] == "host"
    assert "collected over rounds" in row["reason"]


def test_state_that_grows_is_left_to_the_host() -> None:
    imported = import_onnx(doubling(grows=True), START, host_fallback=True)
    assert "changes shape" in imported.host_reasons["Loop"]


def test_without_a_host_collecting_until_a_condition_is_refused() -> None:
    model = doubling(collects=True)
    inputs = [value for value in model.graph.input if value.name != "c"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    given = {name: value for name, value in START.items() if name != "c"}
    with pytest.raises(UnsupportedError, match="condition computed at run time"):
        import_onnx(model, given)


@pytest.mark.parametrize("rounds", [100, 2_500])
def test_many_known_rounds_run_one_by_one(rounds: int) -> None:
    """5000 nodes are not unrolled: the module stays small."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["co"]), helper.make_node("Add", ["s", "x"], ["so"])],
        "body", [info("i", I64, []), info("c", BOOL, []), info("s", F32, [2])],
        [info("co", BOOL, []), info("so", F32, [2])],
    )  # fmt: skip
    model = model_of(
        [helper.make_node("Loop", ["m", "", "s0"], ["y"], body=body)],
        [info("x", F32, [2]), info("s0", F32, [2])],
        [info("y", F32, [2])],
        m=np.array(rounds),
    )
    given = {"x": np.array([1, -2], F), "s0": np.array([0.5, 0.25], F)}
    imported = import_onnx(model, given)
    assert ("loop_round" in imported.mod.script()) == (rounds > 2_000)
    (got,) = execute(imported, given)
    np.testing.assert_allclose(got, given["s0"] + rounds * given["x"])
