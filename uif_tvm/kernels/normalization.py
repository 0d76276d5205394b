"""Normalisations that Relax lacks; those over rows are in :mod:`.norm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.norm import accumulator

if TYPE_CHECKING:
    from tvm import te


def lrn(x: te.Tensor, size: int, alpha: float, beta: float, bias: float) -> te.Tensor:
    """``x / (bias + alpha / size * sum of squares over nearby channels) ^ beta``."""
    from tvm import te, tirx

    dtype, wide = str(x.dtype), accumulator(str(x.dtype))
    near = te.reduce_axis((0, size), name="near")

    def squares(n: Any, c: Any, *i: Any) -> Any:
        at = c + near - (size - 1) // 2
        inside = tirx.all(at >= 0, at < x.shape[1])
        value = tirx.if_then_else(inside, x(n, at, *i).astype(wide), tirx.const(0, wide))
        return te.sum(value * value, axis=near)

    total = te.compute(x.shape, squares, name="squares")

    def result(*i: Any) -> Any:
        base = tirx.const(bias, wide) + tirx.const(alpha / size, wide) * total(*i)
        return (x(*i).astype(wide) / tirx.pow(base, tirx.const(beta, wide))).astype(dtype)

    return te.compute(x.shape, result, name="lrn")


def lp_normalize(x: te.Tensor, axis: int, p: int) -> te.Tensor:
    """``x / ||x||_p`` along an axis; zero where the norm is."""
    from tvm import te, tirx

    axis = axis % len(x.shape)
    dtype, wide = str(x.dtype), accumulator(str(x.dtype))
    k = te.reduce_axis((0, x.shape[axis]), name="k")

    def power(*row: Any) -> Any:
        value = x(*row[:axis], k, *row[axis:]).astype(wide)
        return te.sum(tirx.abs(value) if p == 1 else value * value, axis=k)

    lead = [extent for place, extent in enumerate(x.shape) if place != axis]
    total = te.compute(lead, power, name="powers")

    def result(*i: Any) -> Any:
        size = total(*i[:axis], *i[axis + 1 :])
        size = size if p == 1 else tirx.sqrt(size)
        zero = tirx.const(0, wide)
        safe = tirx.Select(size == zero, tirx.const(1, wide), size)
        return tirx.Select(size == zero, zero, x(*i).astype(wide) / safe).astype(dtype)

    return te.compute(x.shape, result, name="lp_normalize")
