"""Convolutions over extents of run time become register-tile kernels; others are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from uif_tvm.relay_passes import plane_conv

from tests.models import constant, context, module, weights
from uif_tvm.relax_util import calls, op_name


def rewritten(mod: Any) -> tuple[list[str], Any]:
    """(operators left, the report) after the pass."""
    made = context()
    mod = plane_conv.PASS.apply(mod, made)
    names = []
    for _, call in calls(mod):
        name = op_name(call)
        names.append(call.args[0].name_hint if name == "relax.call_tir" else name)
    return names, made.report


def conv(weight: Any, rows: Any, **options: Any) -> Any:
    width = tirx.Var("w", "int64")
    channels = weight.shape[1] * options.get("groups", 1)
    shape = (1, channels, width) if weight.ndim == 3 else (1, channels, rows, width)
    op = relax.op.nn.conv1d if weight.ndim == 3 else relax.op.nn.conv2d
    return module([("x", shape, "float32")], lambda x: [op(x, constant(weight), **options)])


@pytest.mark.parametrize(
    ("weight", "options", "kernel"),
    [
        (weights(8, 4, 3, 3), {"padding": [1, 1]}, "conv2d"),
        (weights(8, 4, 1, 1), {}, "conv2d"),
        (weights(8, 4, 3), {"padding": [2, 2], "dilation": 2}, "conv2d"),
        (weights(6, 1, 3, 3), {"groups": 6, "strides": [2, 2]}, "depthwise_conv2d"),
    ],
)
def test_open_extents_are_rewritten(weight: Any, options: Any, kernel: str) -> None:
    left, report = rewritten(conv(weight, 9, **options))
    assert left == [kernel]
    assert report.decisions[-1].fired
    assert "run time" in report.decisions[-1].reason


def test_small_groups_are_declined() -> None:
    left, report = rewritten(conv(weights(8, 4, 3, 3), 9, groups=2))
    assert left == ["relax.nn.conv2d"]
    assert "2 groups of 4 filters" in report.decisions[-1].reason


def test_static_extents_are_left_to_blocked_layouts() -> None:
    mod = module(
        [("x", (1, 4, 9, 9), "float32")],
        lambda x: [relax.op.nn.conv2d(x, constant(weights(8, 4, 3, 3)))],
    )
    left, report = rewritten(mod)
    assert left == ["relax.nn.conv2d"]
    assert not report.decisions


def test_filters_made_at_run_time_are_declined() -> None:
    width = tirx.Var("w", "int64")
    mod = module(
        [("x", (1, 4, 9, width), "float32"), ("k", (8, 4, 3, 3), "float32")],
        lambda x, k: [relax.op.nn.conv2d(x, k)],
    )
    left, report = rewritten(mod)
    assert left == ["relax.nn.conv2d"]
    assert "constant" in report.decisions[-1].reason


def test_filters_of_another_dtype_are_declined() -> None:
    width = tirx.Var("w", "int64")
    mod = module(
        [("x", (1, 4, 9, width), "float16")],
        lambda x: [relax.op.nn.conv2d(x, constant(weights(8, 4, 3, 3).astype(np.float16)))],
    )
    left, _ = rewritten(mod)
    assert left == ["relax.nn.conv2d"]
