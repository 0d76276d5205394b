"""The loop of RoiAlign, whose number of samples may follow each region's size."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T


def roi_align_kernel(
    image: tuple[int, int, int, int],
    regions: Any,
    cells: tuple[int, int],
    scale: float,
    ratio: int,
    half_pixel: bool,
    average: bool,
) -> Any:
    """A function of (image, regions, batch indices, result), all real ones float32.

    Args:
        image: (batch, channels, height, width).
        regions: their number, an integer or a variable.
        cells: height and width of the result.
        scale: from the regions' coordinates to pixels.
        ratio: samples of a cell along each axis; 0 for as many as it has pixels.
        half_pixel: whether coordinates count from pixels' outer edges.
        average: mean of the samples, else the largest weighted corner (as ONNX's reference).
    """
    batch, channels, height, width = image
    cells_h, cells_w = cells
    shift = 0.5 if half_pixel else 0.0
    least = 0.0 if half_pixel else 1.0

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    def size(span: Any) -> Any:
        return span if half_pixel else tirx.max(span, number(least))

    def samples(span: Any, count: int) -> Any:
        if ratio > 0:
            return tirx.const(ratio, "int64")
        whole = tirx.ceil(span / number(count))
        # A bound on the work of hostile regions; none of a real one has as many pixels.
        return tirx.max(tirx.min(whole, number(1 << 16)), number(0)).astype("int64")

    @T.prim_func(private=True, s_tir=True)
    def roi_align(
        x: T.Buffer((batch, channels, height, width), "float32"),
        rois: T.Buffer((regions, 4), "float32"),
        index: T.Buffer((regions,), "int64"),
        out: T.Buffer((regions, channels, cells_h, cells_w), "float32"),
    ):
        with T.sblock("root"):
            edge = T.alloc_buffer((6,), "float32")
            count = T.alloc_buffer((2,), "int64")
            place = T.alloc_buffer((2,), "float32")
            total = T.alloc_buffer((1,), "float32")
            with T.sblock("loops"):
                for r in range(regions):
                    for k in range(4):
                        edge[k] = rois[r, k] * T.float32(scale) - T.float32(shift)
                    edge[4] = size(edge[3] - edge[1])
                    edge[5] = size(edge[2] - edge[0])
                    count[0] = samples(edge[4], cells_h)
                    count[1] = samples(edge[5], cells_w)
                    for c, i, j in T.grid(channels, cells_h, cells_w):
                        total[0] = T.float32(0)
                        for a in range(count[0]):
                            for b in range(count[1]):
                                place[0] = _position(edge[1], edge[4], i, a, cells_h, count[0])
                                place[1] = _position(edge[0], edge[5], j, b, cells_w, count[1])
                                total[0] = _joined(
                                    total[0],
                                    _sample(
                                        x, _clamp(index[r], batch), c, place[0], place[1], average
                                    ),
                                    tirx.all(a == 0, b == 0),
                                    average,
                                )
                        out[r, c, i, j] = _finished(total[0], count[0] * count[1], average)

    return roi_align


def _clamp(value: Any, extent: int) -> Any:
    return tirx.max(tirx.min(value, tirx.const(extent - 1, "int64")), tirx.const(0, "int64"))


def _position(start: Any, span: Any, cell: Any, sample: Any, cells: int, count: Any) -> Any:
    size = span / tirx.const(cells, "float32")
    half = tirx.const(0.5, "float32")
    inner = (sample.astype("float32") + half) * size / count.astype("float32")
    return start + cell.astype("float32") * size + inner


def _joined(total: Any, value: Any, first: Any, average: bool) -> Any:
    if average:
        return total + value
    return tirx.Select(first, value, tirx.max(total, value))


def _finished(total: Any, count: Any, average: bool) -> Any:
    one = tirx.const(1, "int64")
    return total / tirx.max(count, one).astype("float32") if average else total


def _sample(x: Any, image: Any, channel: Any, y: Any, z: Any, average: bool) -> Any:
    """Bilinear value at (y, z), or the largest of the four weighted pixels; 0 far outside."""
    height, width = (int(extent) for extent in x.shape[2:])
    zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")
    minus = tirx.const(-1, "float32")
    off = tirx.any(
        y < minus,
        y > tirx.const(height, "float32"),
        z < minus,
        z > tirx.const(width, "float32"),
    )
    y = tirx.max(tirx.min(y, tirx.const(height - 1, "float32")), zero)
    z = tirx.max(tirx.min(z, tirx.const(width - 1, "float32")), zero)
    top, left = tirx.floor(y), tirx.floor(z)
    dy, dz = y - top, z - left
    p, q = _clamp(top.astype("int64"), height), _clamp(left.astype("int64"), width)
    below, right = _clamp(p + 1, height), _clamp(q + 1, width)
    corners = [
        x[image, channel, p, q] * ((one - dy) * (one - dz)),
        x[image, channel, p, right] * ((one - dy) * dz),
        x[image, channel, below, q] * (dy * (one - dz)),
        x[image, channel, below, right] * (dy * dz),
    ]
    if average:
        value = corners[0] + corners[1] + corners[2] + corners[3]
    else:
        value = tirx.max(tirx.max(corners[0], corners[1]), tirx.max(corners[2], corners[3]))
    return tirx.Select(off, zero, value)
