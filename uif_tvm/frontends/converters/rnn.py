"""LSTM, GRU and RNN in all directions, and LSTM over quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.dtypes import kind
from uif_tvm.frontends.converters.indexing import inside
from uif_tvm.frontends.converters.kernels import call_kernel, dim
from uif_tvm.frontends.converters.linear import emit_matmul
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Array, Dim, Known
from uif_tvm.kernels.gates import Function, activation
from uif_tvm.kernels.recurrent import gru_kernel, lstm_kernel, rnn_kernel
from uif_tvm.ops.recurrent import PARAMETERS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass(frozen=True)
class Problem:
    """One recurrent node, time first.

    Args:
        kind: ``LSTM``, ``GRU`` or ``RNN``.
        x: input of shape (steps, batch, features).
        w, r: weights per direction, of shapes (features, gates * hidden) and
            (hidden, gates * hidden): transposed, as the products need them.
        bias: (directions, 2 * gates * hidden), or ``None``.
        peep: (directions, 3 * hidden), or ``None``.
    """

    kind: str
    x: relax.Expr
    steps: Dim
    batch: Dim
    hidden: int
    directions: int
    dtype: str
    w: Callable[[int], relax.Expr]
    r: Callable[[int], relax.Expr]
    bias: Callable[[int, int], relax.Expr] | None
    peep: Callable[[int], relax.Expr] | None


def _row(ctx: NodeContext, index: int, lead: int) -> Callable[..., relax.Expr]:
    """Part ``d`` of an input along its first axis, and optionally one half of its last."""

    def part(direction: int, half: int | None = None) -> relax.Expr:
        array = ctx.array(index)
        length = ctx.static_shape(index)[-1]
        low, high = (0, length) if half is None else (half * length // 2, (half + 1) * length // 2)
        if array is not None:
            return ctx.importer.constant(np.ascontiguousarray(array[direction, ..., low:high]))
        rank = ctx.rank(index)
        cut = relax.op.strided_slice(
            ctx.expr(index), [0, rank - 1], [direction, low], [direction + 1, high], [1, 1]
        )
        shape = [*ctx.shape(index)[1:-1], high - low]
        return ctx.reshape(ctx.emit(cut), shape)

    return part


def _transposed(ctx: NodeContext, index: int) -> Callable[[int], relax.Expr]:
    part = _row(ctx, index, 0)

    def swapped(direction: int) -> relax.Expr:
        array = ctx.array(index)
        if array is not None:
            return ctx.importer.constant(np.ascontiguousarray(array[direction].T))
        return ctx.emit(relax.op.permute_dims(part(direction), [1, 0]))

    return swapped


def _functions(ctx: NodeContext, kind: str, directions: int) -> list[Any]:
    names = list(ctx.attrs.get("activations") or DEFAULTS[kind] * directions)
    each = len(DEFAULTS[kind])
    if names == DEFAULTS[kind] * (len(names) // each):
        names = DEFAULTS[kind] * directions  # the schema's default does not know the direction
    if len(names) != each * directions:
        raise ctx.invalid(f"{len(names)} activations for {directions} directions of {kind}")
    alphas = list(ctx.attrs.get("activation_alpha") or [])
    betas = list(ctx.attrs.get("activation_beta") or [])
    functions = []
    for name in names:
        takes_alpha = name.lower() in (
            ["affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"]
        )
        takes_beta = name.lower() in ["affine", "scaledtanh", "hardsigmoid"]
        alpha = alphas.pop(0) if takes_alpha and alphas else None
        beta = betas.pop(0) if takes_beta and betas else None
        default = PARAMETERS.get(name.lower())
        if default is None:
            raise Unsupported(f"activation {name!r}")
        given = [d if v is None else v for v, d in zip((alpha, beta), default, strict=True)]
        functions.append(activation(name.lower(), *[v or 0.0 for v in given]))
    return [tuple(functions[i * each : (i + 1) * each]) for i in range(directions)]


def _clip(ctx: NodeContext) -> Function:
    limit = ctx.attrs.get("clip")
    if limit is None or limit <= 0:
        return lambda v: v
    return lambda v: tirx.max(
        tirx.min(v, tirx.const(float(limit), kind(v))), tirx.const(-float(limit), kind(v))
    )


def _lengths(ctx: NodeContext, problem: Problem) -> relax.Expr:
    """Sequence lengths, clamped to [0, steps]; the full length where none are given."""
    if not ctx.has(4):
        if isinstance(problem.steps, int) and isinstance(problem.batch, int):
            return ctx.importer.constant(np.full(problem.batch, problem.steps, np.int64))

        def full(x: te.Tensor) -> te.Tensor:
            return te.compute((x.shape[1],), lambda b: x.shape[0].astype("int64"), name="lengths")

        return ctx.te(full, problem.x, name="lengths")

    def compute(x: te.Tensor, lens: te.Tensor) -> te.Tensor:
        return te.compute(
            lens.shape, lambda b: inside(tirx.max(lens(b), 0), x.shape[0] + 1), name="lengths"
        )

    return ctx.te(compute, problem.x, ctx.expr(4), name="lengths")


def _state(ctx: NodeContext, index: int, problem: Problem, direction: int) -> relax.Expr:
    if ctx.has(index):
        expected = (problem.directions, problem.batch, problem.hidden)
        given = ctx.shape(index)
        if ctx.attrs.get("layout", 0):
            given = (given[1], given[0], given[2])
        if any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(given, expected, strict=True)
        ):
            raise ctx.invalid(f"initial state of shape {list(given)}, expected {list(expected)}")
        state = ctx.expr(index)
        if ctx.attrs.get("layout", 0):
            state = ctx.emit(relax.op.permute_dims(state, [1, 0, 2]))
        if problem.directions > 1:
            cut = relax.op.strided_slice(state, [0], [direction], [direction + 1])
            state = ctx.emit(cut)
        return ctx.reshape(state, [problem.batch, problem.hidden])
    shape = relax.ShapeExpr([problem.batch, problem.hidden])
    return ctx.emit(relax.op.zeros(shape, problem.dtype))


def _input_side(ctx: NodeContext, problem: Problem, direction: int) -> tuple[Any, Any]:
    """x @ W + biases over all steps at once, and the recurrent bias that must wait."""
    gates = GATES[problem.kind] * problem.hidden
    projected = emit_matmul(ctx, problem.x, problem.w(direction))
    held = ctx.const(np.zeros(problem.hidden), problem.dtype)
    if problem.bias is None:
        return projected, held
    first, second = problem.bias(direction, 0), problem.bias(direction, 1)
    if problem.kind == "GRU":  # the hidden gate's recurrent bias belongs inside the loop
        at = 2 * problem.hidden
        held = ctx.emit(relax.op.strided_slice(second, [0], [at], [gates]))
        kept = ctx.emit(relax.op.strided_slice(second, [0], [0], [at]))
        zeros = ctx.const(np.zeros(problem.hidden), problem.dtype)
        second = ctx.emit(relax.op.concat([kept, zeros], 0))
    bias = ctx.emit(relax.op.add(first, second))
    return ctx.emit(relax.op.add(projected, bias)), held


def run_direction(
    ctx: NodeContext, problem: Problem, direction: int, acts: Any, reverse: bool
) -> list[relax.Expr]:
    """Outputs of one direction: (steps, batch, hidden) and final states (batch, hidden)."""
    xw, held = _input_side(ctx, problem, direction)
    steps, batch = dim(problem.steps, "steps"), dim(problem.batch, "batch")
    hidden, dtype, clip = problem.hidden, problem.dtype, _clip(ctx)
    lens = _lengths(ctx, problem)
    state = _state(ctx, 5, problem, direction)
    row, last = [problem.steps, problem.batch, hidden], [problem.batch, hidden]
    if problem.kind == "LSTM":
        cell = _state(ctx, 6, problem, direction)
        zeros = ctx.const(np.zeros((3, hidden)), dtype)
        peep = zeros if problem.peep is None else ctx.reshape(problem.peep(direction), [3, hidden])
        forget = bool(ctx.attrs.get("input_forget", 0))
        kernel = lstm_kernel(steps, batch, hidden, dtype, reverse, acts, clip, forget)
        args = [xw, problem.r(direction), state, cell, lens, peep]
        return call_kernel(ctx, kernel, args, [row, last, last], [dtype] * 3, "lstm")
    if problem.kind == "GRU":
        linear = bool(ctx.attrs.get("linear_before_reset", 0))
        kernel = gru_kernel(steps, batch, hidden, dtype, reverse, acts, clip, linear)
        args = [xw, problem.r(direction), state, lens, held]
        return call_kernel(ctx, kernel, args, [row, last], [dtype] * 2, "gru")
    kernel = rnn_kernel(steps, batch, hidden, dtype, reverse, acts, clip)
    args = [xw, problem.r(direction), state, lens]
    return call_kernel(ctx, kernel, args, [row, last], [dtype] * 2, "rnn")


def run(ctx: NodeContext, problem: Problem) -> list[relax.Expr]:
    """All directions, stacked as ONNX has them: Y (steps, directions, batch, hidden), states."""
    kind = ctx.attrs.get("direction", "forward")
    reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(kind)
    if reverses is None or len(reverses) != problem.directions:
        raise ctx.invalid(f"direction {kind!r} with weights of {problem.directions} directions")
    functions = _functions(ctx, problem.kind, problem.directions)
    parts = [
        run_direction(ctx, problem, d, functions[d], reverse) for d, reverse in enumerate(reverses)
    ]
    steps, batch, hidden = problem.steps, problem.batch, problem.hidden
    results = []
    for number, pieces in enumerate(zip(*parts, strict=True)):
        shape = [steps, 1, batch, hidden] if number == 0 else [1, batch, hidden]
        axis = 1 if number == 0 else 0
        stacked = [ctx.reshape(piece, shape) for piece in pieces]
        whole = stacked[0] if len(stacked) == 1 else ctx.emit(relax.op.concat(stacked, axis))
        if ctx.attrs.get("layout", 0):
            order = [2, 0, 1, 3] if number == 0 else [1, 0, 2]
            whole = ctx.emit(relax.op.permute_dims(whole, order))
        results.append(whole)
    return results


def _input(ctx: NodeContext) -> tuple[relax.Expr, Dim, Dim]:
    x = ctx.expr(0)
    if ctx.rank(0) != 3:
        raise ctx.invalid(f"input of rank {ctx.rank(0)}; 3 is needed")
    if ctx.attrs.get("layout", 0):
        x = ctx.emit(relax.op.permute_dims(x, [1, 0, 2]))
        return x, ctx.shape(0)[1], ctx.shape(0)[0]
    return x, ctx.shape(0)[0], ctx.shape(0)[1]


@converter("LSTM", "GRU", "RNN")
def recurrent(ctx: NodeContext) -> list[relax.Expr]:
    """Recurrent layers of the default domain."""
    x, steps, batch = _input(ctx)
    directions, rows, _ = ctx.static_shape(1)
    hidden = rows // GATES[ctx.op_type]
    if ctx.static_shape(2) != (directions, rows, hidden):
        raise ctx.invalid(f"R has shape {ctx.shape(2)}, expected {(directions, rows, hidden)}")
    if int(ctx.attrs.get("hidden_size", hidden)) != hidden:
        raise ctx.invalid(f"hidden_size {ctx.attrs['hidden_size']}, weights of {hidden}")
    if ctx.has(3) and ctx.static_shape(3) != (directions, 2 * rows):
        raise ctx.invalid(f"B has shape {ctx.shape(3)}, expected {(directions, 2 * rows)}")
    if ctx.has(4) and any(
        isinstance(d, int) and isinstance(batch, int) and d != batch for d in ctx.shape(4)
    ):
        raise ctx.invalid("sequence_lens must have one entry per batch element")
    peep = _row(ctx, 7, 0) if ctx.op_type == "LSTM" and ctx.has(7) else None
    bias = _row(ctx, 3, 0) if ctx.has(3) else None
    dtype = ctx.dtype(0)
    problem = Problem(
        ctx.op_type, x, steps, batch, hidden, directions, dtype,
        _transposed(ctx, 1), _transposed(ctx, 2), bias, peep,
    )  # fmt: skip
    return run(ctx, problem)


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantised_lstm(ctx: NodeContext) -> list[relax.Expr]:
    """LSTM whose weights are stored as 8-bit integers; they are widened once, at import.

    The activations, which the original quantises anew at every step, stay in floating point.
    """
    x, steps, batch = _input(ctx)
    weights = []
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        raw = ctx.known(index, "quantised weights").astype(np.float32)
        shift = _spread(ctx.known(zero, "a zero point"), raw) if ctx.has(zero) else np.float32(0)
        weights.append((raw - shift) * _spread(ctx.known(scale, "a scale"), raw))
    directions, hidden = weights[1].shape[0], weights[1].shape[1]
    bias = _row(ctx, 3, 0) if ctx.has(3) else None
    peep = _row(ctx, 7, 0) if ctx.has(7) else None

    def part(array: Array) -> Callable[[int], relax.Expr]:
        return lambda d: ctx.as_expr(Known(np.ascontiguousarray(array[d], np.float32)))

    problem = Problem(
        "LSTM", x, steps, batch, hidden, directions, ctx.dtype(0),
        part(weights[0]), part(weights[1]), bias, peep,
    )  # fmt: skip
    return run(ctx, problem)


def _spread(parameter: Array, weights: Array) -> Array:
    """Per-direction or per-column quantisation parameters, aligned with (D, rows, columns)."""
    values = parameter.astype(np.float32)
    if values.ndim <= 1:
        return values.reshape([-1] + [1] * (weights.ndim - 1))
    return values.reshape(values.shape[0], 1, -1)
