"""Sums, differences and products of integers that wrap around at the end of their type.

Two compilers take integers for numbers without end: TVM's simplifier at any width, and LLVM at 32
bits and more, because TVM marks such operations as never wrapping. So ``(x * 6) % 6`` became 0 and
``x + 1 > x`` true once both were one kernel. Here nothing wraps while it is computed: 32 bits are
computed in 64, which LLVM narrows again, 64 bits in parts; and what comes out is hidden from the
simplifier by ``| 0``, which LLVM drops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

Expr = Any
_LOW, _TOP, _REST = 0xFFFF_FFFF, 1 << 63, (1 << 63) - 1


def add(a: Expr, b: Expr) -> Expr:
    """``a + b`` modulo the type's range."""
    return _wrapped(a, b, "int64", lambda x, y: x + y, _add)


def subtract(a: Expr, b: Expr) -> Expr:
    """``a - b`` modulo the type's range."""
    return _wrapped(a, b, "int64", lambda x, y: x - y, _subtract)


def multiply(a: Expr, b: Expr) -> Expr:
    """``a * b`` modulo the type's range."""
    wide = "uint64" if _kind(a).startswith("uint") else "int64"
    return _wrapped(a, b, wide, lambda x, y: x * y, _multiply)


def _kind(v: Expr) -> str:
    return str(v.ty.dtype)


def _wrapped(
    a: Expr,
    b: Expr,
    wide: str,
    operate: Callable[[Expr, Expr], Expr],
    in_parts: Callable[[Expr, Expr], Expr],
) -> Expr:
    dtype = _kind(a)
    if dtype in ("int64", "uint64"):
        value = in_parts(a.astype("uint64"), b.astype("uint64")).astype(dtype)
    elif dtype in ("int32", "uint32"):
        value = operate(a.astype(wide), b.astype(wide)).astype(dtype)
    else:  # narrower operations are not marked
        value = operate(a, b)
    return tirx.bitwise_or(value, tirx.const(0, dtype))


def _mask(value: int) -> Expr:
    return tirx.const(value, "uint64")


def _add(a: Expr, b: Expr) -> Expr:
    """All bits but the top one are added with room for the carry; the top one has none to give."""
    rest = (a & _mask(_REST)) + (b & _mask(_REST))
    return rest ^ ((a ^ b) & _mask(_TOP))


def _subtract(a: Expr, b: Expr) -> Expr:
    """The same with a top bit to borrow from."""
    rest = (a | _mask(_TOP)) - (b & _mask(_REST))
    return rest ^ ((a ^ ~b) & _mask(_TOP))


def _multiply(a: Expr, b: Expr) -> Expr:
    """Schoolbook, in halves: the product of the upper ones is past the end."""
    half, low = _mask(32), _mask(_LOW)
    crossed = (((a >> half) * (b & low)) & low) + (((a & low) * (b >> half)) & low)
    return _add((a & low) * (b & low), crossed << half)
