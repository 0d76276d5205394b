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


def power(base: te.Tensor, exponent: te.Tensor) -> te.Tensor:
    """Wrapping integer power by squaring; negative exponents give 1, -1 or 0.

    Both tensors have one shape and one integer dtype.
    """
    dtype = str(base.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def body(a: Any, b: Any, state: Any) -> Any:
        state[0], state[1], state[2] = one, a, b
        with T.While(state[2] > zero):
            odd = tirx.bitwise_and(state[2], one) == one
            state[0] = tirx.Select(odd, state[0] * state[1], state[0])
            state[1] = state[1] * state[1]
            state[2] = tirx.shift_right(state[2], one)
        if dtype.startswith("uint"):
            return state[0]
        minus = tirx.const(-1, dtype)
        alternating = tirx.Select(tirx.bitwise_and(b, one) == one, minus, one)
        inverse = tirx.Select(a == one, one, tirx.Select(a == minus, alternating, zero))
        return tirx.Select(b < zero, inverse, state[0])

    return _elementwise_loop(base, exponent, body, "int_power")


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
