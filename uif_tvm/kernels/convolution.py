"""Convolutions in plain layout that Relax lacks or that TVM computes in another sense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.extents import known
from uif_tvm.kernels.norm import accumulator
from uif_tvm.ops.convolution import each, padding_of, positions

if TYPE_CHECKING:
    from tvm import te


def _zero(dtype: str) -> Any:
    from tvm import tirx

    return tirx.const(0, dtype)


def _taps(kernel: Sequence[Any]) -> list[Any]:
    from tvm import te

    return [te.reduce_axis((0, extent), name=f"k{axis}") for axis, extent in enumerate(kernel)]


def conv_transpose(
    x: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> te.Tensor:
    """``out[o] = sum over k, i of x[i] w[i, o, k]`` where ``i s + k d - before`` is the place.

    Gathers: each result reads what reaches it, so that no two write to one place.
    """
    from tvm import te, tirx

    rank = len(x.shape) - 2
    strides, dilation = each(strides, rank), each(dilation, rank)
    before, after = padding_of(padding, rank)
    per_in, per_out = x.shape[1] // groups, weight.shape[1]
    dtype, wide = str(x.dtype), accumulator(str(x.dtype))
    sizes = [
        (n - 1) * s + (k - 1) * d + 1 + extra - lo - hi
        for n, s, k, d, extra, lo, hi in zip(
            x.shape[2:],
            strides,
            weight.shape[2:],
            dilation,
            each(output_padding, rank),
            before,
            after,
            strict=True,
        )
    ]
    inner, taps = te.reduce_axis((0, per_in), name="i"), _taps(weight.shape[2:])

    def at(n: Any, o: Any, *place: Any) -> Any:
        from_left = [
            p + b - t * d for p, b, t, d in zip(place, before, taps, dilation, strict=True)
        ]
        source = [tirx.floordiv(f, s) for f, s in zip(from_left, strides, strict=True)]
        ok = [f >= 0 for f in from_left]
        ok += [tirx.floormod(f, s) == 0 for f, s in zip(from_left, strides, strict=True) if s > 1]
        ok += [q < extent for q, extent in zip(source, x.shape[2:], strict=True)]
        channel = tirx.floordiv(o, per_out) * per_in + inner if groups > 1 else inner
        value = tirx.if_then_else(tirx.all(*ok), x(n, channel, *source), _zero(dtype))
        factor = weight(channel, tirx.floormod(o, per_out) if groups > 1 else o, *taps)
        return te.sum(value.astype(wide) * factor.astype(wide), axis=[inner, *taps])

    shape = (x.shape[0], per_out * groups, *sizes)
    total = te.compute(shape, at, name="conv_transpose")
    if wide == dtype:
        return total
    return te.compute(shape, lambda *i: total(*i).astype(dtype), name="rounded")


def im2col(
    x: te.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """Every window as a column."""
    from tvm import te, tirx

    rank = len(x.shape) - 2
    kernel, strides, dilation = each(kernel, rank), each(strides, rank), each(dilation, rank)
    before, after = padding_of(padding, rank)
    counts = positions(known(x.shape[2:]), kernel, strides, before, after, dilation)

    def at(n: Any, row: Any, column: Any) -> Any:
        taps: list[Any] = []
        places: list[Any] = []
        for extent in reversed(kernel):
            taps.insert(0, tirx.floormod(row, extent))
            row = tirx.floordiv(row, extent)
        for count in reversed(counts):
            places.insert(0, tirx.floormod(column, count))
            column = tirx.floordiv(column, count)
        source = [
            p * s + t * d - b
            for p, s, t, d, b in zip(places, strides, taps, dilation, before, strict=True)
        ]
        ok = [q >= 0 for q in source]
        ok += [q < extent for q, extent in zip(source, x.shape[2:], strict=True)]
        return tirx.if_then_else(tirx.all(*ok), x(n, row, *source), _zero(str(x.dtype)))

    shape = (x.shape[0], x.shape[1] * math.prod(kernel), math.prod(counts))
    return te.compute(shape, at, name="im2col")


def col2im(
    x: te.Tensor,
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """Sum of the columns' elements that lie at each place of the image."""
    from tvm import te, tirx

    rank = len(image)
    kernel, strides, dilation = each(kernel, rank), each(strides, rank), each(dilation, rank)
    before, after = padding_of(padding, rank)
    counts = positions(image, kernel, strides, before, after, dilation)
    taps = _taps(kernel)
    dtype, wide = str(x.dtype), accumulator(str(x.dtype))

    def at(n: Any, c: Any, *o: Any) -> Any:
        places = [o[i] + before[i] - taps[i] * dilation[i] for i in range(rank)]
        blocks = [tirx.floordiv(p, s) for p, s in zip(places, strides, strict=True)]
        ok = [tirx.floormod(p, s) == 0 for p, s in zip(places, strides, strict=True)]
        ok += [q >= 0 for q in blocks]
        ok += [q < m for q, m in zip(blocks, counts, strict=True)]
        row, column = c, tirx.const(0, "int64")
        for tap, extent in zip(taps, kernel, strict=True):
            row = row * extent + tap
        for q, m in zip(blocks, counts, strict=True):
            column = column * m + q
        value = tirx.if_then_else(tirx.all(*ok), x(n, row, column), _zero(dtype))
        return te.sum(value.astype(wide), axis=taps)

    shape = (x.shape[0], x.shape[1] // math.prod(kernel), *image)
    total = te.compute(shape, at, name="col2im")
    if wide == dtype:
        return total
    return te.compute(shape, lambda *i: total(*i).astype(dtype), name="rounded")
