"""Integer functions that need a loop per element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


def _elementwise_loop(
    a: te.Tensor, b: te.Tensor, body: Callable[[Any, Any, Any], Any], name: str
) -> te.Tensor:
    """``out[i] = body(a[i], b[i], state)``, where ``state`` has three local elements."""
    count: Any = 1
    for size in a.shape:
        count = count * size

    def build(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        left, right, target = (T.buffer_proxy(buffer) for buffer in (*ins, *outs))
        with IRBuilder() as ib:
            with T.parallel(0, count) as i:
                state = T.buffer_proxy(T.decl_buffer([3], a.dtype, scope="local"))
                target[i] = body(left[i], right[i], state)
            return ib.get()

    return te.extern([a.shape], [a, b], build, dtype=[a.dtype], name=name, tag=name)


def greatest_common_divisor(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Euclid's algorithm on magnitudes; the divisor of 0 and 0 is 0."""
    dtype = str(a.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def magnitude(x: Any) -> Any:
        return x if dtype.startswith("uint") else tirx.Select(x < zero, zero - x, x)

    def body(p: Any, q: Any, state: Any) -> Any:
        state[0], state[1] = magnitude(p), magnitude(q)
        with T.While(state[1] != zero):
            state[2] = tirx.truncmod(state[0], tirx.Select(state[1] == zero, one, state[1]))
            state[0] = state[1]
            state[1] = state[2]
        return magnitude(state[0])

    return _elementwise_loop(a, b, body, "gcd")
