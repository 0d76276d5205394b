"""Parts of models as models: cut edges carry the values they had."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.selection import onnx_models as models
from uif_tvm.selection.arrays import load_arrays
from uif_tvm.selection.onnx_node import by_reference
from uif_tvm.selection.reduction.candidate import Part, Source, build, unsettled, whole
from uif_tvm.selection.reduction.search import _weights
from uif_tvm.selection.reduction.values import capture_values


def source(proto, folder):
    path = models.save(proto, folder)
    facts = capture_values(str(path), None, str(folder / "values"))
    proto = onnx.load(folder / "values" / "model.onnx")
    values = load_arrays(folder / "values" / "values.npz")
    values |= load_arrays(folder / "values" / "inputs.npz")
    sets = (frozenset(facts[key]) for key in ("fixed", "guessed", "lists"))
    return Source(proto, values, _weights(proto), *sets)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return source(models.classifier(), tmp_path_factory.mktemp("c"))


@settings(max_examples=40, deadline=None)
@given(kept=st.sets(st.integers(0, 11), min_size=1), constants=st.booleans())
def test_any_part_runs_and_gives_what_the_whole_gave(kept, constants, classifier):
    nodes = [classifier.proto.graph.node[i] for i in sorted(kept)]
    candidate = build(classifier, Part(tuple(nodes), constants=constants))
    assert candidate is not None
    onnx.checker.check_model(candidate.proto)
    results = by_reference(candidate.proto, candidate.feeds)
    assert len(results) == len(candidate.expected)
    for have, want in zip(results, candidate.expected.values(), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_what_is_settled_becomes_a_constant_and_the_rest_an_input(classifier):
    node = next(n for n in classifier.proto.graph.node if n.op_type == "Reshape")
    candidate = build(classifier, Part((node,)))
    assert list(candidate.feeds) == ["h"]
    assert [item.name for item in candidate.proto.graph.initializer] == ["target"]
    baked = build(classifier, Part((node,), constants=True))
    assert baked.feeds == {}


def test_the_settled_part_can_go(classifier):
    part = unsettled(classifier)
    assert len(part.nodes) == 9  # without Shape, Gather and Concat
    assert build(classifier, part) is not None


def test_outputs_asked_for_drop_the_nodes_that_others_need(classifier):
    candidate = build(classifier, Part(whole(classifier).nodes, ("c",)))
    assert [node.op_type for node in candidate.proto.graph.node] == ["MatMul", "Add"]


def test_nothing_is_compared_with_a_guess(tmp_path):
    made = source(models.classifier(custom=True), tmp_path)
    assert made.guessed == {"f"}
    node = next(n for n in made.proto.graph.node if n.op_type == "Wobble")
    candidate = build(made, Part((node,)))
    assert candidate.expected == {}
    assert [o.domain for o in candidate.proto.opset_import] == ["", models.VENDOR]
    after = build(made, Part((made.proto.graph.node[-1],)))
    assert [o.domain for o in after.proto.opset_import] == [""]


def test_sequences_do_not_cross_the_border(tmp_path):
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], name="split"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], name="join", axis=0),
    ]
    shape = [models.tensor("x", models.FLOAT, [2])], [models.tensor("y", models.FLOAT, [2])]
    made = source(models.model(nodes, *shape), tmp_path)
    split, join = made.proto.graph.node
    assert build(made, Part((split,))) is None
    assert build(made, Part((join,))) is None
    assert build(made, Part((split, join))) is not None
