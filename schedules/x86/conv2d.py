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

from uif_tvm.kernels.conv import CHANNELS_ATTR, CONV2D
from uif_tvm.kernels.layout import Window
from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, read_fused, shape_of
from uif_tvm.schedules.x86.conv2d_tile import (
    ConvTask,
    Grid,
    Tiles,
    choose_task,
    row_cycles,
    widest_tile,
)
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal, dtype_bytes

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import Machine, TargetSpec

#: Reduction steps that the innermost loop body holds: more only costs compile time.
UNROLL = 4
#: Taps of a plain (unblocked) input row that the innermost body holds.
UNROLL_TAPS = 8


@dataclass(frozen=True)
class ConvNest:
    """The geometry of one convolution kernel, and how it is cut.

    Args:
        kernel: the fused function being scheduled.
        window: kernel size, strides, padding, dilation.
        per_group: real input channels of one group.
        in_block: channels per input block (1 for a plain input).
        lanes: elements of one vector, and channels per output block.
        vectors: output vectors per weight block.
        out_blocks: output blocks (vectors) of one group.
        groups: convolution groups.
        flat: the plane is one long row of pixels.
        tiles: tiles of one row (of the plane when flat).
        task: rows (tiles when flat) and weight blocks per parallel task.
    """

    kernel: FusedKernel
    window: Window
    per_group: int
    in_block: int
    lanes: int
    vectors: int
    out_blocks: int
    groups: int
    flat: bool
    tiles: Tiles
    task: ConvTask

    @property
    def data(self) -> Any:
        """Input buffer."""
        return self.kernel.inputs[0]

    @property
    def weight(self) -> Any:
        """Weight buffer."""
        return self.kernel.inputs[1]

    @property
    def dtype(self) -> str:
        """Element type."""
        return str(self.data.dtype)

    @property
    def plain(self) -> bool:
        """The input is ``[N, C, H, W]``."""
        return len(self.data.shape) == 4

    @property
    def in_blocks(self) -> int:
        """Input blocks of one group, the last one possibly partial."""
        return -(-self.per_group // self.in_block)

    @property
    def weight_blocks(self) -> int:
        """Weight blocks of one group, the last one possibly partial."""
        return -(-self.out_blocks // self.vectors)

    @property
    def out_plane(self) -> tuple[int, int]:
        """Output rows and columns."""
        shape = shape_of(self.kernel.raw)
        return shape[2], shape[3]

    @property
    def padded_width(self) -> int:
        """Columns of the padded workspace; 0 when the input is read in place."""
        height, width = shape_of(self.data)[2:4]
        rows, columns = self.out_plane
        top, left, _, _ = self.window.padding
        last_row = self.window.rows(rows - 1, self.window.kernel[0] - 1)
        last_column = self.window.columns(columns - 1, self.window.kernel[1] - 1)
        if top <= 0 and left <= 0 and last_row < height and last_column < width:
            return 0
        return (columns - 1) * self.window.strides[1] + self.window.reach(1)


class BlockedConv2d:
    """Hand-written rule for the ``conv2d_blocked`` family."""

    name = "conv2d"
    version = 1
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        kernel = read_fused(func, (CONV2D,))
        if isinstance(kernel, Refusal):
            return kernel
        nest = plan_nest(kernel, target.machine)
        if isinstance(nest, Refusal):
            return nest
        sizes = sorted(set(nest.tiles.sizes()), reverse=True)
        detail = (
            f"tile {'/'.join(map(str, sizes))}x{nest.vectors * nest.lanes}, "
            f"task {nest.task.rows} {'tiles' if nest.flat else 'rows'} x "
            f"{nest.task.blocks} weight blocks, "
            f"{'parallel' if nest.task.parallel else 'serial'}, "
            f"{'padded copy' if nest.padded_width else 'in place'}"
        )
        return Scheduled(tir.finish(func, emit(nest)), detail)


def plan_nest(kernel: FusedKernel, machine: Machine) -> ConvNest | Refusal:
    """Read the geometry off the anchor's annotations and cut it for ``machine``."""
    data, weight, out = kernel.inputs[0], kernel.inputs[1], shape_of(kernel.raw)
    dtype = str(data.dtype)
    if dtype != "float32" or any(str(b.dtype) != dtype for b in (weight, kernel.raw)):
        return Refusal("dtype", f"float32 throughout is needed, the input is {dtype}")
    lanes = machine.lanes(dtype)
    weight_shape = shape_of(weight)
    if out[4] != lanes or weight_shape[5] % lanes:
        return Refusal(
            "layout",
            f"output block {out[4]} and weight block {weight_shape[5]} against {lanes} lanes",
        )
    window = Window.from_attrs(kernel.anchor.annotations)
    in_channels, out_channels, groups = (int(v) for v in kernel.anchor.annotations[CHANNELS_ATTR])
    vectors = weight_shape[5] // lanes
    per_group, out_blocks = in_channels // groups, -(-(out_channels // groups) // lanes)
    flat = _flattens(kernel, window)
    rows, length = (1, out[2] * out[3]) if flat else (out[2], out[3])
    tiles = Tiles.split(length, widest_tile(vectors, machine))
    steps = per_group * window.kernel[0] * window.kernel[1]
    cycles = row_cycles(length, vectors, steps, machine)
    unplanned = ConvTask(1, 1, False, 0.0)
    nest = ConvNest(
        kernel, window, per_group, weight_shape[4], lanes, vectors, out_blocks, groups, flat,
        tiles, unplanned,
    )  # fmt: skip
    padded_row = nest.padded_width * nest.in_blocks * nest.in_block * dtype_bytes(dtype)
    grid = Grid(
        batch=out[0],
        groups=groups,
        rows=tiles.count if flat else rows,
        blocks=nest.weight_blocks,
        piece_cycles=cycles / tiles.count if flat else cycles,
        block_bytes=steps * vectors * machine.vector_bytes,
        row_stride=window.strides[0],
        reach=window.reach(0),
        row_bytes=padded_row,
    )
    return _replace_task(nest, choose_task(grid, machine))


def _replace_task(nest: ConvNest, task: ConvTask) -> ConvNest:
    from dataclasses import replace

    return replace(nest, task=task)


def _flattens(kernel: FusedKernel, window: Window) -> bool:
    """Pixels of the plane follow each other, for the input and for all that the epilogue reads."""
    if window.kernel != (1, 1) or window.strides != (1, 1) or any(window.padding):
        return False
    plane = shape_of(kernel.raw)[2:4]
    others = [p for p in kernel.func.params if not any(p.same_as(b) for b in kernel.inputs)]
    return all(
        len(p.shape) == 5 and shape_of(p)[2:4] in (plane, (1, 1)) or shape_of(p) == ()
        for p in others
    )


def emit(nest: ConvNest) -> Any:
    """The whole loop nest."""
    batch = shape_of(nest.data)[0]
    rows = nest.tiles.count if nest.flat else nest.out_plane[0]
    bands = -(-rows // nest.task.rows)
    chunks = -(-nest.weight_blocks // nest.task.blocks)
    total = batch * nest.groups * chunks * bands

    def task(index: Any) -> Any:
        band = index % bands
        chunk = index // bands % chunks
        group = index // (bands * chunks) % nest.groups
        image = index // (bands * chunks * nest.groups)
        return _task(nest, image, group, chunk, band, rows)

    return tir.loop("task", total, task, "PARALLEL" if nest.task.parallel else "SERIAL")


def _task(nest: ConvNest, image: Any, group: Any, chunk: Any, band: Any, rows: int) -> Any:
    """One band of rows (tiles when flat) x one chunk of weight blocks."""
    first_row = band * nest.task.rows
    height = _part(rows, nest.task.rows, first_row)
    first_block = chunk * nest.task.blocks
    # The pixels of a flattened plane all lie in row 0.
    source, prepare = _input(nest, image, group, tir.i64(0) if nest.flat else first_row)

    def rows_of(block: Any, vectors: int) -> Any:
        def row(step: Any) -> Any:
            place = _Place(nest, image, group, block, vectors, source)
            if nest.flat:
                return _flat_tile(place, first_row + step)
            return _row_tiles(place, first_row + step, step)

        return tir.loop("row", height, row)

    full = nest.out_blocks // nest.vectors
    tail = nest.out_blocks % nest.vectors
    if not tail:
        count = _part(full, nest.task.blocks, first_block)
        body = tir.loop("block", count, lambda b: rows_of(first_block + b, nest.vectors))
    else:

        def either(b: Any) -> Any:
            block = first_block + b
            if full == 0:
                return rows_of(block, tail)
            return tir.branch(block < full, rows_of(block, nest.vectors), rows_of(block, tail))

        body = tir.loop("block", _part(full + 1, nest.task.blocks, first_block), either)
    return tir.seq(*prepare, body)


def _part(total: int, size: int, first: Any) -> Any:
    """Items in the part that starts at ``first``: ``size``, fewer in a last, partial one."""
    from tvm import tirx

    if total % size == 0:
        return size
    return tirx.min(tir.i64(size), tir.i64(total) - first)


@dataclass(frozen=True)
class _Place:
    """Where a tile is: indices common to all its pixels, and where inputs come from."""

    nest: ConvNest
    image: Any
    group: Any
    block: Any
    vectors: int
    source: Any


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
    band_rows = (nest.task.rows - 1) * stride_y + window.reach(0)
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


def _row_tiles(place: _Place, row: Any, step: Any) -> Any:
    """All tiles of one output row."""
    tiles = place.nest.tiles
    narrow, first = tiles.count - tiles.wide, tiles.wide * tiles.size

    def at(start: Any, size: int) -> Any:
        return _tile(place, step, start, size, lambda i: (row, start + i))

    return tir.seq(
        tir.loop("tile", tiles.wide, lambda t: at(t * tiles.size, tiles.size)),
        tir.loop("tile", narrow, lambda t: at(t * (tiles.size - 1) + first, tiles.size - 1)),
    )


def _flat_tile(place: _Place, tile: Any) -> Any:
    """Tile number ``tile`` of a flattened plane: its pixels are columns of row 0."""
    tiles = place.nest.tiles

    def at(start: Any, size: int) -> Any:
        return _tile(place, tir.i64(0), start, size, lambda i: (tir.i64(0), start + i))

    wide = at(tile * tiles.size, tiles.size)
    if tiles.wide == tiles.count:
        return wide
    narrow = at(tile * (tiles.size - 1) + tiles.wide, tiles.size - 1)
    return tir.branch(tile < tiles.wide, wide, narrow)


def _tile(place: _Place, step: Any, start: Any, size: int, pixel: Any) -> Any:
    """One register tile: clear, accumulate, write through the epilogue."""
    from tvm import tirx

    nest, lanes, vectors = place.nest, place.nest.lanes, place.vectors
    acc = tir.registers("acc", size * vectors, lanes, nest.dtype)
    slots = [tir.lanes_from(slot * lanes, lanes) for slot in range(size * vectors)]
    clear = [tir.write(acc, tir.splat(tirx.const(0, nest.dtype), lanes), slot) for slot in slots]
    weight_block = place.group * nest.weight_blocks + place.block

    def multiply(block: Any, p: Any, q: Any, lane: Any) -> list[Any]:
        """One reduction step: every pixel's input times every weight vector."""
        out = []
        for i in range(size):
            value = tir.splat(place.source(block, step, p, start + i, q, lane), lanes)
            for v in range(vectors):
                at = tir.lanes_from(v * lanes, lanes)
                factor = tir.read(nest.weight, weight_block, block, p, q, lane, at)
                slot = slots[i * vectors + v]
                out.append(tir.write(acc, tir.read(acc, slot) + value * factor, slot))
        return out

    def result(i: Any, v: Any) -> Any:
        channel = (place.group * nest.out_blocks + place.block * nest.vectors) + v
        at = [place.image, channel, *pixel(i)]
        return tir.store_result(nest.kernel, acc, i * vectors + v, at, lanes)

    store = tir.loop(
        "i", size, lambda i: tir.loop("v", vectors, lambda v: result(i, v), "UNROLLED"), "UNROLLED"
    )
    return tir.seq(tir.alloc(acc), *clear, _reduce(nest, multiply), store)


def _reduce(nest: ConvNest, multiply: Any) -> Any:
    """Loops over input blocks, taps and lanes, innermost steps unrolled."""
    taps_y, taps_x = nest.window.kernel
    full, rest = divmod(nest.per_group, nest.in_block)
    if nest.in_block == 1:
        # A plain input: the taps of a row are the innermost steps.
        return tir.loop(
            "c",
            full,
            lambda c: tir.loop(
                "p",
                taps_y,
                lambda p: _chunked(
                    "q", taps_x, UNROLL_TAPS, lambda q: multiply(c, p, q, tir.i64(0))
                ),
            ),
        )

    def block(c: Any, lanes: int) -> Any:
        def tap(p: Any, q: Any) -> Any:
            return _chunked("lane", lanes, UNROLL, lambda lane: multiply(c, p, q, lane))

        return tir.loop("p", taps_y, lambda p: tir.loop("q", taps_x, lambda q: tap(p, q)))

    return tir.seq(
        tir.loop("c", full, lambda c: block(c, nest.in_block)),
        block(tir.i64(full), rest) if rest else None,
    )


def _chunked(name: str, extent: int, unroll: int, steps: Any) -> Any:
    """``extent`` steps, ``unroll`` of them in the loop's body, the rest after it."""

    def body(first: Any, count: int) -> Any:
        return tir.seq(*(s for k in range(count) for s in steps(first + k)))

    chunks, rest = divmod(extent, unroll)
    return tir.seq(
        tir.loop(name, chunks, lambda c: body(c * unroll, unroll)),
        body(tir.i64(chunks * unroll), rest) if rest else None,
    )
