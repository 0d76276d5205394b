"""Direct convolution over blocked layouts: register tiles over pixels x output channels.

Per parallel task (a band of output rows x some weight blocks):

1. copy the band's input rows into a padded workspace, when the convolution pads;
2. for each weight block, row and tile: accumulate ``tile x vectors`` registers over input
   channels and taps - broadcast an input, multiply with weight vectors that stay in registers;
3. write the tile through the fused epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, read_fused, shape_of
from uif_tvm.schedules.x86.conv2d_tile import (
    ConvTask,
    Grid,
    Tiling,
    choose_task,
    plan_tiling,
    plane_cycles,
)

from uif_tvm.kernels.conv import CHANNELS_ATTR, CONV2D
from uif_tvm.kernels.layout import Window
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal, dtype_bytes

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import Machine, TargetSpec

#: Reduction steps that the innermost loop body holds: more only costs compile time.
UNROLL = 4
#: Reduction steps between a weight's prefetch and its use: a memory access takes about that long.
PREFETCH_STEPS = 32


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
        tiling: register tiles of the output plane.
        task: units of the tiling and weight blocks per parallel task.
        far_weights: the weights do not stay in the second-level cache, so fetch them early.
    """

    kernel: FusedKernel
    window: Window
    per_group: int
    in_block: int
    lanes: int
    vectors: int
    out_blocks: int
    groups: int
    tiling: Tiling
    task: ConvTask
    far_weights: bool

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

    @property
    def detail(self) -> str:
        """Short description for reports."""
        unit, column = self.tiling.units.size, self.tiling.columns.size
        pixels = f"{unit}" if self.tiling.flat else f"{unit}x{column}"
        return (
            f"tile {pixels} pixels x {self.vectors * self.lanes} channels, task "
            f"{self.task.units} units x {self.task.blocks} weight blocks, "
            f"{'parallel' if self.task.parallel else 'serial'}, "
            f"{'padded copy' if self.padded_width else 'in place'}"
        )


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
        return Scheduled(tir.finish(func, emit(nest)), nest.detail)


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
    tiling = plan_tiling((out[2], out[3]), _flattens(kernel, window), vectors, machine)
    steps = per_group * window.kernel[0] * window.kernel[1]
    block_bytes = steps * vectors * machine.vector_bytes
    nest = ConvNest(
        kernel=kernel,
        window=window,
        per_group=per_group,
        in_block=weight_shape[4],
        lanes=lanes,
        vectors=vectors,
        out_blocks=out_blocks,
        groups=groups,
        tiling=tiling,
        task=ConvTask(1, 1, False, 0.0),
        far_weights=block_bytes * weight_shape[0] > machine.l2_bytes // 2,
    )
    cycles = plane_cycles(tiling, vectors, steps, machine.vector_bytes)
    grid = Grid(
        batch=out[0],
        groups=groups,
        units=tiling.units.count,
        blocks=nest.weight_blocks,
        piece_cycles=cycles / tiling.units.count,
        block_bytes=block_bytes,
        unit_rows=tiling.units.size * window.strides[0],
        reach=window.reach(0) + (tiling.units.size - 1) * window.strides[0],
        row_bytes=nest.padded_width * nest.in_blocks * nest.in_block * dtype_bytes(dtype),
    )
    return replace(nest, task=choose_task(grid, machine))


def _flattens(kernel: FusedKernel, window: Window) -> bool:
    """Pixels of the plane follow each other, for the input and for all that the epilogue reads."""
    if window.kernel != (1, 1) or window.strides != (1, 1) or any(window.padding):
        return False
    plane = shape_of(kernel.raw)[2:4]
    others = [p for p in kernel.func.params if not any(p.same_as(b) for b in kernel.inputs)]
    return all(
        (len(p.shape) == 5 and shape_of(p)[2:4] in (plane, (1, 1))) or shape_of(p) == ()
        for p in others
    )


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
        return _tile(place, [(tir.i64(0), start + i) for i in range(size)])
    columns = tiling.columns

    def at(column: Any, width: int) -> Any:
        return _tile(place, [(start + r, column + c) for r in range(size) for c in range(width)])

    narrow, first = columns.count - columns.wide, columns.wide * columns.size
    return tir.seq(
        tir.loop("tile", columns.wide, lambda t: at(t * columns.size, columns.size)),
        tir.loop("tile", narrow, lambda t: at(t * (columns.size - 1) + first, columns.size - 1)),
    )


def _tile(place: _Place, pixels: list[tuple[Any, Any]]) -> Any:
    """One register tile: clear, accumulate, write through the epilogue.

    Args:
        place: see :class:`_Place`.
        pixels: output row and column of each pixel.
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
        acc.store(i * vectors + v, nest.kernel, where(row, column, v))
        for i, (row, column) in enumerate(pixels)
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
