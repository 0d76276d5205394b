"""Mixture of experts: counting tokens per expert, matrix products per group of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts


@converts("aten.histc.default")
def histc(cx: Emitter, x: Any, bins: int = 100, low: Any = 0, high: Any = 0) -> Any:
    """How many values fall into each of ``bins`` equal parts of ``low .. high``."""
    if low == high:
        raise RefusedError("a histogram between the data's extremes", "give min and max")
    dtype = cx.out_dtype
    if 0 in cx.shape(x):
        return cx.full(cx.out_shape, 0, dtype)
    count = int(np.prod(cx.static(x, "histc"), dtype=np.int64))
    values = cx.reshape(cx.cast(x, dtype), [1, count])

    def place(v: Any) -> Any:
        first, last = tirx.const(low, dtype), tirx.const(high, dtype)
        inside = tirx.all(v >= first, v <= last)
        # The division comes last, as in PyTorch, so that edges round alike.
        scaled = (v - first) * tirx.const(bins, dtype) / (last - first)
        limited = tirx.Select(inside, scaled, tirx.const(0, dtype))
        part = tirx.min(tirx.Cast("int64", limited), tirx.const(bins - 1, "int64"))
        return tirx.Select(inside, part, tirx.const(-1, "int64"))

    places = cx.elementwise(place, values, name="histogram_bin", shape=[1, count])
    numbers = cx.const(np.arange(bins).reshape(bins, 1), "int64")
    hits = cx.cast(cx.emit(relax.op.equal(places, numbers)), dtype)
    return cx.emit(relax.op.sum(hits, [1]))


@converts("transformers.grouped_mm_fallback.default")
def grouped_matmul(cx: Emitter, x: Any, weight: Any, ends: Any) -> Any:
    """Row ``s`` of ``[rows, in]`` times the matrix of its group, of ``[groups, in, out]``.

    Group ``g`` holds rows ``ends[g - 1] .. ends[g] - 1``; rows past the last group give zero.
    """
    return cx.op("grouped_matmul", x, cx.cast(weight, cx.dtype(x)), ends)


@converts("aten._grouped_mm.default")
def aten_grouped_matmul(
    cx: Emitter, x: Any, weight: Any, ends: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Grouped product of rows with one matrix per group; other forms are refused."""
    if ends is None or bias is not None or len(cx.shape(x)) != 2 or len(cx.shape(weight)) != 3:
        raise RefusedError("this form of grouped matrix product is not supported")
    return grouped_matmul(cx, x, weight, ends)
