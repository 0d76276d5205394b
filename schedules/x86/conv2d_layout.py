"""Layout changes between plain and blocked activations: square tiles transposed in registers.

A tile is ``lanes`` channels x ``lanes`` pixels. Plain memory holds it as one vector of pixels per
channel, blocked memory as one vector of channels per pixel; a butterfly of two-input shuffles
turns one into the other. Pixels past the last whole tile go one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import read_fused, shape_of
from uif_tvm.schedules.x86.conv2d_tile import LAUNCH_CYCLES

from uif_tvm.kernels.layout import BLOCK, UNBLOCK
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from uif_tvm.target.spec import TargetSpec

#: Cycles per vector moved: a load, a store and its share of the shuffles.
VECTOR_CYCLES = 4.0
#: Pixel tiles per task, so that a few channel blocks still spread over the cores.
TASK_TILES = 32


@dataclass(frozen=True)
class _Change:
    """One layout change; ``plain`` is ``[N, C, H, W]`` or ``[N, C, W]``."""

    plain: Any
    blocked: Any
    to_blocked: bool
    lanes: int

    @property
    def channels(self) -> int:
        channels: int = shape_of(self.plain)[1]
        return channels

    @property
    def pixels(self) -> int:
        count: int = shape_of(self.blocked)[2] * shape_of(self.blocked)[3]
        return count

    def plain_at(self, image: Any, channel: Any, pixel: Any) -> list[Any]:
        """Indices of a pixel counted along the whole plane."""
        middle = [tir.i64(0)] if len(self.plain.shape) == 4 else []
        return [image, channel, *middle, pixel]

    def blocked_at(self, image: Any, block: Any, pixel: Any) -> list[Any]:
        """Indices of the channel vector of a pixel counted along the whole plane."""
        return [image, block, tir.i64(0), pixel, tir.lanes_from(0, self.lanes)]


class LayoutChange:
    """Hand-written rule for the ``layout_block`` and ``layout_unblock`` families."""

    name = "layout"
    version = 2
    kind = "hand-written"

    def apply(self, func: PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """See the module text."""
        kernel = read_fused(func, (BLOCK, UNBLOCK))
        if isinstance(kernel, Refusal):
            return kernel
        to_blocked = kernel.family == BLOCK
        source, result = kernel.inputs[0], kernel.result
        plain, blocked = (source, result) if to_blocked else (result, source)
        dtype, lanes = str(plain.dtype), shape_of(blocked)[4]
        if kernel.chain or dtype != "float32" or target.machine.lanes(dtype) != lanes:
            return Refusal(
                "layout", f"{dtype}, blocks of {lanes}, {len(kernel.chain)} fused blocks"
            )
        change = _Change(plain, blocked, to_blocked, lanes)
        images, count = shape_of(blocked)[:2]
        cycles = images * count * change.pixels * VECTOR_CYCLES
        parallel = target.machine.cores > 1 and cycles > LAUNCH_CYCLES * 1.5
        detail = f"{lanes}x{lanes} transposes, {'parallel' if parallel else 'serial'}"
        return Scheduled(tir.finish(func, _emit(change, parallel)), detail)


def _emit(change: _Change, parallel: bool) -> Any:
    images, count = shape_of(change.blocked)[:2]
    lanes = change.lanes
    tiles, rest = divmod(change.pixels, lanes)
    chunks = max(1, -(-tiles // TASK_TILES))

    def task(index: Any) -> Any:
        chunk, block = index % chunks, index // chunks % count
        image = index // (chunks * count)
        first = chunk * TASK_TILES
        return _by_channels(
            change, block, lambda rows: _pixels(change, image, block, rows, first, chunks)
        )

    total = images * count * chunks if tiles else 0
    body = tir.loop("task", total, task, "PARALLEL" if parallel else "SERIAL")
    if not rest:
        return body

    def tail(index: Any) -> Any:
        block, image = index % count, index // count
        return _by_channels(
            change,
            block,
            lambda rows: tir.loop(
                "pixel",
                rest,
                lambda p: _pixel(change, image, block, rows, p + tiles * lanes),
            ),
        )

    return tir.seq(body, tir.loop("tail", images * count, tail))


def _by_channels(change: _Change, block: Any, body: Callable[[int], Any]) -> Any:
    """``body(real channels of the block)``, told apart for a partial last block."""
    full, partial = divmod(change.channels, change.lanes)
    if not partial:
        return body(change.lanes)
    if not full:
        return body(partial)
    return tir.branch(block < full, body(change.lanes), body(partial))


def _pixels(change: _Change, image: Any, block: Any, rows: int, first: Any, chunks: int) -> Any:
    """The whole tiles of one task."""
    from tvm import tirx

    tiles = change.pixels // change.lanes
    count: Any = tiles
    if chunks > 1:
        count = tirx.min(tir.i64(TASK_TILES), tir.i64(tiles) - first)
    start = first if chunks > 1 else tir.i64(0)
    return tir.loop(
        "tile", count, lambda t: _tile(change, image, block, rows, (start + t) * change.lanes)
    )


def _tile(change: _Change, image: Any, block: Any, rows: int, pixel: Any) -> Any:
    """One square tile through registers."""
    from tvm import tirx

    lanes, dtype = change.lanes, str(change.plain.dtype)
    zero = tir.splat(tirx.const(0, dtype), lanes)

    def plain(row: int) -> list[Any]:
        at = change.plain_at(image, block * lanes + row, pixel)
        return [*at[:-1], tir.lanes_from(at[-1], lanes)]

    def blocked(i: int) -> list[Any]:
        return change.blocked_at(image, block, pixel + i)

    if change.to_blocked:
        vectors = [tir.read(change.plain, *plain(r)) if r < rows else zero for r in range(lanes)]
        targets = [(change.blocked, blocked(i)) for i in range(lanes)]
    else:
        vectors = [tir.read(change.blocked, *blocked(i)) for i in range(lanes)]
        targets = [(change.plain, plain(r)) for r in range(rows)]
    tile = tir.Registers("tile", lanes, lanes, dtype)
    steps = [tile.write(slot, vector) for slot, vector in enumerate(vectors)]
    steps += _transpose(tile, lanes, dtype)
    steps += [tir.write(buffer, tile.read(k), *at) for k, (buffer, at) in enumerate(targets)]
    return tir.seq(*tile.alloc(), *steps)


def _transpose(tile: tir.Registers, lanes: int, dtype: str) -> list[Any]:
    """Exchange rows and lanes: per power of two ``d``, swap the off-diagonal ``d x d`` squares."""
    from tvm import tirx

    steps = [*(spare := tir.Registers("spare", 1, lanes, dtype)).alloc()]
    distance = 1
    while distance < lanes:
        keep = [k if not k & distance else lanes + k - distance for k in range(lanes)]
        swap = [k + distance if not k & distance else lanes + k for k in range(lanes)]
        for low in (k for k in range(lanes) if not k & distance):
            high = low + distance
            pair = [tile.read(low), tile.read(high)]
            steps.append(spare.write(0, tirx.Shuffle(pair, keep)))
            steps.append(tile.write(high, tirx.Shuffle(pair, swap)))
            steps.append(tile.write(low, spare.read(0)))
        distance *= 2
    return steps


def _pixel(change: _Change, image: Any, block: Any, rows: int, pixel: Any) -> Any:
    """One pixel of all channels of a block, lane by lane."""
    from tvm import tirx

    at = change.blocked_at(image, block, pixel)[:-1]
    steps = []
    for lane in range(change.lanes if change.to_blocked else rows):
        plain = change.plain_at(image, block * change.lanes + lane, pixel)
        if not change.to_blocked:
            steps.append(tir.write(change.plain, tir.read(change.blocked, *at, lane), *plain))
            continue
        zero = tirx.const(0, str(change.plain.dtype))
        value = tir.read(change.plain, *plain) if lane < rows else zero
        steps.append(tir.write(change.blocked, value, *at, lane))
    return tir.seq(*steps)
