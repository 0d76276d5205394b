"""Winograd convolution over blocked layouts, fused per run of tiles.

Per parallel task (a run of tiles x some weight blocks):

1. transform the input tiles of all channels, ``B^T d B``, into a workspace
   ``[n*n, C/cb, tiles, cb]``; tiles that leave the input go through a zero-filled patch;
2. per weight block: for each of the ``n*n`` products a small matmul over channels with ``tiles x
   vectors`` accumulators in registers, into a workspace ``[n*n, vectors, tiles, lanes]``;
3. transform those back, ``A^T m A``, and write the results through the fused epilogue.

The workspaces are cut to stay in the second-level cache between the steps, so that only inputs,
weights and results travel further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import read_fused, shape_of
from uif_tvm.schedules.x86.winograd_nest import WinogradNest, plan_nest
from uif_tvm.schedules.x86.winograd_transform import both_sides, input_rows, output_rows

from uif_tvm.kernels.winograd import STAGE, WINOGRAD
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

#: Reduction steps that the innermost loop body holds: more only costs compile time.
UNROLL = 4
#: Reduction steps between a weight's prefetch and its use: a memory access takes about that long.
PREFETCH_STEPS = 32


class Winograd:
    """Hand-written rule for the ``winograd`` family."""

    name = "winograd"
    version = 2
    kind = "hand-written"

    def plan(self, func: PrimFunc, target: TargetSpec) -> WinogradNest | Refusal:
        """The loop nest to emit, or why there is none for ``func``."""
        kernel = read_fused(func, (WINOGRAD,), STAGE)
        return kernel if isinstance(kernel, Refusal) else plan_nest(kernel, target.machine)

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        nest = self.plan(func, target)
        if isinstance(nest, Refusal):
            return nest
        return Scheduled(tir.finish(func, emit(nest)), nest.detail)


def emit(nest: WinogradNest) -> Any:
    """The whole loop nest."""
    bands = -(-nest.cut.tiles.count // nest.cut.units)
    chunks = -(-nest.weight_blocks // nest.cut.blocks)

    def task(index: Any) -> Any:
        first_unit = index // chunks * nest.cut.units
        first_block = index % chunks * nest.cut.blocks

        def at_unit(unit: Any) -> Any:
            return tir.named("first_block", first_block, lambda block: _task(nest, unit, block))

        return tir.named("first_unit", first_unit, at_unit)

    kind = "PARALLEL" if nest.cut.parallel else "SERIAL"
    return tir.loop("task", bands * chunks, task, kind)


@dataclass(frozen=True)
class _Run:
    """A task's tiles and workspaces.

    Args:
        unit, first: its first register tile, and that one's first tile.
        units, tiles: how many of either it has.
        inputs: transformed inputs ``[n*n, C/cb, tiles, cb]``.
        products: ``[n*n, vectors, tiles, lanes]``.
    """

    nest: WinogradNest
    unit: Any
    first: Any
    units: Any
    tiles: Any
    inputs: Any
    products: Any


def _task(nest: WinogradNest, first_unit: Any, first_block: Any) -> Any:
    """One run of tiles x one chunk of weight blocks."""
    products, lanes, capacity = nest.shape.products, nest.lanes, nest.task_tiles
    inputs = tir.workspace("inputs", (products, nest.in_blocks, capacity, lanes), "float32")
    made = tir.workspace("products", (products, nest.cut.vectors, capacity, lanes), "float32")
    units = _part(nest.cut.tiles.count, nest.cut.units, first_unit)
    first = nest.cut.tiles.start(first_unit)
    past = nest.cut.tiles.start(first_unit + units)

    def work(first: Any, tiles: Any) -> Any:
        run = _Run(nest, first_unit, first, units, tiles, inputs, made)
        blocks = _part(nest.weight_blocks, nest.cut.blocks, first_block)
        return tir.seq(
            tir.loop("c", nest.in_blocks, lambda c: _transform_inputs(run, c)),
            tir.loop("block", blocks, lambda step: _block(run, first_block + step)),
        )

    body = tir.named(
        "first",
        first,
        lambda f: tir.named("tiles", past - first, lambda count: work(f, count)),
    )
    return tir.seq(tir.alloc(inputs), tir.alloc(made), body)


def _part(total: int, size: int, first: Any) -> Any:
    """Items in the part that starts at ``first``: ``size``, fewer in a last, partial one."""
    from tvm import tirx

    if total % size == 0:
        return tir.i64(size)
    return tirx.min(tir.i64(size), tir.i64(total) - first)


def _tile_origin(run: _Run, tile: Any, body: Callable[..., Any]) -> Any:
    """``body(image, row, column)`` with the first result of tile ``tile`` of the run."""
    m = run.nest.shape.tile
    _, _, rows, columns, _ = shape_of(run.nest.kernel.raw)
    down, across = -(-rows // m), -(-columns // m)
    index = run.first + tile

    def at_image(image: Any) -> Any:
        return tir.named("row", index // across % down * m, lambda row: at_row(image, row))

    def at_row(image: Any, row: Any) -> Any:
        return tir.named("column", index % across * m, lambda column: body(image, row, column))

    return tir.named("image", index // (down * across), at_image)


def _transform_inputs(run: _Run, block: Any) -> Any:
    """``B^T d B`` of one input block of all the run's tiles."""

    def transform(tile: Any) -> Any:
        return _tile_origin(run, tile, lambda *at: _input_tile(run, block, tile, at))

    return tir.loop("tile", run.tiles, transform)


