"""Operators without converter run on the host: right, reported, priced; or refused on request."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper

import uif_tvm
from uif_tvm.errors import HostFallbackWarning, UnsupportedError


def _determinants(domain: str = "", op: str = "Det") -> object:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node(op, ["y"], ["d"], name="middle", domain=domain),
        helper.make_node("Neg", ["d"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3, 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])],
    )
    opsets = [helper.make_opsetid("", 18)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets)


X = np.random.default_rng(0).random((4, 3, 3), dtype=np.float32)


@pytest.mark.parametrize("level", [0, 2])
def test_host_operator_is_right_reported_and_priced(tmp_path, level):
    path = tmp_path / "m.uif"
    with pytest.warns(HostFallbackWarning, match="Det x1"):
        uif_tvm.export(_determinants(), X, path, optimize_level=level)
    engine = uif_tvm.load(path)
    for _ in range(3):
        (out,) = engine.run(X)
        np.testing.assert_allclose(out, -np.linalg.det(X), rtol=1e-5, atol=1e-6)
    stats = engine.get_stats()
    assert stats["host_fallbacks"] == 1
    assert stats["host_ms"]["Det"] > 0
    assert {"op": "Det", "where": "host", "count": 1, "reason": "no-kernel"} in engine.placement()


def test_engines_account_for_their_own_host_time(tmp_path):
    path = tmp_path / "m.uif"
    with pytest.warns(HostFallbackWarning):
        uif_tvm.export(_determinants(), X, path)
    busy, idle = uif_tvm.load(path), uif_tvm.load(path)
    busy.run(X)
    assert busy.get_stats()["host_ms"]
    assert not idle.get_stats()["host_ms"]


@pytest.mark.parametrize("mode", ["error", "compose"])
def test_refused_when_the_host_is_not_allowed(tmp_path, mode):
    with pytest.raises(UnsupportedError, match="Det x1 at middle"):
        uif_tvm.export(_determinants(), X, tmp_path / "m.uif", fallback_mode=mode)
    assert not list(tmp_path.iterdir())


def test_an_operator_nobody_knows_is_refused_in_every_mode(tmp_path):
    with pytest.raises(UnsupportedError, match="acme::Frobnicate"):
        uif_tvm.export(_determinants("acme", "Frobnicate"), X, tmp_path / "m.uif")


def test_a_model_of_native_operators_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        uif_tvm.export(_determinants("", "ReduceMax"), X, tmp_path / "m.uif")
