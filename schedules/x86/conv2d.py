"""Direct convolution over blocked layouts: register tiles over pixels x output channels.

Per parallel task (a band of output rows x some weight blocks):

1. copy the band's input rows into a padded workspace, when the convolution pads;
2. for each weight block, row and tile: accumulate ``tile x vectors`` registers over input
   channels and taps - broadcast an input, multiply with weight vectors that stay in registers;
3. write the tile through the fused epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import read_fused, shape_of
from uif_tvm.schedules.x86.conv2d_nest import ConvNest, plan_nest

from uif_tvm.kernels.blocked_conv import CONV2D
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

#: Reduction steps that the innermost loop body holds: more only costs compile time.
UNROLL = 4
#: Reduction steps between a weight's prefetch and its use: a memory access takes about that long.
PREFETCH_STEPS = 32


class BlockedConv2d:
    """Hand-written rule for the ``conv2d_blocked`` family."""

    name = "conv2d"
    version = 3
    kind = "hand-written"

    def plan(self, func: PrimFunc, target: TargetSpec) -> ConvNest | Refusal:
        """The loop nest to emit, or why there is none for ``func``."""
        kernel = read_fused(func, (CONV2D,))
        return kernel if isinstance(kernel, Refusal) else plan_nest(kernel, target.machine)

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        nest = self.plan(func, target)
        if isinstance(nest, Refusal):
            return nest
        return Scheduled(tir.finish(func, emit(nest)), nest.detail)


def emit(nest: ConvNest) -> Any:
    """The whole loop nest."""
    batch = shape_of(nest.data)[0]
    bands = -(-nest.tiling.units.count // nest.task.units)
    chunks = -(-nest.weight_blocks // nest.task.blocks)
    total = batch * nest.groups * chunks * bands

    def task(index: Any) -> Any:
        band = index % bands
        chunk = index // bands % chunks
        group = index // (bands * chunks) % nest.groups
        image = index // (bands * chunks * nest.groups)
        return _task(nest, image, group, chunk, band)

    return tir.loop("task", total, task, "PARALLEL" if nest.task.parallel else "SERIAL")


def _task(nest: ConvNest, image: Any, group: Any, chunk: Any, band: Any) -> Any:
    """One band of units x one chunk of weight blocks."""
    units = nest.tiling.units
    first_unit = band * nest.task.units
    first_block = chunk * nest.task.blocks
    # The pixels of a flattened plane all lie in row 0.
    first_row = tir.i64(0) if nest.tiling.flat else units.start(first_unit)
    source, prepare = _input(nest, image, group, first_row)

    def units_of(block: Any, vectors: int) -> Any:
        place = _Place(nest, image, group, block, vectors, source, first_row)

        def unit(step: Any) -> Any:
            index = first_unit + step
            wide = _unit(place, units.start(index), units.size)
            if units.wide == units.count:
                return wide
            return tir.branch(
                index < units.wide, wide, _unit(place, units.start(index), units.size - 1)
            )

        return tir.loop("unit", _part(units.count, nest.task.units, first_unit), unit)

    full, tail = divmod(nest.out_blocks, nest.vectors)

    def block(step: Any) -> Any:
        index = first_block + step
        if full == 0:
            return units_of(index, tail)
        if tail == 0:
            return units_of(index, nest.vectors)
        return tir.branch(index < full, units_of(index, nest.vectors), units_of(index, tail))

    count = _part(nest.weight_blocks, nest.task.blocks, first_block)
    return tir.seq(*prepare, tir.loop("block", count, block))


def _part(total: int, size: int, first: Any) -> Any:
    """Items in the part that starts at ``first``: ``size``, fewer in a last, partial one."""
    from tvm import tirx

    if total % size == 0:
        return size
    return tirx.min(tir.i64(size), tir.i64(total) - first)


@dataclass(frozen=True)
class _Place:
    """Where tiles are: what their pixels have in common, and where inputs come from."""

    nest: ConvNest
    image: Any
    group: Any
    block: Any
    vectors: int
    source: Any
    first_row: Any


def _input(nest: ConvNest, image: Any, group: Any, first_row: Any) -> tuple[Any, list[Any]]:
    """How to read an input element, and the statements that prepare it.

    The reader takes (input block, row within the band, tap row, column, tap column, lane).
    """
    window, data = nest.window, nest.data
    stride_y, stride_x = window.strides
    dilation_y, dilation_x = window.dilation
    padded_width = nest.padded_width
    if not padded_width:

        def in_place(block: Any, row: Any, p: Any, column: Any, q: Any, lane: Any) -> Any:
            y = (first_row + row) * stride_y + p * dilation_y
            x = column * stride_x + q * dilation_x
            channel = group * nest.in_blocks + block
            if nest.plain:
                return tir.read(data, image, channel, y, x)
            return tir.read(data, image, channel, y, x, lane)

        return in_place, []
    band_rows = (nest.task.units * nest.tiling.units.size - 1) * stride_y + window.reach(0)
    shape = (nest.in_blocks, band_rows, padded_width, nest.in_block)
    buffer = tir.workspace("padded", shape, nest.dtype)

    def copied(block: Any, row: Any, p: Any, column: Any, q: Any, lane: Any) -> Any:
        y, x = row * stride_y + p * dilation_y, column * stride_x + q * dilation_x
        return tir.read(buffer, block, y, x, lane)

    return copied, [tir.alloc(buffer), _copy_band(nest, buffer, shape, image, group, first_row)]


def _copy_band(
    nest: ConvNest, buffer: Any, shape: tuple[int, ...], image: Any, group: Any, first_row: Any
) -> Any:
    """Copy the band's input rows into ``buffer``, zeros where the window leaves the input."""
    from tvm import tirx

    height, width = shape_of(nest.data)[2:4]
    top, left, _, _ = nest.window.padding
    skip, kept = max(0, -left), min(width, shape[2] - left) - max(0, -left)
    left = max(0, left)
    zero = tirx.const(0, nest.dtype)

    def clear(block: Any, row: Any, start: int, count: int) -> Any:
        return tir.loop(
            "x",
            count,
            lambda x: tir.write(
                buffer, tir.splat(zero, nest.in_block), block, row, x + start,
                tir.lanes_from(0, nest.in_block),
            ),
        )  # fmt: skip

    def line(block: Any, row: Any) -> Any:
        y = first_row * nest.window.strides[0] + row - top
        channel = group * nest.in_blocks + block

        def pixel(x: Any) -> Any:
            lane = tir.lanes_from(0, nest.in_block)
            at = (
                (image, channel, y, x + skip) if nest.plain else (image, channel, y, x + skip, lane)
            )
            return tir.write(buffer, tir.read(nest.data, *at), block, row, x + left, lane)

        middle = tir.seq(
            clear(block, row, 0, left),
            tir.loop("x", kept, pixel),
            clear(block, row, left + kept, shape[2] - left - kept),
        )
        return tir.branch(tirx.all(y >= 0, y < height), middle, clear(block, row, 0, shape[2]))

    return tir.loop("c", shape[0], lambda c: tir.loop("y", shape[1], lambda y: line(c, y)))


