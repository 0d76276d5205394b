"""The geometry of one Winograd kernel, what it costs, and how it is cut for a machine.

Tiles of results, numbered over images, rows and columns, are shared out in *tasks*: a run of
tiles x some weight blocks. A task transforms its inputs once, then per weight block multiplies
and transforms back; what it holds between the steps should stay in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, shape_of
from uif_tvm.schedules.x86.conv2d_tile import (
    FAR_BYTES,
    LAUNCH_CYCLES,
    Tiles,
    step_cycles,
    widest_tile,
)

from uif_tvm.kernels.layout import Window
from uif_tvm.kernels.winograd import CHANNELS_ATTR, TILE_ATTR, Transform, transform
from uif_tvm.target.schedule import Conv2dProblem
from uif_tvm.target.spec import Refusal, dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.target.spec import Machine

#: Output vectors per weight block that are tried.
MAX_VECTORS = 4
#: Cycles per vector of inputs or products that a transform reads, arithmetic and stores included.
TRANSFORM_CYCLES = 3.5


@dataclass(frozen=True)
class WinogradShape:
    """What a Winograd convolution is, apart from its operands.

    Args:
        tile: rows (and columns) of a tile of results.
        tiles: tiles of the result, over all images.
        in_channels: real input channels.
        out_blocks: output vectors of the result.
        dtype: element type.
    """

    tile: int
    tiles: int
    in_channels: int
    out_blocks: int
    dtype: str

    @property
    def products(self) -> int:
        """Products per tile and channel pair."""
        return transform(self.tile).size ** 2

    @staticmethod
    def of(problem: Conv2dProblem, tile: int, machine: Machine) -> WinogradShape:
        """``problem`` through F(tile x tile, 3 x 3)."""
        return WinogradShape(
            tile,
            problem.batch * -(-problem.out_height // tile) * -(-problem.out_width // tile),
            problem.in_channels,
            -(-problem.out_channels // machine.lanes(problem.dtype)),
            problem.dtype,
        )


@dataclass(frozen=True)
class WinogradCut:
    """How one convolution is cut, and what it costs.

    Args:
        vectors: output vectors per weight block.
        tiles: tiles per register tile.
        units, blocks: register tiles and weight blocks per task.
        parallel: tasks are shared out among the cores.
        cycles: estimated cycles of the longest-running core.
    """

    vectors: int
    tiles: Tiles
    units: int
    blocks: int
    parallel: bool
    cycles: float


@dataclass(frozen=True)
class WinogradNest:
    """The geometry of one kernel, and how it is cut.

    Args:
        kernel: the fused function being scheduled.
        window: padding.
        shape: see :class:`WinogradShape`.
        cut: see :class:`WinogradCut`.
        lanes: elements of one vector, and channels per input and output block.
        far_weights: the weights do not stay in the second-level cache, so fetch them early.
    """

    kernel: FusedKernel
    window: Window
    shape: WinogradShape
    cut: WinogradCut
    lanes: int
    far_weights: bool

    @property
    def found(self) -> Transform:
        """The transform."""
        return transform(self.shape.tile)

    @property
    def data(self) -> Any:
        """Input buffer."""
        return self.kernel.inputs[0]

    @property
    def weight(self) -> Any:
        """Weight buffer."""
        return self.kernel.inputs[1]

    @property
    def in_blocks(self) -> int:
        """Input blocks, the last one possibly partial."""
        return -(-self.shape.in_channels // self.lanes)

    @property
    def weight_blocks(self) -> int:
        """Weight blocks, the last one possibly partial."""
        return -(-self.shape.out_blocks // self.cut.vectors)

    @property
    def task_tiles(self) -> int:
        """Most tiles that a task has."""
        return min(self.shape.tiles, self.cut.units * self.cut.tiles.size)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that a task holds: transformed inputs, and products of one weight block."""
        vectors = self.shape.products * self.task_tiles * (self.in_blocks + self.cut.vectors)
        return vectors * self.lanes * dtype_bytes(self.shape.dtype)

    @property
    def detail(self) -> str:
        """Short description for reports."""
        m, cut = self.shape.tile, self.cut
        return (
            f"F({m}x{m}, 3x3), register tile {cut.tiles.size}x{cut.vectors * self.lanes}, task "
            f"{self.task_tiles} tiles x {cut.blocks} weight blocks, "
            f"{'parallel' if cut.parallel else 'serial'}, "
            f"workspace {self.workspace_bytes >> 10} KiB"
        )


