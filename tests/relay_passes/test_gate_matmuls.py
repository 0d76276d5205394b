"""Gated linear layers become one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from uif_tvm.relay_passes import gate_matmuls

from tests.models import constant, context, engine, fake_target, imported, module, weights
from uif_tvm.kernels.gated_matmul import ACTIVATIONS, pack_pair
from uif_tvm.relax_util import calls, op_name

ROWS, DEPTH, WIDTH = 9, 24, 40
X = [("x", (2, ROWS, DEPTH), "float32")]


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def linear(x: Any, seed: int, bias: bool = False, width: int = WIDTH) -> Any:
    y = emit(relax.op.matmul(x, constant(weights(DEPTH, width, seed=seed) / np.float32(5))))
    return emit(relax.op.add(y, constant(weights(width, seed=seed + 9)))) if bias else y


def gated(
    x: Any, function: Any = relax.op.nn.silu, biases: tuple[bool, bool] = (False, False),
    swapped: bool = False,
) -> list[Any]:  # fmt: skip
    gate, up = emit(function(linear(x, 0, biases[0]))), linear(x, 1, biases[1])
    return [relax.op.multiply(up, gate) if swapped else relax.op.multiply(gate, up)]


def fused(body: Any, inputs: Any = X, **options: Any) -> tuple[list[str], Any]:
    """(operators or kernels, the report) after the pass."""
    made = context(**options)
    mod = gate_matmuls.PASS.apply(module(inputs, body), made)
    names = []
    for _, call in calls(mod):
        name = op_name(call)
        names.append(call.args[0].name_hint if name == "relax.call_tir" else name)
    return names, made.report


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("biases", [(False, False), (True, True), (False, True)])
def test_gate_and_up_are_one_kernel(biases: tuple[bool, bool], swapped: bool) -> None:
    names, report = fused(lambda x: gated(x, biases=biases, swapped=swapped))
    # Before: matmul (add), silu, matmul (add), multiply.
    assert names == ["gated_matmul"]
    (decision,) = report.decisions
    assert decision.fired
    assert decision.launches_saved == 1
    # One product is not written and read, x is read once: 18 rows of 4-byte elements.
    assert decision.bytes_saved == 2 * ROWS * 4 * (DEPTH + 2 * WIDTH)


def _shared(x: Any) -> list[Any]:
    gate, up = emit(relax.op.nn.silu(linear(x, 0))), linear(x, 1)
    return [relax.op.multiply(gate, up), relax.op.exp(up)]


def _other_input(x: Any) -> list[Any]:
    return [relax.op.multiply(emit(relax.op.nn.silu(linear(x, 0))), linear(emit(x + x), 1))]


def _other_function(x: Any) -> list[Any]:
    return gated(x, relax.op.tanh)


def _one_column(x: Any) -> list[Any]:
    return [relax.op.multiply(emit(relax.op.nn.silu(linear(x, 0))), linear(x, 1, width=1))]


@pytest.mark.parametrize("body", [_shared, _other_input, _other_function, _one_column])
def test_other_graphs_stay(body: Any) -> None:
    names, report = fused(body)
    assert "gated_matmul" not in names
    assert names.count("relax.matmul") == 2
    assert not report.decisions


@pytest.mark.parametrize(
    ("inputs", "options", "code"),
    [
        (X, {"target": fake_target(planner=None)}, "no-planner"),
        ([("x", (2, ROWS, DEPTH), "float16")], {}, "dtype"),
    ],
)
def test_declines(inputs: Any, options: Any, code: str) -> None:
    def body(x: Any) -> list[Any]:
        dtype = str(x.ty.dtype.dtype)
        gate, up = (
            emit(relax.op.matmul(x, constant(weights(DEPTH, WIDTH, seed=seed), dtype)))
            for seed in range(2)
        )
        return [relax.op.multiply(emit(relax.op.nn.silu(gate)), up)]

    names, report = fused(body, inputs, **options)
    assert names.count("relax.matmul") == 2
    (decision,) = report.decisions
    assert not decision.fired
    assert decision.reason.startswith(code)


def test_panels_hold_both_matrices() -> None:
    packed = pack_pair(weights(3, 5), weights(3, 5, seed=1), 8)
    assert packed.shape == (2, 3, 8)
    np.testing.assert_array_equal(packed[0, :, :4], weights(3, 5)[:, :4])
    np.testing.assert_array_equal(packed[1, :, 4], weights(3, 5, seed=1)[:, 4])
    assert not packed[1, :, 1:4].any()


_FUNCTIONS = {
    name: getattr(relax.op.nn, name.rsplit(".", 1)[-1], None) or relax.op.sigmoid
    for name in ACTIVATIONS
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dims", [(2, ROWS, DEPTH), ("n", DEPTH), (6, 1, DEPTH)], ids=str)
def test_results(name: str, dims: tuple[Any, ...], tmp_path: Path) -> None:
    def body(x: Any) -> list[Any]:
        (y,) = gated(x, _FUNCTIONS[name], (True, False))
        return [relax.op.add(emit(y), constant(weights(WIDTH, seed=5)))]

    x = weights(*(13 if isinstance(n, str) else n for n in dims), seed=3)
    x.flat[5] = np.nan
    found = []
    for level in (0, 2):
        run = engine(tmp_path, imported([("x", dims, "float32")], body), level=level)
        found.append(np.asarray(run.run(x)[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)
    kernel, *others = run.report["kernels"]
    assert kernel["rule"] == "packed-matmul"
    assert kernel["ops"][0] == "gated_matmul"
    # Rows of several batches in one tile: what follows the reshape is a kernel of its own.
    assert len(others) == (1 if dims[1:2] == (1,) else 0)
