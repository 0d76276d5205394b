"""Verbs for emitting TensorIR: loops that vanish when short, vector reads and writes.

All index arithmetic is 64-bit, as Relax shapes are, so that no sign extension stands between an
address and the constant displacement of an instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Body = Callable[[Any], Any]


def i64(value: int) -> Any:
    """A 64-bit integer constant."""
    from tvm import tirx

    return tirx.IntImm("int64", value)


def seq(*statements: Any) -> Any:
    """The statements one after the other; ``None`` entries are dropped."""
    from tvm import tirx

    kept = [statement for statement in statements if statement is not None]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def loop(name: str, extent: Any, body: Body, kind: str = "SERIAL") -> Any:
    """``for name in range(extent): body(name)``; no loop for one trip, ``None`` for none.

    Args:
        extent: an ``int`` or a 64-bit expression.
        kind: ``SERIAL``, ``PARALLEL``, ``UNROLLED`` or ``VECTORIZED``.
    """
    from tvm import tirx

    if isinstance(extent, int):
        if extent <= 0:
            return None
        if extent == 1:
            return body(i64(0))
        extent = i64(extent)
    var = tirx.Var(name, "int64")
    return tirx.For(var, i64(0), extent, getattr(tirx.ForKind, kind), body(var))


def branch(condition: Any, then: Any, otherwise: Any = None) -> Any:
    """``if condition: then else: otherwise``."""
    from tvm import tirx

    return tirx.IfThenElse(condition, then, otherwise)


def lanes_from(start: Any, lanes: int) -> Any:
    """Index of ``lanes`` consecutive elements from ``start``."""
    from tvm import tirx

    start = i64(start) if isinstance(start, int) else start
    return start if lanes == 1 else tirx.Ramp(start, i64(1), lanes)


def splat(value: Any, lanes: int) -> Any:
    """``value`` in every lane."""
    from tvm import tirx

    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def read(buffer: Any, *indices: Any) -> Any:
    """``buffer[indices]``; integers become 64-bit constants."""
    from tvm import tirx

    return tirx.BufferLoad(buffer, [i64(i) if isinstance(i, int) else i for i in indices])


def write(buffer: Any, value: Any, *indices: Any) -> Any:
    """``buffer[indices] = value``."""
    from tvm import tirx

    return tirx.BufferStore(buffer, value, [i64(i) if isinstance(i, int) else i for i in indices])


def registers(name: str, count: int, lanes: int, dtype: str) -> Any:
    """A buffer of ``count`` vectors that the code generator keeps in registers.

    That holds as long as every access has a constant index once loops are unrolled.
    """
    from tvm import tirx

    return tirx.decl_buffer([i64(count * lanes)], dtype, name=name, scope="local")


def workspace(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """A buffer in memory, private to the thread when allocated inside a parallel loop."""
    from tvm import tirx

    return tirx.decl_buffer([i64(extent) for extent in shape], dtype, name=name)


def alloc(buffer: Any) -> Any:
    """Statement that allocates ``buffer`` for the statements after it."""
    from tvm import tirx

    return tirx.AllocBuffer(buffer)


def finish(func: Any, body: Any) -> Any:
    """``func`` with ``body`` as its new, completely scheduled body."""
    return func.with_body(body)


def store_result(kernel: Any, acc: Any, slot: Any, at: list[Any], lanes: int) -> Any:
    """``result[at, lane] = epilogue(acc[slot*lanes + lane])`` for all lanes, as one vector.

    Args:
        kernel: the :class:`~schedules.x86.conv2d_fused.FusedKernel`.
        acc: buffer of accumulators (see :func:`registers`).
        slot: which of its vectors.
        at: indices of the result, all but the lane.
    """

    def lane_body(lane: Any) -> Any:
        value = read(acc, slot * lanes + lane)
        indices = [i64(i) if isinstance(i, int) else i for i in (*at, lane)]
        return write(kernel.result, kernel.epilogue(indices, value), *indices)

    return loop("lane", lanes, lane_body, "VECTORIZED")
