"""Matmuls become register-tile kernels; what cannot is declined with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from uif_tvm.relay_passes import pack_matmul

from tests.models import constant, context, engine, imported, module, weights
from uif_tvm.relax_util import calls, op_name


def pack(mod: Any) -> tuple[list[str], Any]:
    """(operators left, the report) after the pass."""
    made = context()
    mod = pack_matmul.PASS.apply(mod, made)
    names = []
    for _, call in calls(mod):
        name = op_name(call)
        names.append(call.args[0].name_hint if name == "relax.call_tir" else name)
    return sorted(n for n in names if n != "relax.permute_dims"), made.report


X = [("x", (2, 9, 24), "float32")]
W = weights(24, 40)


def test_constant_right_hand_sides_are_packed() -> None:
    left, report = pack(module(X, lambda x: [relax.op.matmul(x, constant(W))]))
    assert left == ["matmul"]
    assert report.decisions[-1].fired
    assert "packed in panels" in report.decisions[-1].reason


def test_a_transposed_constant_is_packed_too() -> None:
    def body(x: Any) -> list[Any]:
        return [relax.op.matmul(x, relax.op.permute_dims(constant(W.T.copy())))]

    assert pack(module(X, body))[0] == ["matmul"]


def test_few_rows_per_batch_are_multiplied_together() -> None:
    left, _ = pack(
        module([("x", (6, 1, 24), "float32")], lambda x: [relax.op.matmul(x, constant(W))])
    )
    assert left == ["matmul", "relax.reshape", "relax.reshape"]


@pytest.mark.parametrize("swapped", [False, True])
def test_computed_right_hand_sides_are_batched(swapped: bool) -> None:
    def body(x: Any, y: Any) -> list[Any]:
        return [relax.op.matmul(x, relax.op.permute_dims(y, [0, 2, 1]) if swapped else y)]

    other = (2, 40, 24) if swapped else (2, 24, 40)
    left, report = pack(module([*X, ("y", other, "float32")], body))
    assert left == ["batch_matmul"]
    assert ("transposed" in report.decisions[-1].reason) == swapped


@pytest.mark.parametrize(
    ("rows", "weight", "code"),
    [
        ([("x", (24,), "float32")], W, "rank"),
        ([("x", (3, 24), "int32")], W.astype("int32"), "dtype"),
        ([("x", (0, 24), "float32")], W, "empty"),
    ],
)
def test_what_has_no_kernel_is_declined(rows: Any, weight: Any, code: str) -> None:
    left, report = pack(module(rows, lambda x: [relax.op.matmul(x, constant(weight))]))
    assert left == ["relax.matmul"]
    assert not report.decisions[-1].fired
    assert report.decisions[-1].reason.startswith(code)


@pytest.mark.parametrize(
    "dims", [(9, 24), (1, 24), (2, 9, 24), (6, 1, 24), ("n", 24), ("b", 3, 24)]
)
def test_results(dims: tuple[Any, ...], tmp_path: Path) -> None:
    bias = weights(40, seed=1)

    def body(x: Any) -> list[Any]:
        return [relax.op.nn.relu(relax.op.add(relax.op.matmul(x, constant(W)), constant(bias)))]

    x = weights(*(4 if isinstance(n, str) else n for n in dims), seed=2)
    model = imported([("x", dims, "float32")], body)
    result = np.asarray(engine(tmp_path, model).run(x)[0])
    np.testing.assert_allclose(result, np.maximum(x @ W + bias, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ["m", 9])
def test_columns_and_depth_of_run_time_are_batched(rows: Any, tmp_path: Path) -> None:
    inputs = [("x", ("b", rows, "k"), "float32"), ("y", ("b", "k", "n"), "float32")]

    def body(x: Any, y: Any) -> list[Any]:
        return [relax.op.matmul(x, y)]

    assert pack(module(inputs, body))[0] == ["batch_matmul"]
    run = engine(tmp_path, imported(inputs, body))
    rng = np.random.default_rng(1)
    for b, k, n in [(1, 1, 1), (3, 70, 33), (2, 16, 200)]:
        x = rng.standard_normal((b, 9, k)).astype(np.float32)
        y = rng.standard_normal((b, k, n)).astype(np.float32)
        np.testing.assert_allclose(run.run(x, y)[0], x @ y, rtol=1e-4, atol=1e-4)
    assert {kernel["rule"] for kernel in run.report["kernels"]} == {"batch-matmul"}