def _input_tile(run: _Run, block: Any, tile: Any, origin: tuple[Any, Any, Any]) -> Any:
    from tvm import tirx

    nest, (image, row, column) = run.nest, origin
    size, lanes, (top, left, _, _) = nest.found.size, nest.lanes, nest.window.padding
    height, width = shape_of(nest.data)[2:4]
    lane = tir.lanes_from(0, lanes)
    y, x = row - top, column - left

    def store(i: int, j: int, value: Any) -> Any:
        return tir.write(run.inputs, value, i * size + j, block, tile, lane)

    def transformed(element: Any) -> Any:
        return both_sides(input_rows, nest.found, element, store, lanes)

    inner = transformed(lambda p, q: tir.read(nest.data, image, block, y + p, x + q, lane))
    rows, columns = shape_of(nest.kernel.raw)[2:4]
    checks = [
        *([y >= 0] if top > 0 else []),
        *([x >= 0] if left > 0 else []),
        *([y + size <= height] if _last(rows, nest) - top > height else []),
        *([x + size <= width] if _last(columns, nest) - left > width else []),
    ]
    if not checks:
        return inner
    patch = tir.workspace("patch", (size, size, lanes), "float32", "local")
    zero = tir.splat(tirx.const(0, "float32"), lanes)

    def fetch(p: Any, q: Any) -> Any:
        inside = tirx.all(y + p >= 0, y + p < height, x + q >= 0, x + q < width)
        value = tir.read(nest.data, image, block, y + p, x + q, lane)
        return tir.branch(
            inside, tir.write(patch, value, p, q, lane), tir.write(patch, zero, p, q, lane)
        )

    edge = tir.seq(
        tir.alloc(patch),
        tir.loop("p", size, lambda p: tir.loop("q", size, lambda q: fetch(p, q))),
        transformed(lambda p, q: tir.read(patch, p, q, lane)),
    )
    return tir.branch(tirx.all(*checks), inner, edge)


