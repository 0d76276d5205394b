"""The recurrent loops of LSTM, GRU and RNN as one TIR function each.

The input side (``x @ W + bias``) is one matrix product over the whole sequence, done outside;
what is left is a matrix-vector product per step. It runs over column tiles held in registers,
so that each step streams the recurrent weights once.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T


def column_tile(hidden: int) -> int:
    """The widest divisor of ``hidden`` up to 64: accumulators that stay in vector registers."""
    return max(width for width in range(1, min(hidden, 64) + 1) if hidden % width == 0)


def _step(reverse: bool, s: Any, length: Any) -> Any:
    """Time index of the s-th step of a sequence."""
    return length - 1 - s if reverse else s


def lstm_kernel(
    steps: Any,
    batch: Any,
    hidden: int,
    dtype: str,
    reverse: bool,
    acts: tuple[Any, Any, Any],
    clip: Any,
    input_forget: bool,
) -> Any:
    """Gates in ONNX's order i, o, f, c; ``peep`` rows in the order i, o, f."""
    tile = tirx.IntImm("int64", column_tile(hidden))
    hidden = tirx.IntImm("int64", hidden)
    f, g, h = acts

    @T.prim_func(private=True, s_tir=True)
    def lstm(
        xw: T.Buffer((steps, batch, 4 * hidden), dtype),
        rt: T.Buffer((hidden, 4 * hidden), dtype),
        h0: T.Buffer((batch, hidden), dtype),
        c0: T.Buffer((batch, hidden), dtype),
        lens: T.Buffer((batch,), "int64"),
        peep: T.Buffer((3, hidden), dtype),
        y: T.Buffer((steps, batch, hidden), dtype),
        yh: T.Buffer((batch, hidden), dtype),
        yc: T.Buffer((batch, hidden), dtype),
    ):
        with T.sblock("root"):
            gate = T.alloc_buffer((4 * hidden,), dtype)
            acc = T.alloc_buffer((tile,), dtype)
            with T.sblock("loops"):
                for b in range(batch):
                    for j in range(hidden):
                        yh[b, j] = h0[b, j]
                        yc[b, j] = c0[b, j]
                for s in range(steps):
                    for b in range(batch):
                        if s < lens[b]:
                            for jo in range(4 * hidden // tile):
                                for ji in T.vectorized(tile):
                                    acc[ji] = xw[_step(reverse, s, lens[b]), b, jo * tile + ji]
                                for k in range(hidden):
                                    for ji in T.vectorized(tile):
                                        acc[ji] = acc[ji] + yh[b, k] * rt[k, jo * tile + ji]
                                for ji in T.vectorized(tile):
                                    gate[jo * tile + ji] = acc[ji]
                            for j in range(hidden):
                                gate[j] = f(clip(gate[j] + peep[0, j] * yc[b, j]))
                                if input_forget:
                                    gate[2 * hidden + j] = T.Cast(dtype, 1) - gate[j]
                                else:
                                    gate[2 * hidden + j] = f(
                                        clip(gate[2 * hidden + j] + peep[2, j] * yc[b, j])
                                    )
                                yc[b, j] = gate[2 * hidden + j] * yc[b, j] + gate[j] * g(
                                    clip(gate[3 * hidden + j])
                                )
                                yh[b, j] = f(clip(gate[hidden + j] + peep[1, j] * yc[b, j])) * h(
                                    yc[b, j]
                                )
                                y[_step(reverse, s, lens[b]), b, j] = yh[b, j]
                        else:
                            for j in range(hidden):
                                y[s, b, j] = T.Cast(dtype, 0)

    return lstm


def gru_kernel(
    steps: Any,
    batch: Any,
    hidden: int,
    dtype: str,
    reverse: bool,
    acts: tuple[Any, Any],
    clip: Any,
    linear_before_reset: bool,
) -> Any:
    """Gates in ONNX's order z, r, h; ``rb`` is the recurrent bias of h."""
    tile = tirx.IntImm("int64", column_tile(hidden))
    hidden = tirx.IntImm("int64", hidden)
    f, g = acts

    @T.prim_func(private=True, s_tir=True)
    def gru(
        xw: T.Buffer((steps, batch, 3 * hidden), dtype),
        rt: T.Buffer((hidden, 3 * hidden), dtype),
        h0: T.Buffer((batch, hidden), dtype),
        lens: T.Buffer((batch,), "int64"),
        rb: T.Buffer((hidden,), dtype),
        y: T.Buffer((steps, batch, hidden), dtype),
        yh: T.Buffer((batch, hidden), dtype),
    ):
        with T.sblock("root"):
            gate = T.alloc_buffer((3 * hidden,), dtype)
            source = T.alloc_buffer((hidden,), dtype)
            acc = T.alloc_buffer((tile,), dtype)
            with T.sblock("loops"):
                for b in range(batch):
                    for j in range(hidden):
                        yh[b, j] = h0[b, j]
                for s in range(steps):
                    for b in range(batch):
                        if s < lens[b]:
                            for jo in range(2 * hidden // tile):
                                for ji in T.vectorized(tile):
                                    acc[ji] = xw[_step(reverse, s, lens[b]), b, jo * tile + ji]
                                for k in range(hidden):
                                    for ji in T.vectorized(tile):
                                        acc[ji] = acc[ji] + yh[b, k] * rt[k, jo * tile + ji]
                                for ji in T.vectorized(tile):
                                    gate[jo * tile + ji] = acc[ji]
                            for j in range(2 * hidden):
                                gate[j] = f(clip(gate[j]))
                            for j in range(hidden):
                                if linear_before_reset:
                                    source[j] = yh[b, j]
                                else:
                                    source[j] = gate[hidden + j] * yh[b, j]
                            for jo in range(hidden // tile):
                                for ji in T.vectorized(tile):
                                    acc[ji] = rb[jo * tile + ji]
                                for k in range(hidden):
                                    for ji in T.vectorized(tile):
                                        acc[ji] = (
                                            acc[ji] + source[k] * rt[k, 2 * hidden + jo * tile + ji]
                                        )
                                for ji in T.vectorized(tile):
                                    gate[2 * hidden + jo * tile + ji] = acc[ji]
                            for j in range(hidden):
                                if linear_before_reset:
                                    gate[2 * hidden + j] = gate[hidden + j] * gate[2 * hidden + j]
                            for j in range(hidden):
                                yh[b, j] = gate[j] * yh[b, j] + (T.Cast(dtype, 1) - gate[j]) * g(
                                    clip(
                                        gate[2 * hidden + j]
                                        + xw[_step(reverse, s, lens[b]), b, 2 * hidden + j]
                                    )
                                )
                                y[_step(reverse, s, lens[b]), b, j] = yh[b, j]
                        else:
                            for j in range(hidden):
                                y[s, b, j] = T.Cast(dtype, 0)

    return gru


def rnn_kernel(
    steps: Any, batch: Any, hidden: int, dtype: str, reverse: bool, acts: tuple[Any], clip: Any
) -> Any:
    """One gate."""
    tile = tirx.IntImm("int64", column_tile(hidden))
    hidden = tirx.IntImm("int64", hidden)
    (act,) = acts

    @T.prim_func(private=True, s_tir=True)
    def rnn(
        xw: T.Buffer((steps, batch, hidden), dtype),
        rt: T.Buffer((hidden, hidden), dtype),
        h0: T.Buffer((batch, hidden), dtype),
        lens: T.Buffer((batch,), "int64"),
        y: T.Buffer((steps, batch, hidden), dtype),
        yh: T.Buffer((batch, hidden), dtype),
    ):
        with T.sblock("root"):
            gate = T.alloc_buffer((hidden,), dtype)
            acc = T.alloc_buffer((tile,), dtype)
            with T.sblock("loops"):
                for b in range(batch):
                    for j in range(hidden):
                        yh[b, j] = h0[b, j]
                for s in range(steps):
                    for b in range(batch):
                        if s < lens[b]:
                            for jo in range(hidden // tile):
                                for ji in T.vectorized(tile):
                                    acc[ji] = xw[_step(reverse, s, lens[b]), b, jo * tile + ji]
                                for k in range(hidden):
                                    for ji in T.vectorized(tile):
                                        acc[ji] = acc[ji] + yh[b, k] * rt[k, jo * tile + ji]
                                for ji in T.vectorized(tile):
                                    gate[jo * tile + ji] = acc[ji]
                            for j in range(hidden):
                                yh[b, j] = act(clip(gate[j]))
                                y[_step(reverse, s, lens[b]), b, j] = yh[b, j]
                        else:
                            for j in range(hidden):
                                y[s, b, j] = T.Cast(dtype, 0)

    return rnn
