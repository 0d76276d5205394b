"""Which register tile a matmul gets: a small cost model over remainders and the machine.

A tile of ``mb`` rows and ``nv`` vectors keeps ``mb * nv`` accumulators in registers, beside ``nv``
vectors of the right-hand side and one broadcast element. Each step along K costs the largest of

- the fused multiply-adds: two a cycle;
- the loads: ``nv`` vectors and ``mb`` broadcasts, two a cycle;
- the latency of one multiply-add (4 cycles), when there are too few accumulators to hide it;
- the traffic of the right-hand panel from L2, about half a vector a cycle, when it exceeds L1.

The plan is the tile with the least cost over all tiles of the problem, remainders included.
"""

from __future__ import annotations

from uif_tvm.target.schedule import MatmulPlan, MatmulProblem
from uif_tvm.target.spec import Machine, Refusal

#: Element types whose products LLVM keeps in vector registers from end to end.
DTYPES = ("float32", "float64")

_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 2.0
_FMA_LATENCY = 4.0
_L2_CYCLES_PER_VECTOR = 2.0
_TILE_START_CYCLES = 24.0
_MAX_VECTORS = 8
#: Rows assumed when their number is only known at run time.
_UNKNOWN_ROWS = 128
#: Each row needs an address register once the last tile is short (rows are clamped, not a fixed
#: distance apart), and the machine has about a dozen to spare.
_MAX_ROWS, _MAX_CLAMPED_ROWS = 16, 10


def plan_matmul(problem: MatmulProblem, machine: Machine) -> MatmulPlan | Refusal:
    """Packed layout and register tile for one constant right-hand side.

    ``problem.m`` is 0 when the number of rows is only known at run time.
    """
    if problem.dtype not in DTYPES:
        return Refusal("dtype", f"no packed kernel for {problem.dtype}")
    if problem.n <= 0 or problem.k <= 0:
        return Refusal("empty", f"K={problem.k}, N={problem.n}: nothing to multiply")
    step = 2 if problem.paired else 1
    mb, nb = register_tile(problem.m, problem.n, problem.k, problem.dtype, machine, step)
    return MatmulPlan(n_block=nb, m_block=mb)


def register_tile(
    m: int, n: int, k: int, dtype: str, machine: Machine, step: int = 1
) -> tuple[int, int]:
    """Rows and columns of the cheapest register tile for ``[m, k] x [k, n]`` (0: unknown m).

    Columns are a multiple of ``step`` vectors.
    """
    clamped = m <= 0
    m = m if m > 0 else _UNKNOWN_ROWS
    lanes = machine.lanes(dtype)
    most = max(step, min(_MAX_VECTORS, -(-n // lanes)))
    best: tuple[float, tuple[int, int]] | None = None
    for vectors in range(step, most + 1, step):
        for rows in range(1, min(m, _MAX_ROWS) + 1):
            if rows * vectors + vectors + 1 > machine.vector_registers:
                break
            if rows > _MAX_CLAMPED_ROWS and (clamped or m % rows):
                continue
            cost = _cost(m, n, k, rows, vectors, dtype, machine)
            if best is None or cost < best[0]:
                best = (cost, (rows, vectors * lanes))
    return best[1] if best else (1, step * lanes)


def _cost(m: int, n: int, k: int, rows: int, vectors: int, dtype: str, machine: Machine) -> float:
    """Cycles for all tiles of the problem on one core."""
    tiles = -(-m // rows) * -(-n // (vectors * machine.lanes(dtype)))
    loads = (vectors + rows) / _LOADS_PER_CYCLE
    step = max(rows * vectors / _FMA_PER_CYCLE, loads, _FMA_LATENCY)
    if k * vectors * machine.vector_bytes > machine.l1_bytes // 2:
        step = max(step, vectors * _L2_CYCLES_PER_VECTOR)
    # Loads are never free: they decide between tiles that multiply equally fast. A vector of the
    # panel comes from L2, a broadcast from L1.
    step += 0.08 * vectors + 0.02 * rows
    return tiles * (k * step + _TILE_START_CYCLES)