def _last(extent: int, nest: WinogradNest) -> int:
    """One past the last input, padding included, that tiles along an axis read."""
    m = nest.shape.tile
    return (-(-extent // m) - 1) * m + nest.found.size


def _block(run: _Run, block: Any) -> Any:
    """All products of one weight block, then their results."""
    nest = run.nest
    full, tail = divmod(nest.shape.out_blocks, nest.cut.vectors)

    def of(vectors: int) -> Any:
        return tir.seq(
            tir.loop("product", nest.shape.products, lambda p: _multiply(run, block, p, vectors)),
            tir.loop("v", vectors, lambda v: _transform_outputs(run, block, v)),
        )

    if tail == 0:
        return of(nest.cut.vectors)
    return of(tail) if full == 0 else tir.branch(block < full, of(nest.cut.vectors), of(tail))


def _multiply(run: _Run, block: Any, product: Any, vectors: int) -> Any:
    """One product of all the run's tiles, a register tile at a time."""
    units = run.nest.cut.tiles

    def unit(step: Any) -> Any:
        index = run.unit + step
        start = units.start(index) - run.first

        def tile(size: int) -> Any:
            return tir.named(
                "start", start, lambda at: _register_tile(run, block, product, vectors, at, size)
            )

        if units.wide == units.count:
            return tile(units.size)
        return tir.branch(index < units.wide, tile(units.size), tile(units.size - 1))

    return tir.loop("unit", run.units, unit)


def _register_tile(run: _Run, block: Any, product: Any, vectors: int, start: Any, size: int) -> Any:
    """``size`` tiles x ``vectors``: clear, accumulate over channels, write."""
    nest, lanes = run.nest, run.nest.lanes
    acc = tir.Registers("acc", size * vectors, lanes, "float32")
    whole = tir.lanes_from(0, lanes)

    def weight(channel_block: Any, lane: Any, at: Any) -> Any:
        return tir.read(nest.weight, block, product, channel_block, lane, at)

    def step(channel_block: Any, lane: Any) -> list[Any]:
        out = []
        if nest.far_weights:
            ahead = lane + PREFETCH_STEPS
            out += [tir.prefetch(weight(channel_block, ahead, v * lanes)) for v in range(vectors)]
        for t in range(size):
            value = tir.splat(tir.read(run.inputs, product, channel_block, start + t, lane), lanes)
            for v in range(vectors):
                factor = weight(channel_block, lane, tir.lanes_from(v * lanes, lanes))
                slot = t * vectors + v
                out.append(acc.write(slot, acc.read(slot) + value * factor))
        return out

    def channels(channel_block: Any, count: int) -> Any:
        chunks, rest = divmod(count, UNROLL)
        return tir.seq(
            tir.loop(
                "lane",
                chunks,
                lambda c: tir.seq(
                    *(s for k in range(UNROLL) for s in step(channel_block, c * UNROLL + k))
                ),
            ),
            *(s for k in range(rest) for s in step(channel_block, tir.i64(chunks * UNROLL + k))),
        )

    full, rest = divmod(nest.shape.in_channels, lanes)
    store = [
        tir.write(run.products, acc.read(t * vectors + v), product, v, start + t, whole)
        for v in range(vectors)
        for t in range(size)
    ]
    return tir.seq(
        *acc.alloc(),
        *acc.fill(0.0),
        tir.loop("c", full, lambda c: channels(c, lanes)),
        channels(tir.i64(full), rest) if rest else None,
        *store,
    )


def _transform_outputs(run: _Run, block: Any, v: Any) -> Any:
    """``A^T m A`` of one output vector of all the run's tiles, through the epilogue."""

    def transform(tile: Any) -> Any:
        return _tile_origin(run, tile, lambda *at: _output_tile(run, block, v, tile, at))

    return tir.loop("tile", run.tiles, transform)


def _output_tile(run: _Run, block: Any, v: Any, tile: Any, origin: tuple[Any, Any, Any]) -> Any:
    from tvm import tirx

    nest, lanes, m, size = run.nest, run.nest.lanes, run.nest.shape.tile, run.nest.found.size
    image, row, column = origin
    whole = tir.lanes_from(0, lanes)
    staged = tir.workspace("staged", (m, m, lanes), "float32", "local")
    made = both_sides(
        output_rows,
        nest.found,
        lambda i, j: tir.read(run.products, i * size + j, v, tile, whole),
        lambda k, j, value: tir.write(staged, value, k, j, whole),
        lanes,
    )
    rows, columns = shape_of(nest.kernel.raw)[2:4]

    def left(extent: int, first: Any) -> Any:
        return m if extent % m == 0 else tirx.min(tir.i64(m), tir.i64(extent) - first)

    def result(k: Any, j: Any) -> Any:
        at = [image, block * nest.cut.vectors + v, row + k, column + j]
        return tir.finished(nest.kernel, at, lambda lane: tir.read(staged, k, j, lane), lanes)

    stores = tir.loop(
        "k",
        left(rows, row),
        lambda k: tir.loop("j", left(columns, column), lambda j: result(k, j)),
    )
    return tir.seq(tir.alloc(staged), made, stores)
