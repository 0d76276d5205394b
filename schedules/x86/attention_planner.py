"""Blocks of the fused attention kernel: what stays in registers, in L1 and in L2.

A task (one batch element, one head of keys, some rows of queries) walks the keys in blocks. The
block's transposed keys and its values are read once per register tile of rows, so they must stay
in a core's L2; the tile's scores must stay in L1. Longer blocks rescale the running sums less
often, more rows a task transpose the keys less often; a task too many per core costs balance.
"""

from __future__ import annotations

from uif_tvm.schedules.x86.matmul_planner import register_tile

from uif_tvm.target.schedule import AttentionPlan, AttentionProblem
from uif_tvm.target.spec import Machine, Refusal

DTYPES = ("float32", "float16", "bfloat16")

#: Bytes of one block's transposed keys, which lie on the stack (see ``tir_pipeline``).
_STACK_BYTES = 64 << 10
_MAX_KEYS, _MAX_ROWS = 512, 256
#: Keys and rows assumed when their number is only known at run time.
_UNKNOWN = 128
#: Tasks a core should have at least, so that none waits long for another.
_TASKS_PER_CORE = 3


def plan_attention(problem: AttentionProblem, machine: Machine) -> AttentionPlan | Refusal:
    """Blocks for one instance; extents of 0 are known at run time only."""
    if problem.dtype not in DTYPES:
        return Refusal("dtype", f"no fused attention kernel for {problem.dtype}")
    if problem.depth <= 0 or problem.width <= 0:
        return Refusal("empty", f"{problem.depth} features of keys, {problem.width} of values")
    lanes = machine.lanes("float32")
    rows = problem.queries * (problem.heads // problem.groups)
    keys = problem.keys or _UNKNOWN
    tile_rows, panel = register_tile(rows, min(keys, _MAX_KEYS), problem.depth, "float32", machine)
    features = -(-max(problem.depth, problem.width) // lanes) * lanes
    longest = min(_MAX_KEYS, _STACK_BYTES // (4 * features)) // panel * panel
    if longest < panel:
        return Refusal("depth", f"one panel of {panel} keys x {features} exceeds the stack")
    key_block = min(longest, -(-keys // panel) * panel) if problem.keys else longest
    spare = machine.vector_registers - 1
    columns = max(1, min(features // lanes, (spare - tile_rows) // tile_rows, 8))
    while tile_rows * columns + columns > spare and columns > 1:
        columns -= 1
    return AttentionPlan(
        tile_rows, panel, columns * lanes, key_block, _row_block(problem, rows, tile_rows, machine)
    )


def _row_block(problem: AttentionProblem, rows: int, tile: int, machine: Machine) -> int:
    """Rows of one task: all of them, or fewer so that every core has work."""
    known = rows or _UNKNOWN
    heads = max(1, problem.batch) * problem.groups
    wanted = max(1, -(-machine.cores * _TASKS_PER_CORE // heads), -(-known // _MAX_ROWS))
    wanted = 1 if machine.cores == 1 and known <= _MAX_ROWS else wanted
    return max(1, -(-known // (wanted * tile))) * tile
