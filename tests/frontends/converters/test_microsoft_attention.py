"""ONNX Runtime's attention operators, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.frontends.onnx.harness import check, single

F = np.float32
RNG = np.random.default_rng(6)


def data(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


def check_runtime(op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
    model, given = single(op, inputs, outputs, domain="com.microsoft", **attributes)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(model, given, session.run(None, given), rtol=1e-3, atol=1e-4)


B, S, N, H = 2, 4, 3, 8
D = N * H


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    "mask",
    [None, np.array([3, 4], np.int32), np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.int32),
     np.ones((B, S, S), np.int32) - np.eye(S, dtype=np.int32)],
    ids=["none", "lengths", "keys", "pairs"],
)  # fmt: skip
def test_attention(mask: Any, causal: int) -> None:
    check_runtime(
        "Attention", [data(B, S, 10), data(10, 3 * D), data(3 * D), mask],
        num_heads=N, unidirectional=causal,
    )  # fmt: skip


def test_attention_with_a_past() -> None:
    past = data(2, B, N, 5, H)
    check_runtime(
        "Attention", [data(B, S, 10), data(10, 3 * D), data(3 * D), None, past], 2,
        num_heads=N, unidirectional=1,
    )  # fmt: skip


def test_multi_head_attention() -> None:
    bias, mask = data(3 * D), np.array([[1, 1, 1, 0, 1]] * B, np.int32)
    check_runtime(
        "MultiHeadAttention",
        [data(B, S, D), data(B, 5, D), data(B, 5, D), bias, mask, data(1, N, S, 5)],
        num_heads=N,
    )
    check_runtime(
        "MultiHeadAttention", [data(B, S, D), data(B, N, 5, H), data(B, N, 5, H)], num_heads=N,
        scale=0.3,
    )  # fmt: skip
    check_runtime(
        "MultiHeadAttention",
        [data(B, S, D), data(B, S, D), data(B, S, D), None, None, None,
         data(B, N, 2, H), data(B, N, 2, H)],
        3, num_heads=N,
    )  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    angles = RNG.uniform(0, 3, (10, H // 2))
    tables = [np.cos(angles).astype(F), np.sin(angles).astype(F)]
    check_runtime(
        "RotaryEmbedding", [data(B, S, D), np.array([2], np.int64), *tables],
        interleaved=interleaved,
    )  # fmt: skip
    places = np.array([[0, 3, 2, 9], [1, 1, 5, 0]], np.int64)
    check_runtime("RotaryEmbedding", [data(B, N, S, H), places, *tables], interleaved=interleaved)


@pytest.mark.parametrize(
    "attributes",
    [
        {}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1},
        {"local_window_size": 3}, {"softcap": 2.0, "scale": 0.7},
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention(attributes: dict[str, Any], packed: bool) -> None:
    heads, shared, size, past = 4, 2, 16, 6
    angles = RNG.uniform(0, 3, (20, size // 2))
    tables = [np.cos(angles).astype(F), np.sin(angles).astype(F)]
    wide = [data(B, 1, heads * size), data(B, 1, shared * size), data(B, 1, shared * size)]
    states = [data(B, shared, past, size), data(B, shared, past, size)]
    parts = [np.concatenate(wide, 2), None, None] if packed else wide
    check_runtime(
        "GroupQueryAttention",
        [*parts, *states, np.array([past, past], np.int32), np.array(past + 1, np.int32),
         *(tables if attributes.get("do_rotary") else [])],
        3, num_heads=heads, kv_num_heads=shared, **attributes,
    )  # fmt: skip


def test_group_query_attention_of_a_prompt() -> None:
    heads, shared, size = 4, 2, 16
    empty = np.zeros((B, shared, 0, size), F)
    check_runtime(
        "GroupQueryAttention",
        [data(B, 5, heads * size), data(B, 5, shared * size), data(B, 5, shared * size),
         empty, empty, np.array([4, 4], np.int32), np.array(5, np.int32)],
        3, num_heads=heads, kv_num_heads=shared,
    )  # fmt: skip
