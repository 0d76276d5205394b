"""Loop nest for kernels that slide a window over one channel block: depthwise, pooling.

One vector holds one pixel of one channel block, so every step is a plain vector operation and
the limit is the load ports or memory, not arithmetic. Nothing is copied for padding: taps that
fall outside are left out, columns when the code is emitted (edge tiles are emitted apart), rows
by the bounds of the loop over tap rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, shape_of
from uif_tvm.schedules.x86.conv2d_tile import LAUNCH_CYCLES, Tiles

from uif_tvm.kernels.layout import Window

if TYPE_CHECKING:
    from uif_tvm.target.spec import Machine

#: Taps of one row that a loop body holds.
UNROLL_TAPS = 8
#: Partial accumulators of a single-pixel tile, to hide the latency of a chain of additions.
PARTIALS = 4

#: (accumulator, input vector, channel block, tap row, tap column) -> new accumulator.
Combine = Callable[[Any, Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class WindowNest:
    """One windowed kernel and how it is cut.

    Args:
        kernel: the fused function being scheduled.
        window: kernel size, strides, padding, dilation.
        lanes: elements per vector, and channels per block.
        initial: start value of the accumulators.
        combine: what one tap does.
        merge: joins two partial accumulators (sum or maximum); ``None`` forbids partials.
        tiles: tiles of one output row.
        rows: output rows per task.
        parallel: whether tasks run in parallel.
    """

    kernel: FusedKernel
    window: Window
    lanes: int
    initial: float
    combine: Combine
    merge: Callable[[Any, Any], Any] | None
    tiles: Tiles
    rows: int
    parallel: bool

    @property
    def detail(self) -> str:
        """Short description for reports."""
        how = "parallel" if self.parallel else "serial"
        return f"tile {self.tiles.size}x{self.lanes}, task {self.rows} rows, {how}"


def plan_window(
    kernel: FusedKernel,
    window: Window,
    machine: Machine,
    combine: Combine,
    initial: float = 0.0,
    merge: Callable[[Any, Any], Any] | None = None,
) -> WindowNest:
    """Cut a windowed kernel: tiles from the registers, tasks from the work there is."""
    batch, count, rows, columns, lanes = shape_of(kernel.raw)
    tiles = Tiles.split(columns, max(1, machine.vector_registers // 2))
    # One load and one operation per tap, two a cycle; one store per output.
    row_cycles = columns * (window.kernel[0] * window.kernel[1] / 2.0 + 1.0)
    images = batch * count

    def makespan(size: int) -> tuple[float, int]:
        tasks = images * -(-rows // size)
        return -(-tasks // machine.cores) * (size * row_cycles + 50.0), -size

    best = min((-(-rows // parts) for parts in range(1, min(rows, 8) + 1)), key=makespan)
    serial = images * rows * row_cycles
    parallel = machine.cores > 1 and makespan(best)[0] + LAUNCH_CYCLES < serial
    return WindowNest(
        kernel, window, lanes, initial, combine, merge, tiles, best if parallel else rows, parallel
    )


def emit_window(nest: WindowNest) -> Any:
    """The whole loop nest over images, channel blocks, bands of rows, rows and tiles."""
    batch, count, rows, _, _ = shape_of(nest.kernel.raw)
    bands = -(-rows // nest.rows)

    def task(index: Any) -> Any:
        def band(image: Any, channel: Any, first: Any) -> Any:
            height: Any = nest.rows
            if rows % nest.rows:
                from tvm import tirx

                height = tirx.min(tir.i64(nest.rows), tir.i64(rows) - first)
            return tir.loop(
                "row",
                height,
                lambda r: tir.named("y", first + r, lambda y: _row(nest, image, channel, y)),
            )

        first = index % bands * nest.rows
        return tir.named(
            "image",
            index // (bands * count),
            lambda image: tir.named(
                "channel",
                index // bands % count,
                lambda channel: tir.named("first", first, lambda at: band(image, channel, at)),
            ),
        )

    return tir.loop("task", batch * count * bands, task, "PARALLEL" if nest.parallel else "SERIAL")


def _row(nest: WindowNest, image: Any, channel: Any, row: Any) -> Any:
    """One output row; runs of tiles that lie wholly inside share one loop."""
    starts, position = [], 0
    for size in nest.tiles.sizes():
        starts.append((position, size))
        position += size
    parts, index = [], 0
    while index < len(starts):
        start, size = starts[index]
        run = 1
        if _inside(nest, start, size):
            while (
                index + run < len(starts)
                and starts[index + run][1] == size
                and _inside(nest, starts[index + run][0], size)
            ):
                run += 1
        parts.append(_run(nest, (image, channel, row), start, size, run))
        index += run
    return tir.seq(*parts)


def _run(nest: WindowNest, where: tuple[Any, Any, Any], start: int, size: int, run: int) -> Any:
    if run == 1:
        return _tile(nest, where, tir.i64(start), size, start)
    return tir.loop("tile", run, lambda t: _tile(nest, where, t * size + start, size, None))


def _inside(nest: WindowNest, start: int, size: int) -> bool:
    """Whether no tap column of the tile falls outside the input."""
    return all(
        _column_valid(nest, start + i, q)
        for i in (0, size - 1)
        for q in range(nest.window.kernel[1])
    )


def _column_valid(nest: WindowNest, column: int, tap: int) -> bool:
    width = shape_of(nest.kernel.inputs[0])[3]
    return bool(0 <= nest.window.columns(column, tap) < width)


def _tile(
    nest: WindowNest, where: tuple[Any, Any, Any], start: Any, size: int, known: int | None
) -> Any:
    """One register tile of ``size`` pixels; ``known`` is its first column when taps may be out."""
    image, channel, row = where
    data, lanes, window = nest.kernel.inputs[0], nest.lanes, nest.window
    dtype = str(data.dtype)
    partials = PARTIALS if size == 1 and nest.merge and window.kernel[1] >= PARTIALS else 1
    acc = tir.Registers("acc", size * partials, lanes, dtype)
    lane = tir.lanes_from(0, lanes)

    def tap(p: Any, q: Any, static_q: int | None, part: int) -> list[Any]:
        steps = []
        for i in range(size):
            if not (known is None or static_q is None or _column_valid(nest, known + i, static_q)):
                continue
            y, x = window.rows(row, p), window.columns(start + i, q)
            value = tir.read(data, image, channel, y, x, lane)
            slot = i * partials + part
            steps.append(acc.write(slot, nest.combine(acc.read(slot), value, channel, p, q)))
        return steps

    def taps_of(p: Any) -> Any:
        return _taps(nest, p, tap, partials, known is not None)

    low, high = _row_bounds(nest, row)

    def all_taps(low: Any) -> Any:
        return tir.loop("p", high - low, lambda p: tir.named("tap_row", low + p, taps_of))

    body = tir.named("low", low, all_taps)
    merged = []
    if nest.merge:
        for i in range(size):
            for part in range(1, partials):
                total = nest.merge(acc.read(i * partials), acc.read(i * partials + part))
                merged.append(acc.write(i * partials, total))
    slots = [i * partials for i in range(size)]
    store = acc.store(slots, nest.kernel, [image, channel, row, start])
    return tir.seq(*acc.alloc(), *acc.fill(nest.initial), body, *merged, store)


def _taps(nest: WindowNest, p: Any, tap: Any, partials: int, edge: bool) -> Any:
    """All tap columns of tap row ``p``; a wide window's are looped over unless at an edge."""
    width = nest.window.kernel[1]
    if edge and not _inside_everywhere(nest):
        steps = [s for q in range(width) for s in tap(p, tir.i64(q), q, q % partials)]
        return tir.seq(*steps) if steps else None
    chunks, rest = divmod(width, UNROLL_TAPS)

    def chunk(first: Any, count: int) -> Any:
        return tir.seq(*(s for k in range(count) for s in tap(p, first + k, None, k % partials)))

    return tir.seq(
        tir.loop("q", chunks, lambda c: chunk(c * UNROLL_TAPS, UNROLL_TAPS)),
        chunk(tir.i64(chunks * UNROLL_TAPS), rest) if rest else None,
    )


def _inside_everywhere(nest: WindowNest) -> bool:
    """Whether no tap column of any tile falls outside the input."""
    columns = shape_of(nest.kernel.raw)[3]
    return _inside(nest, 0, columns)


def _row_bounds(nest: WindowNest, row: Any) -> tuple[Any, Any]:
    """First and one-past-last tap row inside the input, for output row ``row``."""
    from tvm import tirx

    window, height = nest.window, shape_of(nest.kernel.inputs[0])[2]
    rows = shape_of(nest.kernel.raw)[2]
    low: Any = 0
    high: Any = window.kernel[0]
    step = window.dilation[0]
    if window.padding[0] > 0:
        above = tir.i64(window.padding[0]) - row * window.strides[0]
        low = tirx.max(tir.i64(0), (above + (step - 1)) // step)
    if window.rows(rows - 1, window.kernel[0] - 1) >= height:
        below = tir.i64(height + window.padding[0] + step - 1) - row * window.strides[0]
        high = tirx.min(tir.i64(window.kernel[0]), below // step)
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    low = tir.i64(low) if isinstance(low, int) else low
    return low, high
