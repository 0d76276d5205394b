"""Recurrent layers against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single

RNG = np.random.default_rng(0)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, FEATURES, HIDDEN = 4, 2, 3, 5


def data(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def run(kind: str, directions: int, states: bool, lens: Any, **attributes: Any) -> None:
    rows = GATES[kind] * HIDDEN
    inputs = [
        data(STEPS, BATCH, FEATURES),
        data(directions, rows, FEATURES),
        data(directions, rows, HIDDEN),
        data(directions, 2 * rows),
        lens,
    ]
    count = 2 if kind == "LSTM" else 1
    inputs += [data(directions, BATCH, HIDDEN) if states else None for _ in range(count)]
    if attributes.pop("peepholes", False):
        inputs.append(data(directions, 3 * HIDDEN))
    model, feed = single(
        kind, inputs, count + 1, opset=14, constants=[1, 2, 3], hidden_size=HIDDEN, **attributes
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, feed, session.run(None, feed))


@pytest.mark.parametrize("kind", sorted(GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions(kind: str, direction: str) -> None:
    run(kind, 2 if direction == "bidirectional" else 1, True, None, direction=direction)


@pytest.mark.parametrize("kind", sorted(GATES))
def test_sequence_lengths(kind: str) -> None:
    lens = np.array([4, 2], np.int32)
    run(kind, 2, False, lens, direction="bidirectional")


def test_gru_reset_after_the_product() -> None:
    run("GRU", 1, True, None, linear_before_reset=1)


def test_lstm_peepholes_and_other_functions() -> None:
    run("LSTM", 1, True, None, peepholes=True)
    run("LSTM", 1, False, None, activations=["HardSigmoid", "Relu", "Softsign"])
    run("GRU", 1, False, None, clip=0.3)
