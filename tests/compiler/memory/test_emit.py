"""Allocations become tensors at fixed places, results parameters: Before and Expected, declines."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.models import compiled, constant, imported, save, weights
from uif_tvm import api
from uif_tvm.artifact.memory_plan import ArenaTensor, ResultTensor
from uif_tvm.compiler.memory import emit
from uif_tvm.compiler.memory.emit import plan_memory


def planned(mod: tvm.IRModule) -> emit.Planned:
    return plan_memory(mod, "dram", 1.0, exact=False)


def same(found: tvm.IRModule, expected: tvm.IRModule) -> None:
    normal = relax.transform.Normalize()
    equal = tvm_ffi.structural_equal(
        normal(found)["main"], normal(expected)["main"], map_free_vars=True
    )
    assert equal, found["main"].script()


@I.ir_module(s_tir=True)
class Before:
    @R.function(pure=False)
    def main(x: R.Tensor((4, 8), "float32"), weights: R.Any) -> R.Tuple(
        R.Tensor((32,), "float32"), R.Tensor((4, 8), "float32")
    ):
        a = R.builtin.alloc_tensor(R.shape([4, 8]), R.dtype("float32"), 0)
        R.call_packed("k0", x, a, ty_args=R.Tuple)
        b = R.builtin.alloc_tensor(R.shape([4, 8]), R.dtype("float32"), 0)
        R.call_packed("k1", a, b, ty_args=R.Tuple)
        flat = R.reshape(b, R.shape([32]))
        return (flat, x)


@I.ir_module(s_tir=True)
class Expected:
    @R.function(pure=False)
    def main(
        x: R.Tensor((4, 8), "float32"),
        weights: R.Any,
        memory: R.Any,
        result0: R.Tensor((32,), "float32"),
    ) -> R.Tuple(R.Tensor((4, 8), "float32")):
        a = R.call_packed(
            "vm.builtin.tuple_getitem", memory, 0, ty_args=R.Tensor((4, 8), "float32")
        )
        R.call_packed("k0", x, a, ty_args=R.Tuple)
        b = R.reshape(result0, R.shape([4, 8]))
        R.call_packed("k1", a, b, ty_args=R.Tuple)
        flat = R.reshape(b, R.shape([32]))  # noqa: F841
        return (x,)


def test_places_and_results():
    made = planned(Before)
    same(made.mod, Expected)
    assert made.plan.tensors == (ArenaTensor(0, 0, (4, 8), "float32"),)
    assert made.plan.results == (ResultTensor((32,), "float32"), None)
    assert [(arena.tier, arena.bytes) for arena in made.plan.arenas] == [("dram", 128)]
    (tier,) = made.report["tiers"]
    assert (tier["arena_bytes"], tier["bound_bytes"]) == (128, 128)
    (row,) = tier["buffers"]
    assert row | {"name": "a", "kind": "activation", "size": 128, "offset": 0} == row
    assert (row["first"], row["end"]) == (0, 2)
    assert made.report["steps"] == ["k0", "k1"]
    assert made.report["aliases"] == [{"name": "flat", "of": "b", "why": "reshaped, not copied"}]


@I.ir_module(s_tir=True)
class Open:
    """``n`` is at most 10 (see the attributes), ``m`` is read out of a tensor."""

    @R.function(pure=False)
    def main(
        x: R.Tensor(("n", 4), "float32"), k: R.Tensor((1,), "int64"), weights: R.Any
    ) -> R.Tuple(R.Tensor(("n", 4), "float32"), R.Tensor(ndim=1, dtype="float32")):
        R.func_attr(
            {"tir_var_lower_bound": {"n": T.int64(1)}, "tir_var_upper_bound": {"n": T.int64(10)}}
        )
        n = T.int64()
        m = T.int64()
        a = R.builtin.alloc_tensor(R.shape([n * 2, 4]), R.dtype("float32"), 0)
        R.call_packed("k0", x, a, ty_args=R.Tuple)
        size = R.tensor_to_shape(k)
        _ = R.match_cast(size, R.Shape([m]))
        b = R.builtin.alloc_tensor(R.shape([m]), R.dtype("float32"), 0)
        R.call_packed("k1", a, b, ty_args=R.Tuple)
        y = R.builtin.alloc_tensor(R.shape([n, 4]), R.dtype("float32"), 0)
        R.call_packed("k2", a, y, ty_args=R.Tuple)
        return (y, b)


def test_open_extents_get_the_bytes_of_their_upper_ends():
    made = planned(Open)
    assert made.plan.tensors == (ArenaTensor(0, 0, (20 * 4 * 4,), "uint8"),)
    assert made.plan.results == (None, None)
    assert made.open_places
    # m has no limit, and y is a result of open size: memory of its own.
    assert made.left == ["b", "y"]
    text = made.mod["main"].script()
    assert text.count("runtime.TVMTensorCreateView") == 1
    assert text.count("alloc_tensor") == 2


def test_sizes_that_no_run_comes_near_are_not_reserved(monkeypatch):
    monkeypatch.setattr(emit, "LARGEST_OPEN", 319)
    made = planned(Open)
    assert made.plan.tensors == ()
    assert made.refused_bytes == 320
    assert made.left == ["a", "b", "y"]


def softmaxes(x, count):
    for _ in range(count):
        x = relax.op.nn.softmax(x)
    return x


def test_a_range_of_extents_runs_in_one_arena(tmp_path):
    path = tmp_path / "m.uif"
    result = api.export(
        _onnx(tmp_path),
        output_path=path,
        dynamic_shapes={"x": {0: ("n", 1, 32)}},
        disable_fusion="*",
    )
    engine = api.load(path, threads=1)
    assert engine.get_stats()["arena_bytes"] == 2 * 32 * 8 * 4
    note = result.report["memory_plan"]["note"]
    assert note.startswith("memory is planned for the upper ends of all ranges")
    for rows in (32, 1, 7, 32):
        x = weights(rows, 8, seed=rows)
        want = x
        for _ in range(4):
            e = np.exp(want - want.max(-1, keepdims=True))
            want = e / e.sum(-1, keepdims=True)
        np.testing.assert_allclose(engine.run(x)[0], want, rtol=1e-4)


def _onnx(folder):
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Softmax", [f"t{i}"], [f"t{i + 1}"]) for i in range(4)]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("level", [0, 1])
def test_levels_that_verify_others_do_not_plan(level):
    model = imported([("x", (4, 4), "float32")], lambda x: [softmaxes(x, 3)])
    payload = compiled(model, level=level)
    assert "memory.json" not in payload.extras
    assert payload.report["memory_plan"] == {}


def test_names_are_told_apart_and_the_plan_is_near_the_bound():
    def body(x):
        matrix = constant(weights(16, 16))
        for _ in range(6):
            x = relax.op.nn.softmax(relax.op.matmul(relax.op.nn.softmax(x), matrix))
        return [x]

    report = compiled(imported([("x", (4, 16), "float32")], body), disabled_fusion=("*",)).report
    (tier,) = report["memory_plan"]["tiers"]
    names = [row["name"] for row in tier["buffers"]]
    assert len(set(names)) == len(names) > 5
    assert tier["arena_bytes"] == tier["bound_bytes"] == report["memory"]["arena"]
    assert "note" not in report["memory_plan"]


def test_everything_matches_level_0(tmp_path):
    """Long and short lives, fan-out, views and several results."""

    def body(x):
        a = softmaxes(x, 2)
        b = relax.op.reshape(softmaxes(relax.op.reshape(a, (8, 32)), 2), (16, 16))
        c = relax.op.nn.softmax(relax.op.add(a, b))
        d = relax.op.concat([a, b, c], axis=0)
        return [relax.op.nn.softmax(d), c, relax.op.reshape(c, (256,)), relax.op.add(a, c)]

    model = imported([("x", (16, 16), "float32")], body)
    engines = [
        api.load(
            save(
                tmp_path / f"{level}.uif",
                model,
                compiled(model, level=level, disabled_fusion=("*",)),
            ),
            threads=1,
        )
        for level in (0, 2, 3)
    ]
    for seed in range(3):
        x = weights(16, 16, seed=seed)
        want, *others = (engine.run(x) for engine in engines)
        for got in others:
            for one, other in zip(got, want, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
