"""Graphs for reports: nodes in order, aliases looked through, kernels under their names."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.models import context, module
from uif_tvm.compiler.graph_view import graph, type_text
from uif_tvm.compiler.pipeline import passes_for, phases


def test_nodes_and_their_inputs():
    def build(x, y):
        return [relax.op.add(relax.op.exp(x), y)]

    mod = module([("x", (2, 3), "float32"), ("y", (3,), "float32")], build)
    nodes = graph(mod)
    assert [(node["op"], node["inputs"]) for node in nodes] == [
        ("input", []),
        ("input", []),
        ("exp", ["x"]),
        ("add", [nodes[2]["name"], "y"]),
    ]
    assert nodes[3]["type"] == "float32[2, 3]"


def test_tuples_are_looked_through():
    def build(x):
        parts = relax.op.split(x, 2, axis=0)
        return [relax.op.add(parts[0], parts[1])]

    nodes = graph(module([("x", (2, 3), "float32")], build))
    split = next(node for node in nodes if node["op"] == "split")
    assert split["type"] == "(float32[1, 3], float32[1, 3])"
    assert nodes[-1]["inputs"] == [split["name"]]


def test_names_are_unique():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            first = relax.DataflowVar("y", x.ty)
            bb.emit_normalized(relax.VarBinding(first, bb.normalize(relax.op.exp(x))))
            second = relax.DataflowVar("y", x.ty)
            bb.emit_normalized(relax.VarBinding(second, bb.normalize(relax.op.exp(first))))
            out = bb.emit_output(second)
        bb.emit_func_output(out)
    assert [node["name"] for node in graph(bb.get())] == ["x", "y", "y#1"]


def test_kernels_after_the_pipeline():
    mod = module([("x", (2, 3), "float32")], lambda x: [relax.op.add(relax.op.exp(x), x)])
    ctx = context(level=2)
    for phase in phases():
        for graph_pass in passes_for(phase, ctx):
            mod = graph_pass.apply(mod, ctx)
    plain = graph(mod)
    assert [node["op"] for node in plain[:1]] == ["input"]
    (kernel,) = plain[1:]
    assert kernel["inputs"] == ["x"]
    nodes = graph(mod, {kernel["op"]: [("exp", "lv"), ("add", "gv")]})
    assert nodes[1]["sources"] == ["lv", "gv"]


def test_weights_are_no_nodes():
    weight = relax.const(np.ones((3,), "float32"))
    mod = module([("x", (2, 3), "float32")], lambda x: [relax.op.add(x, weight)])
    ctx = context(level=0)
    for phase in phases():
        for graph_pass in passes_for(phase, ctx):
            mod = graph_pass.apply(mod, ctx)
    assert [node["op"] for node in graph(mod)] == ["input", "add"]


def test_types_without_extents():
    assert type_text(relax.TensorType(ndim=2, dtype="int8")) == "int8[?]"
    assert type_text(relax.ShapeType([1, 2])) == "shape"
