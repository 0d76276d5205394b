"""LSTM, GRU and RNN in all directions, and LSTM over quantised weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import MICROSOFT, converter
from uif_tvm.frontends.onnx.values import Array
from uif_tvm.ops.recurrent import DEFAULTS, PARAMETERS

#: Flags of single operators -> the standard operators' names of them.
_FLAGS = {"LSTM": "input_forget", "GRU": "linear_before_reset"}


def _activations(ctx: NodeContext, kind: str) -> tuple[str, ...]:
    """Names of the activations, lower case; empty for the usual ones."""
    names = tuple(str(name).lower() for name in ctx.attrs.get("activations") or ())
    unknown = [name for name in names if name not in PARAMETERS]
    if unknown:
        raise Unsupported(f"activation {unknown[0]!r}")
    usual = DEFAULTS[kind]
    # The schema's default does not know the direction.
    return () if names == usual * (len(names) // len(usual)) else names


def _layer(ctx: NodeContext, kind: str, weights: tuple[relax.Expr, relax.Expr]) -> list[relax.Expr]:
    """The standard operator; ``layout`` 1 has the batch first everywhere."""
    swapped = bool(ctx.attrs.get("layout", 0))

    def turned(expr: relax.Expr, order: list[int]) -> relax.Expr:
        return ctx.emit(relax.op.permute_dims(expr, order)) if swapped else expr

    if ctx.rank(0) != 3:
        raise ctx.invalid(f"input of rank {ctx.rank(0)}; 3 is needed")
    states = [5, 6] if kind == "lstm" else [5]
    operands = [turned(ctx.expr(0), [1, 0, 2]), *weights]
    operands += [ctx.expr(index) if ctx.has(index) else None for index in (3, 4)]
    operands += [turned(ctx.expr(i), [1, 0, 2]) if ctx.has(i) else None for i in states]
    if kind == "lstm":
        operands.append(ctx.expr(7) if ctx.has(7) else None)
    options: dict[str, Any] = {
        "direction": ctx.attrs.get("direction", "forward"),
        "activations": _activations(ctx, kind),
        "alphas": tuple(ctx.attrs.get("activation_alpha") or ()),
        "betas": tuple(ctx.attrs.get("activation_beta") or ()),
        "clip": max(float(ctx.attrs.get("clip") or 0.0), 0.0),
    }
    flag = _FLAGS.get(kind.upper())
    if flag:
        options[flag] = bool(ctx.attrs.get(flag, 0))
    outputs, *finals = ctx.op(kind, *operands, **options)
    return [turned(outputs, [2, 0, 1, 3]), *[turned(final, [1, 0, 2]) for final in finals]]


@converter("LSTM", "GRU", "RNN")
def recurrent(ctx: NodeContext) -> list[relax.Expr]:
    """Recurrent layers of the default domain."""
    hidden = ctx.static_shape(2)[-1]
    if int(ctx.attrs.get("hidden_size", hidden)) != hidden:
        raise ctx.invalid(f"hidden_size {ctx.attrs['hidden_size']}, weights of {hidden}")
    return _layer(ctx, ctx.op_type.lower(), (ctx.expr(1), ctx.expr(2)))


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantised_lstm(ctx: NodeContext) -> list[relax.Expr]:
    """LSTM whose weights are stored as 8-bit integers; they are widened once, at import.

    The activations, which the original quantises anew at every step, stay in floating point.
    """
    weights = []
    for index, scale, zero in ((1, 8, 9), (2, 10, 11)):
        raw = ctx.known(index, "quantised weights").astype(np.float32)
        shift = _spread(ctx.known(zero, "a zero point"), raw) if ctx.has(zero) else np.float32(0)
        whole = (raw - shift) * _spread(ctx.known(scale, "a scale"), raw)
        # Stored (directions, inputs, gates), the other way around than LSTM has them.
        turned = np.ascontiguousarray(whole.transpose(0, 2, 1), np.float32)
        weights.append(ctx.importer.constant(turned))
    return _layer(ctx, "lstm", (weights[0], weights[1]))


def _spread(parameter: Array, weights: Array) -> Array:
    """Per-direction or per-column quantisation parameters, aligned with (D, rows, columns)."""
    values = parameter.astype(np.float32)
    if values.ndim <= 1:
        return values.reshape([-1] + [1] * (weights.ndim - 1))
    return values.reshape(values.shape[0], 1, -1)
