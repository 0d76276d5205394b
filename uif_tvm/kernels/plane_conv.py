"""Convolutions in plain layout whose extents are settled at run time, as tensor expressions.

*Dense* is a matrix product of pixels and filters that reads its rows where they lie:

    y[n, o, h, w] = sum_{c, i, j} x[n, c, h sh + i dh, w sw + j dw] wp[o / ob, c, i, j, o % ob]

summed in whole register tiles of ``wb`` pixels of a row by ``ob`` filters. A second stage parks a
tile in memory, from where the copy-out stage takes it by rows: registers can only be indexed by
constants, and layouts differ. *Depthwise* keeps a vector of pixels of one channel in registers.

Padding is a stage of its own: a copy with zeros around it, wide enough for whole tiles. Without
padding nothing is copied, and pixels past the end repeat the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.kernels.matmul import int64, shape64
from uif_tvm.target.schedule import FAMILY_ATTR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvm import te

#: Families of the anchor blocks.
PLANE_CONV = "plane_conv2d"
PLANE_DEPTHWISE = "plane_depthwise"


def pack_filters(weight: np.ndarray[Any, Any], block: int) -> np.ndarray[Any, Any]:
    """``[O, C, KH, KW] -> [ceil(O / ob), C, KH, KW, ob]``, zeros past O."""
    count, *rest = weight.shape
    panels = -(-count // block)
    padded = np.zeros((panels * block, *rest), weight.dtype)
    padded[:count] = weight
    split = padded.reshape(panels, block, *rest)
    return np.ascontiguousarray(np.moveaxis(split, 1, -1))


def plane_conv2d(
    x: te.Tensor,
    packed: te.Tensor,
    filters: int,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    pixels: int,
) -> te.Tensor:
    """``x [N, C, (H,) W]``, filters from :func:`pack_filters` -> ``[N, O, (H',) W']``.

    Args:
        filters: O.
        padding: (top, left, bottom, right).
        groups: a whole number of filter blocks must make a group.
        pixels: of one row in a register tile.
    """
    from tvm import te, tirx

    panels, depth, *kernel, block = (int(extent) for extent in packed.shape)
    rows, columns = _out_extents(x, kernel, strides, padding, dilation)
    exact = any(padding)
    source = _framed(x, kernel, strides, padding, dilation, columns, pixels) if exact else x
    c = te.reduce_axis((int64(0), int64(depth)), name="c")
    i = te.reduce_axis((int64(0), int64(kernel[0])), name="i")
    j = te.reduce_axis((int64(0), int64(kernel[1])), name="j")

    def total(n: Any, h: Any, wo: Any, p: Any, wi: Any, oi: Any) -> Any:
        w = wo * pixels + wi
        w = w if exact else tirx.min(w, columns - 1)
        channel = c if groups == 1 else (p * block) // (filters // groups) * depth + c
        row, column = h * strides[0] + i * dilation[0], w * strides[1] + j * dilation[1]
        value = source[_at(x, n, channel, row, column)]
        return te.sum(value * packed[p, c, i, j, oi], axis=[c, i, j])

    shape = (x.shape[0], rows, (columns - 1) // pixels + 1, panels, pixels, block)
    acc = te.compute(shape64(*shape), total, name="conv_tile", attrs={FAMILY_ATTR: PLANE_CONV})
    parked = te.compute(shape64(*shape), lambda *at: acc(*at), name="parked")

    def copy_out(n: Any, o: Any, *plane: Any) -> Any:
        h, w = plane if len(plane) == 2 else (0, plane[0])
        return parked[n, h, w // pixels, o // block, w % pixels, o % block]

    out = shape64(*_at(x, x.shape[0], filters, rows, columns))
    return te.compute(out, copy_out, name="conv2d")


def _at(x: te.Tensor, first: Any, second: Any, row: Any, column: Any) -> tuple[Any, ...]:
    """Four coordinates, or three where ``x`` has no rows."""
    return (first, second, row, column) if len(x.shape) == 4 else (first, second, column)


def plane_depthwise(
    x: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    pixels: int,
) -> te.Tensor:
    """``x [N, C, (H,) W]``, ``weight [C, 1, KH, KW]`` -> ``[N, C, (H',) W']``."""
    from tvm import te, tirx

    kernel = [int(extent) for extent in weight.shape[2:]]
    rows, columns = _out_extents(x, kernel, strides, padding, dilation)
    exact = any(padding)
    source = _framed(x, kernel, strides, padding, dilation, columns, pixels) if exact else x
    i = te.reduce_axis((int64(0), int64(kernel[0])), name="i")
    j = te.reduce_axis((int64(0), int64(kernel[1])), name="j")

    def total(n: Any, c: Any, h: Any, wo: Any, wi: Any) -> Any:
        w = wo * pixels + wi
        w = w if exact else tirx.min(w, columns - 1)
        row, column = h * strides[0] + i * dilation[0], w * strides[1] + j * dilation[1]
        return te.sum(source[_at(x, n, c, row, column)] * weight[c, 0, i, j], axis=[i, j])

    shape = (*x.shape[:2], rows, (columns - 1) // pixels + 1, pixels)
    acc = te.compute(
        shape64(*shape), total, name="depthwise_tile", attrs={FAMILY_ATTR: PLANE_DEPTHWISE}
    )

    def copy_out(n: Any, c: Any, *plane: Any) -> Any:
        h, w = plane if len(plane) == 2 else (0, plane[0])
        return acc[n, c, h, w // pixels, w % pixels]

    out = shape64(*_at(x, x.shape[0], x.shape[1], rows, columns))
    return te.compute(out, copy_out, name="depthwise")


def _out_extents(
    x: te.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Any, Any]:
    from tvm import sym

    # In the form that Relax's own types have: fusion compares them by structure.
    simplify = sym.Analyzer().simplify
    found = []
    for axis, extent in enumerate(_plane(x)):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        span = extent + (padding[axis] + padding[axis + 2] - reach)
        count = (span if strides[axis] == 1 else span // strides[axis]) + 1
        found.append(count if isinstance(count, int) else simplify(count))
    return found[0], found[1]


def _plane(x: te.Tensor) -> tuple[Any, Any]:
    """(H, W); one row where ``x`` has none."""
    return (x.shape[2], x.shape[3]) if len(x.shape) == 4 else (1, x.shape[2])


def _framed(
    x: te.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    columns: Any,
    pixels: int,
) -> te.Tensor:
    """``x`` within zeros, each row long enough for the last tile to read all of its pixels."""
    from tvm import te, tirx

    top, left, bottom, _ = padding
    height, width = _plane(x)
    tiles = (columns - 1) // pixels + 1
    reach = (kernel[1] - 1) * dilation[1] + 1
    length = (tiles * pixels - 1) * strides[1] + reach

    def at(n: Any, c: Any, *plane: Any) -> Any:
        row, column = (plane[0] - top, plane[1] - left) if len(plane) == 2 else (0, plane[0] - left)
        inside = [column >= 0, column < width]
        if len(plane) == 2:
            inside += [row >= 0, row < height]
        zero = tirx.const(0, str(x.dtype))
        return tirx.if_then_else(tirx.all(*inside), x[_at(x, n, c, row, column)], zero)

    return te.compute(
        shape64(*_at(x, x.shape[0], x.shape[1], height + (top + bottom), length)),
        at,
        name="framed",
    )
