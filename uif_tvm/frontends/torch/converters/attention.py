"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te

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
    if scale == 0:  # the standard operator's way to say that none is given
        raise RefusedError("attention with scale 0 is not supported", "use the mean of the values")
    lengths = [cx.shape(x)[-2] for x in (query, key)]
    if is_causal and not all(isinstance(length, int) for length in lengths):
        mask, is_causal = _causal_mask(cx, *lengths), False
    lead = cx.shape(query)[:-3]
    operands = [_four_axes(cx, x) for x in (query, key, value)]
    if mask is not None and len(cx.shape(mask)) > 2 and len(lead) != 1:
        rows = [*cx.shape(query)[:-1], cx.shape(key)[-2]]
        mask = _four_axes(cx, cx.broadcast(mask, rows))
    del enable_gqa  # fewer heads of keys than of queries are shared among them in any case
    result = cx.op("attention", *operands, mask, scale=float(scale or 0.0), causal=is_causal)
    return cx.reshape(result, cx.out_shape)


def _causal_mask(cx: Emitter, rows: Any, columns: Any) -> relax.Expr:
    """False right of the diagonal, for lengths that are known at run time only."""

    def kernel(_: te.Tensor) -> te.Tensor:
        return te.compute([rows, columns], lambda i, j: j <= i, name="causal_mask")

    return cx.te(kernel, cx.const(0, "int8"), name="causal_mask")


def _four_axes(cx: Emitter, x: relax.Expr) -> relax.Expr:
    """``x`` as [batch, heads, positions, features]; without heads there is one."""
    shape = cx.shape(x)
    if len(shape) == 3:
        return cx.reshape(x, [shape[0], 1, *shape[1:]])
    return cx.reshape(x, [math.prod(shape[:-3]), *shape[-3:]])