def plan_nest(kernel: FusedKernel, machine: Machine) -> WinogradNest | Refusal:
    """Read the geometry off the anchor's annotations and cut it for ``machine``."""
    data, weight, out = kernel.inputs[0], kernel.inputs[1], shape_of(kernel.raw)
    dtype = str(data.dtype)
    if dtype != "float32" or any(str(b.dtype) != dtype for b in (weight, kernel.raw)):
        return Refusal("dtype", f"float32 throughout is needed, the input is {dtype}")
    lanes, weight_shape = machine.lanes(dtype), shape_of(weight)
    if out[4] != lanes or shape_of(data)[4] != lanes or weight_shape[4] % lanes:
        return Refusal(
            "layout",
            f"blocks of {shape_of(data)[4]}, {out[4]} and {weight_shape[4]} against {lanes} lanes",
        )
    annotations = kernel.anchor.annotations
    tile = int(annotations[TILE_ATTR])
    in_channels, out_channels = (int(v) for v in annotations[CHANNELS_ATTR])
    tiles = out[0] * -(-out[2] // tile) * -(-out[3] // tile)
    shape = WinogradShape(tile, tiles, in_channels, -(-out_channels // lanes), dtype)
    weights = shape.products * in_channels * shape.out_blocks * machine.vector_bytes
    return WinogradNest(
        kernel=kernel,
        window=Window.from_attrs(annotations),
        shape=shape,
        cut=cut_tasks(shape, weight_shape[4] // lanes, machine),
        lanes=lanes,
        far_weights=weights > machine.l2_bytes // 2,
    )


def plan_cut(shape: WinogradShape, machine: Machine) -> WinogradCut:
    """The cheapest weight blocks and tasks.

    Weight blocks of equal width only: all of them run at the speed of the first.
    """
    widths = [v for v in range(1, MAX_VECTORS + 1) if shape.out_blocks % v == 0]
    cuts = [cut_tasks(shape, vectors, machine) for vectors in widths]
    return min(cuts, key=lambda cut: (cut.cycles, cut.vectors))


def cut_tasks(shape: WinogradShape, vectors: int, machine: Machine) -> WinogradCut:
    """Cut tiles and weight blocks into tasks that balance the cores and fit their caches."""
    tiles = Tiles.split(shape.tiles, widest_tile(vectors, machine))
    blocks = -(-shape.out_blocks // vectors)
    vector_bytes = machine.vector_bytes
    in_blocks = -(-shape.in_channels // machine.lanes(shape.dtype))
    piece = step_cycles(tiles.size, vectors, vector_bytes) * shape.products * shape.in_channels
    block_bytes = shape.products * shape.in_channels * vectors * vector_bytes

    def held(units: int) -> tuple[int, int]:
        """Bytes of a task's transformed inputs, and of its products of one weight block."""
        column = shape.products * min(shape.tiles, units * tiles.size) * vector_bytes
        return column * in_blocks, column * vectors

    def candidate(units: int, chunk: int) -> WinogradCut:
        tasks = -(-tiles.count // units) * -(-blocks // chunk)
        column = shape.products * min(shape.tiles, units * tiles.size)
        inputs, products = held(units)
        cycles = units * chunk * piece + column * (in_blocks + chunk * vectors) * TRANSFORM_CYCLES
        # Weights come from afar once per task unless all stay in L2 beside what a task holds;
        # transformed inputs that do not fit come again for every weight block.
        if block_bytes * blocks + inputs + products > machine.l2_bytes:
            cycles += chunk * block_bytes / FAR_BYTES
        if inputs + products > machine.l2_bytes * 3 // 4:
            cycles += inputs * chunk / FAR_BYTES
        serial = tasks * cycles
        spread = -(-tasks // machine.cores) * cycles + LAUNCH_CYCLES
        parallel = spread < serial
        return WinogradCut(vectors, tiles, units, chunk, parallel, min(serial, spread))

    # Larger tasks would read weights less often, but each core's workspace counts in the memory of
    # every run; they were measured to be no faster.
    small = [u for u in _cuts(tiles.count) if sum(held(u)) <= machine.l2_bytes] or [1]
    options = [candidate(u, b) for u in small for b in _cuts(blocks)]
    return min(options, key=lambda cut: (cut.cycles, -cut.units * cut.blocks))


def _cuts(length: int) -> list[int]:
    """Part sizes worth trying for ``length`` items: whole, halves, thirds, ... single ones."""
    return sorted({-(-length // parts) for parts in range(1, length + 1)})
