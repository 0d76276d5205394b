"""Scaled dot-product attention, as matrix products around a softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from uif_tvm.frontends.torch.converters.linear import product
from uif_tvm.frontends.torch.dtypes import compute_dtype
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


@converts("aten.scaled_dot_product_attention.default")
def attention(
    cx: Emitter,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """``softmax(query @ key.T * scale + mask) @ value``.

    A query whose keys are all masked attends to nothing: its result is zero, as PyTorch's.
    """
    if dropout_p:
        raise RefusedError(f"attention with dropout {dropout_p} is random", "export in eval mode")
    dtype = cx.out_dtype
    work = compute_dtype(dtype)
    query, key, value = (cx.cast(x, work) for x in (query, key, value))
    if enable_gqa:
        key, value = (_repeat_heads(cx, x, cx.shape(query)[-3]) for x in (key, value))
    if scale is None:
        scale = 1 / math.sqrt(cx.static(query, "attention heads")[-1])
    rank = len(cx.shape(key))
    turned = cx.permute(key, [*range(rank - 2), rank - 1, rank - 2])
    scores = product(cx, query, turned)
    scores = cx.emit(relax.op.multiply(scores, cx.const(scale, work)))
    bias, visible = _mask(cx, query, key, mask, is_causal, work)
    if bias is not None:
        scores = cx.emit(relax.op.add(scores, bias))
    weights = cx.emit(relax.op.nn.softmax(scores, -1))
    result = product(cx, weights, value)
    if visible is not None:
        result = cx.emit(relax.op.where(visible, result, cx.const(0, work)))
    return cx.cast(result, dtype)


def _repeat_heads(cx: Emitter, x: relax.Expr, heads: Any) -> relax.Expr:
    times = heads // cx.shape(x)[-3]
    return x if times == 1 else cx.emit(relax.op.repeat(x, times, axis=len(cx.shape(x)) - 3))


def _mask(
    cx: Emitter, query: Any, key: Any, mask: Any, is_causal: bool, dtype: str
) -> tuple[Any, Any]:
    """The additive mask, and which queries see any key (``None`` where all do)."""
    if is_causal:
        rows, columns = cx.shape(query)[-2], cx.shape(key)[-2]
        if not (isinstance(rows, int) and isinstance(columns, int)):
            raise RefusedError(
                "causal attention over a dynamic sequence length is not supported",
                "pass the mask as an input",
            )
        allowed = np.tril(np.ones((rows, columns), bool))
        return cx.const(np.where(allowed, 0.0, -np.inf), dtype), None
    if mask is None:
        return None, None
    if cx.dtype(mask) == "bool":
        known = cx.value_of(mask)
        if known is not None:
            bias: Any = cx.const(np.where(known, 0.0, -np.inf), dtype)
        else:
            zero, low = cx.const(0, dtype), cx.const(float("-inf"), dtype)
            bias = cx.emit(relax.op.where(mask, zero, low))
    else:
        bias = cx.cast(mask, dtype)
    return bias, _visible(cx, bias, dtype)


def _visible(cx: Emitter, bias: relax.Expr, dtype: str) -> Any:
    known = cx.value_of(bias)
    if known is not None:
        seen = ~np.all(np.isneginf(known.astype("float64")), axis=-1, keepdims=True)
        return None if seen.all() else cx.const(seen, "bool")
    hidden = cx.emit(relax.op.equal(bias, cx.const(float("-inf"), dtype)))
    all_hidden = cx.emit(relax.op.min(cx.cast(hidden, "int8"), [-1], keepdims=True))
    return cx.emit(relax.op.equal(all_hidden, cx.const(0, "int8")))