def _unit(place: _Place, start: Any, size: int) -> Any:
    """One unit: ``size`` pixels of a flat plane, or all tiles of ``size`` rows."""
    tiling = place.nest.tiling
    if tiling.flat:
        return _tile(place, [(tir.i64(0), start + i) for i in range(size)], size)
    columns = tiling.columns

    def at(column: Any, width: int) -> Any:
        pixels = [(start + r, column + c) for r in range(size) for c in range(width)]
        return _tile(place, pixels, width)

    narrow, first = columns.count - columns.wide, columns.wide * columns.size
    return tir.seq(
        tir.loop("tile", columns.wide, lambda t: at(t * columns.size, columns.size)),
        tir.loop("tile", narrow, lambda t: at(t * (columns.size - 1) + first, columns.size - 1)),
    )


def _tile(place: _Place, pixels: list[tuple[Any, Any]], width: int) -> Any:
    """One register tile: clear, accumulate, write through the epilogue.

    Args:
        place: see :class:`_Place`.
        pixels: output row and column of each pixel, row by row.
        width: pixels in each row.
    """
    nest, lanes, vectors = place.nest, place.nest.lanes, place.vectors
    acc = tir.Registers("acc", len(pixels) * vectors, lanes, nest.dtype)
    weight_block = place.group * nest.weight_blocks + place.block

    def weight(block: Any, p: Any, q: Any, lane: Any, at: Any) -> Any:
        return tir.read(nest.weight, weight_block, block, p, q, lane, at)

    def multiply(block: Any, p: Any, q: Any, lane: Any) -> list[Any]:
        """One reduction step: every pixel's input times every weight vector."""
        out = []
        if nest.far_weights:
            ahead = lane + PREFETCH_STEPS
            out += [tir.prefetch(weight(block, p, q, ahead, v * lanes)) for v in range(vectors)]
        for i, (row, column) in enumerate(pixels):
            value = tir.splat(place.source(block, row - place.first_row, p, column, q, lane), lanes)
            for v in range(vectors):
                factor = weight(block, p, q, lane, tir.lanes_from(v * lanes, lanes))
                slot = i * vectors + v
                out.append(acc.write(slot, acc.read(slot) + value * factor))
        return out

    def where(row: Any, column: Any, v: Any) -> list[Any]:
        channel = place.group * nest.out_blocks + place.block * nest.vectors + v
        return [place.image, channel, row, column]

    fetch = [
        tir.prefetch(tir.read(operand, *where(row, column, v), 0))
        for operand in nest.kernel.full_operands()
        for row, column in pixels
        for v in range(vectors)
    ]
    store = [
        acc.store([i * vectors + v for i in range(n, n + width)], nest.kernel, where(*pixels[n], v))
        for n in range(0, len(pixels), width)
        for v in range(vectors)
    ]
    return tir.seq(*acc.alloc(), *acc.fill(0.0), *fetch, _reduce(nest, multiply), *store)


