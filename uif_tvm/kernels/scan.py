"""Running combinations along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

_ACCUMULATE = {"float16": "float32", "bfloat16": "float32"}


def lanes_along(shape: Sequence[Any], axis: int) -> tuple[Any, Any, Any]:
    """How many elements stand before, along and after ``axis``: ``[outer, length, inner]``."""
    outer: Any = 1
    inner: Any = 1
    for size in shape[:axis]:
        outer = outer * size
    for size in shape[axis + 1 :]:
        inner = inner * size
    return outer, shape[axis], inner


def scan(
    data: te.Tensor,
    axis: int,
    combine: Callable[[Any, Any], Any],
    neutral: float | None = None,
    exclusive: bool = False,
    reverse: bool = False,
) -> te.Tensor:
    """``out[i] = combine(out[i - 1], data[i])`` along ``axis``; other axes run in parallel.

    Args:
        data: 16-bit floats are accumulated in float32.
        axis: non-negative.
        combine: running value and next element -> next running value.
        neutral: what an exclusive scan starts from.
        exclusive: ``out[i]`` leaves ``data[i]`` out.
        reverse: from the far end.
    """
    dtype = str(data.dtype)
    wide = _ACCUMULATE.get(dtype, dtype)
    if any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in data.shape):
        return te.compute(data.shape, lambda *_: tirx.const(0, dtype), name="scan")
    outer, length, inner = lanes_along(data.shape, axis)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, target = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        with IRBuilder() as ib:
            with T.parallel(0, outer * inner) as lane:
                base = lane // inner * length * inner + lane % inner
                state = T.buffer_proxy(T.decl_buffer([2], wide, scope="local"))

                def place(k: Any) -> Any:
                    return base + ((length - 1 - k) if reverse else k) * inner

                if exclusive:
                    state[0] = tirx.const(neutral, wide)
                    with T.serial(0, length) as k:
                        state[1] = source[place(k)].astype(wide)
                        target[place(k)] = state[0].astype(dtype)
                        state[0] = combine(state[0], state[1])
                else:
                    with T.serial(0, tirx.min(length, 1)) as k:
                        state[0] = source[place(k)].astype(wide)
                        target[place(k)] = state[0].astype(dtype)
                    with T.serial(0, length - 1) as k:
                        state[0] = combine(state[0], source[place(k + 1)].astype(wide))
                        target[place(k + 1)] = state[0].astype(dtype)
            return ib.get()

    return te.extern([data.shape], [data], body, dtype=[data.dtype], name="scan", tag="scan")
