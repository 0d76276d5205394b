"""Running combinations along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


def lanes_along(shape: Sequence[Any], axis: int) -> tuple[Any, Any, Any]:
    """How many elements stand before, along and after ``axis``: ``[outer, length, inner]``."""
    outer: Any = 1
    inner: Any = 1
    for size in shape[:axis]:
        outer = outer * size
    for size in shape[axis + 1 :]:
        inner = inner * size
    return outer, shape[axis], inner


def inclusive_scan(data: te.Tensor, axis: int, combine: Callable[[Any, Any], Any]) -> te.Tensor:
    """``out[i] = combine(out[i - 1], data[i])`` along ``axis``; other axes run in parallel."""
    outer, length, inner = lanes_along(data.shape, axis)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, target = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        with IRBuilder() as ib:
            with T.parallel(0, outer * inner) as lane:
                base = lane // inner * length * inner + lane % inner
                with T.serial(0, 1):
                    target[base] = source[base]
                    with T.serial(0, length - 1) as k:
                        here = base + (k + 1) * inner
                        target[here] = combine(target[here - inner], source[here])
            return ib.get()

    return te.extern(
        [data.shape], [data], body, dtype=[data.dtype], name="inclusive_scan", tag="inclusive_scan"
    )
