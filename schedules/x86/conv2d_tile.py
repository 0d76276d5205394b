"""Chooses register tiles and task sizes for convolutions: a small cost model in cycles.

The inner kernel holds ``tile x vectors`` accumulators; per reduction step it loads ``vectors``
weight vectors, broadcasts ``tile`` inputs, and issues ``tile * vectors`` FMAs. Per cycle a core
here starts two FMAs and two loads, and an FMA takes four cycles, so eight must be in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from uif_tvm.target.schedule import Conv2dProblem
from uif_tvm.target.spec import Machine

FMAS_PER_CYCLE = 2.0
LOADS_PER_CYCLE = 2.0
FMA_LATENCY = 4.0
#: Bytes per cycle from the second-level cache, and from beyond it.
L2_BYTES, FAR_BYTES = 32.0, 12.0
#: Cycles to store one accumulator, with its share of the epilogue.
STORE_CYCLES = 2.0
#: Bytes per cycle of a copy into a task's padded workspace.
COPY_BYTES = 16.0
#: Cycles to open and close a parallel region.
LAUNCH_CYCLES = 12_000.0
MAX_VECTORS = 4


@dataclass(frozen=True)
class Tiles:
    """``count`` tiles cover a row: the first ``wide`` have ``size`` pixels, the rest one less."""

    size: int
    count: int
    wide: int

    def sizes(self) -> list[int]:
        """All tile widths in order."""
        return [self.size] * self.wide + [self.size - 1] * (self.count - self.wide)

    def start(self, index: Any) -> Any:
        """First pixel of tile ``index``, an expression when ``index`` is one."""
        from tvm import tirx

        if self.wide == self.count:
            return index * self.size
        if isinstance(index, int):
            return index * self.size - max(0, index - self.wide)
        late = tirx.max(index - self.wide, tirx.IntImm("int64", 0))
        return index * self.size - late

    @staticmethod
    def split(length: int, at_most: int) -> Tiles:
        """The fewest tiles of at most ``at_most`` pixels, as equal as can be."""
        count = -(-length // at_most)
        size = -(-length // count)
        return Tiles(size, count, length - count * (size - 1))


@dataclass(frozen=True)
class Tiling:
    """How an output plane is cut into register tiles.

    Args:
        flat: rows follow each other without a gap, so the plane is one long row of pixels.
        units: what is shared out: groups of rows, or tiles of the flat plane.
        columns: tiles of one row; one tile as wide as the row when a unit has several rows, and
            when flat.
    """

    flat: bool
    units: Tiles
    columns: Tiles


@dataclass(frozen=True)
class ConvTask:
    """How one convolution is cut: ``units`` x ``blocks`` weight blocks per parallel task."""

    units: int
    blocks: int
    parallel: bool
    cycles: float


def widest_tile(vectors: int, machine: Machine) -> int:
    """Pixels per tile: accumulators, the weight vectors and one broadcast fill the registers."""
    return (machine.vector_registers - 1 - vectors) // vectors


def plan_tiling(plane: tuple[int, int], flat: bool, vectors: int, machine: Machine) -> Tiling:
    """Tiles as large as registers allow; narrow planes take several rows per tile."""
    rows, columns = plane
    widest = widest_tile(vectors, machine)
    if flat:
        return Tiling(True, Tiles.split(rows * columns, widest), Tiles(1, 1, 1))
    return Tiling(False, Tiles.split(rows, max(1, widest // columns)), Tiles.split(columns, widest))


def step_cycles(tile: int, vectors: int, vector_bytes: int) -> float:
    """Cycles of one reduction step of one tile."""
    return max(
        tile * vectors / FMAS_PER_CYCLE,
        (tile + vectors) / LOADS_PER_CYCLE,
        FMA_LATENCY,
        vectors * vector_bytes / L2_BYTES,
    )


@lru_cache(maxsize=4096)
def plane_cycles(tiling: Tiling, vectors: int, steps: int, vector_bytes: int) -> float:
    """Cycles for the whole plane x ``vectors`` output vectors x ``steps`` reduction steps."""
    total = 0.0
    for unit in tiling.units.sizes():
        for column in tiling.columns.sizes():
            tile = unit * column
            total += step_cycles(tile, vectors, vector_bytes) * steps
            total += tile * vectors * STORE_CYCLES
    return total


def flattens(problem: Conv2dProblem) -> bool:
    """Whether rows follow each other without a gap, so that the plane is one long row."""
    return problem.kernel == (1, 1) and problem.strides == (1, 1) and not any(problem.padding)


def best_vectors(problem: Conv2dProblem, machine: Machine) -> int:
    """Output vectors per weight block that make the whole convolution cheapest."""
    lanes = machine.lanes(problem.dtype)
    per_group = -(-(problem.out_channels // problem.groups) // lanes)
    plane = problem.out_height, problem.out_width
    steps = problem.in_channels // problem.groups * problem.kernel[0] * problem.kernel[1]

    def cycles(vectors: int, pieces: int) -> float:
        if pieces == 0:
            return 0.0
        tiling = plan_tiling(plane, flattens(problem), vectors, machine)
        return plane_cycles(tiling, pieces, steps, machine.vector_bytes)

    def cost(vectors: int) -> tuple[float, int]:
        full, tail = divmod(per_group, vectors)
        return full * cycles(vectors, vectors) + cycles(vectors, tail), vectors

    allowed = [
        vectors
        for vectors in range(1, MAX_VECTORS + 1)
        if vectors <= per_group and (problem.groups == 1 or per_group % vectors == 0)
    ]
    return min(allowed, key=cost)


@dataclass(frozen=True)
class Grid:
    """What there is to share out: ``batch x groups x units x blocks`` pieces of equal work.

    Args:
        units: groups of output rows, or tiles of a flattened plane.
        blocks: weight blocks of one group.
        piece_cycles: cycles of one unit x one block.
        block_bytes: bytes of one weight block.
        unit_rows, reach: input rows from one unit to the next, and under one output row.
        row_bytes: bytes of one padded input row that a task copies; 0 when it copies none.
    """

    batch: int
    groups: int
    units: int
    blocks: int
    piece_cycles: float
    block_bytes: int
    unit_rows: int = 1
    reach: int = 1
    row_bytes: int = 0


def choose_task(grid: Grid, machine: Machine) -> ConvTask:
    """Cut units and weight blocks into tasks that balance the cores and fit their caches."""

    def candidate(units: int, blocks: int) -> ConvTask:
        bands, chunks = -(-grid.units // units), -(-grid.blocks // blocks)
        tasks = grid.batch * grid.groups * bands * chunks
        copied = ((units - 1) * grid.unit_rows + grid.reach) * grid.row_bytes
        weights = blocks * grid.block_bytes
        cycles = units * blocks * grid.piece_cycles + copied / COPY_BYTES
        # Weights that do not stay in L2 from one task to the next come from afar again.
        if weights > machine.l2_bytes // 2:
            cycles += weights / FAR_BYTES
        if copied > machine.l2_bytes // 2:
            cycles += copied * blocks / FAR_BYTES
        serial = tasks * cycles
        spread = -(-tasks // machine.cores) * cycles + LAUNCH_CYCLES
        return ConvTask(units, blocks, spread < serial, min(serial, spread))

    options = [candidate(u, b) for u in _cuts(grid.units) for b in _cuts(grid.blocks)]
    return min(options, key=lambda task: (task.cycles, -task.units * task.blocks))


def _cuts(length: int) -> list[int]:
    """Part sizes worth trying for ``length`` items: whole, halves, thirds, ... single ones."""
    return sorted({-(-length // parts) for parts in range(1, length + 1)})