def _reduce(nest: ConvNest, multiply: Any) -> Any:
    """Loops over input blocks, taps and lanes, innermost steps unrolled."""
    taps_y, taps_x = nest.window.kernel
    full, rest = divmod(nest.per_group, nest.in_block)
    if nest.in_block == 1:
        # Taps of one row share inputs between pixels; rows and channels do not. Were the columns
        # innermost, the code generator would keep shared inputs and spill accumulators for them.
        def column(q: Any) -> Any:
            return tir.loop(
                "c", full, lambda c: tir.loop("p", taps_y, lambda p: _step(multiply, c, p, q))
            )

        return tir.loop("q", taps_x, column)

    def block(c: Any, lanes: int) -> Any:
        def tap(p: Any, q: Any) -> Any:
            return _chunked("lane", lanes, UNROLL, lambda lane: multiply(c, p, q, lane))

        return tir.loop("p", taps_y, lambda p: tir.loop("q", taps_x, lambda q: tap(p, q)))

    return tir.seq(
        tir.loop("c", full, lambda c: block(c, nest.in_block)),
        block(tir.i64(full), rest) if rest else None,
    )


def _step(multiply: Any, c: Any, p: Any, q: Any) -> Any:
    return tir.seq(*multiply(c, p, q, tir.i64(0)))


def _chunked(name: str, extent: int, unroll: int, steps: Any) -> Any:
    """``extent`` steps, ``unroll`` of them in the loop's body, the rest after it."""

    def body(first: Any, count: int) -> Any:
        return tir.seq(*(s for k in range(count) for s in steps(first + k)))

    chunks, rest = divmod(extent, unroll)
    return tir.seq(
        tir.loop(name, chunks, lambda c: body(c * unroll, unroll)),
        body(tir.i64(chunks * unroll), rest) if rest else None,
    )
