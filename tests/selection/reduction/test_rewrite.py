"""Rewrites propose models that are what they say."""

from __future__ import annotations

import numpy as np
import onnx

from tests.selection import onnx_models as models
from uif_tvm.selection.onnx_node import by_reference
from uif_tvm.selection.reduction import rewrite


def test_the_branch_taken_takes_the_place_of_if():
    proto = models.branching()
    feeds = {"x": np.array([1, -2, 3, 4], np.float32)}
    want = by_reference(proto, feeds)[0]
    ((text, opened, given),) = rewrite.open_bodies(proto, feeds, {"c": np.array(True)})
    assert text == "If choose -> its then_branch"
    assert "If" not in {node.op_type for node in opened.graph.node}
    onnx.checker.check_model(opened, full_check=True)
    np.testing.assert_array_equal(by_reference(opened, given)[0], want)


def test_one_iteration_takes_the_place_of_a_loop():
    feeds = {"x": np.array([0.1, 0.2, 0.3], np.float32)}
    want = by_reference(models.looping(1), feeds)
    ((_, opened, given),) = rewrite.open_bodies(models.looping(1), feeds, {})
    assert "Loop" not in {node.op_type for node in opened.graph.node}
    onnx.checker.check_model(opened)
    for have, value in zip(by_reference(opened, given), want, strict=True):
        np.testing.assert_allclose(have, value, rtol=1e-6)


def test_names_of_bodies_do_not_clash():
    proto = models.branching()
    branch = next(a.g for a in proto.graph.node[2].attribute if a.name == "then_branch")
    # Legal: the outer graph defines it later.
    branch.node[0].output[0] = branch.node[1].input[0] = "y"
    feeds = {"x": np.ones(4, np.float32)}
    ((_, opened, _),) = rewrite.open_bodies(proto, feeds, {"c": np.array(True)})
    names = [name for node in opened.graph.node for name in node.output]
    assert len(names) == len(set(names))


def test_dimensions_shrink_together_and_shapes_along():
    proto = models.classifier()
    feeds = {"x": models.weights(2, 8)}
    proposals = list(rewrite.smaller(proto, feeds))
    assert [text for text, *_ in proposals][:3] == ["size 8 -> 1", "size 8 -> 2", "size 8 -> 4"]
    _, small, given = proposals[0]
    assert given["x"].shape == (2, 1)
    assert by_reference(small, given)[0].shape == (2, 1)


def test_details_go_one_by_one():
    proto = models.classifier()
    feeds = {"x": models.weights(2, 8)}
    texts = [text for text, *_ in rewrite.fewer_details(proto, feeds)]
    assert "probabilities without attribute axis" in texts
    assert "flat without operand 1" in texts
    assert [node.op_type for node in proto.graph.node] == [
        node.op_type for node in models.classifier().graph.node
    ]
