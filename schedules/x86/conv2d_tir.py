"""Verbs for emitting TensorIR: loops that vanish when short, vector reads and writes.

All index arithmetic is 64-bit, as Relax shapes are, so that no sign extension stands between an
address and the constant displacement of an instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Body = Callable[[Any], Any]

#: Element-wise stages from which an epilogue is worth a loop of its own.
LONG_EPILOGUE = 4


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


def named(name: str, value: Any, body: Body) -> Any:
    """``name = value; body(name)``, computed once; plain integers and variables as they are.

    A tile repeats its indices dozens of times, and TVM's passes take time by the size of each. A
    plain binding would not help: the simplifier puts its value back. One that is read from memory
    stays, and LLVM dissolves the memory.
    """
    from tvm import tirx

    if isinstance(value, (int, tirx.Var, tirx.IntImm)):
        return body(value)
    slot = workspace(f"{name}_slot", (1,), "int64")
    var = tirx.Var(name, "int64")
    return seq(alloc(slot), write(slot, value, 0), tirx.Bind(var, read(slot, 0)), body(var))


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


def prefetch(load: Any) -> Any:
    """Ask for the cache line that ``load`` (a buffer read) would touch; never faults."""
    from tvm import tirx

    # llvm.prefetch(address, read, keep in all cache levels, data cache)
    flags = [tirx.const(flag, "int32") for flag in (0, 3, 1)]
    return tirx.Evaluate(
        tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(load), *flags)
    )


class Registers:
    """Vectors that the code generator keeps in registers.

    Each is a buffer of its own, small enough for TVM to leave on the stack, where LLVM dissolves
    it. One buffer for all would be taken from the heap, and anything that may touch memory (a
    prefetch, say) would force the accumulators out of their registers.
    """

    def __init__(self, name: str, count: int, lanes: int, dtype: str) -> None:
        self.lanes = lanes
        self.buffers = [workspace(name, (lanes,), dtype) for _ in range(count)]

    def alloc(self) -> list[Any]:
        """Statements that allocate all of them."""
        return [alloc(buffer) for buffer in self.buffers]

    def read(self, slot: int) -> Any:
        """Vector number ``slot``."""
        return read(self.buffers[slot], lanes_from(0, self.lanes))

    def write(self, slot: int, value: Any) -> Any:
        """Set vector number ``slot``."""
        return write(self.buffers[slot], value, lanes_from(0, self.lanes))

    def fill(self, value: float) -> list[Any]:
        """Set every lane of every vector."""
        from tvm import tirx

        splatted = splat(tirx.const(value, str(self.buffers[0].dtype)), self.lanes)
        return [self.write(slot, splatted) for slot in range(len(self.buffers))]

    def store(self, slots: list[int], kernel: Any, at: list[Any]) -> Any:
        """``result[.., column + i, lane] = epilogue(vector i [lane])`` for a run of pixels.

        A long epilogue is written once, in a loop over copies of the vectors in memory: repeated
        for every pixel it would take most of the compile time, and the copies cost one store and
        one load beside its many operations.

        Args:
            slots: which vectors, one a pixel.
            kernel: the :class:`~schedules.x86.conv2d_fused.FusedKernel`.
            at: indices of the first pixel's result, all but the lane.
        """
        *before, column = at
        if len(slots) == 1 or kernel.fused_blocks < LONG_EPILOGUE:
            stores = [
                finished(kernel, [*before, column + i], partial(read, slot), self.lanes)
                for i, slot in enumerate(self.buffers[slot] for slot in slots)
            ]
            return seq(*stores)
        dtype = str(self.buffers[0].dtype)
        copies = workspace("staged", (len(slots), self.lanes), dtype, "local")
        lane = lanes_from(0, self.lanes)
        copied = [write(copies, self.read(slot), i, lane) for i, slot in enumerate(slots)]

        def pixel(i: Any) -> Any:
            at = [*before, column + i]
            return finished(kernel, at, lambda lane: read(copies, i, lane), self.lanes)

        return seq(alloc(copies), *copied, loop("pixel", len(slots), pixel))


def finished(kernel: Any, at: list[Any], value: Body, lanes: int) -> Any:
    """``result[at, lane] = epilogue(value(lane))`` for one vector.

    Args:
        kernel: the :class:`~schedules.x86.conv2d_fused.FusedKernel`.
        at: indices of the result, all but the lane.
        value: what the anchor computes for a lane.
        lanes: elements of the vector.
    """

    def lane_body(lane: Any) -> Any:
        indices = [i64(i) if isinstance(i, int) else i for i in (*at, lane)]
        statements, result = kernel.epilogue(indices, value(lane))
        return seq(*statements, write(kernel.result, result, *indices))

    return loop("lane", lanes, lane_body, "VECTORIZED")


def workspace(name: str, shape: tuple[int, ...], dtype: str, scope: str = "global") -> Any:
    """A buffer in memory, private to the thread when allocated inside a parallel loop.

    Args:
        scope: ``"global"``, or ``"local"`` for one that is to lie on the stack whatever its size.
    """
    from tvm import tirx

    return tirx.decl_buffer([i64(extent) for extent in shape], dtype, name=name, scope=scope)


def alloc(buffer: Any) -> Any:
    """Statement that allocates ``buffer`` for the statements after it."""
    from tvm import tirx

    return tirx.AllocBuffer(buffer)


def finish(func: Any, body: Any) -> Any:
    """``func`` with ``body`` as its new, completely scheduled body."""
    return func.with_body(body)
