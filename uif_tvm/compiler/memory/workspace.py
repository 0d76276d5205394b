"""Workspaces of kernels as arguments: ``f(x, y) { w = alloc; ... }  ->  f(x, y, w) { ... }``.

What a kernel allocates besides stack slots would be a call of the runtime's allocator in every
run. Here it becomes one more argument of bytes, which the memory plan gives a place like any other
tensor. Kernels are scheduled and lowered first, so the size is known only then.

Allocations inside a parallel loop are needed once per worker. Small ones go onto the worker's
stack; for larger ones the loop is split into as many parts as the target has cores, and each part
gets a slice of its own:

    parallel i < n { w = alloc; B(i, w) }
    ->  parallel p < P { for i in p * ceil(n / P) ... min((p + 1) * ceil(n / P), n): B(i, w_p) }

The runtime shares a loop among workers in the same contiguous parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from uif_tvm.compiler.vector_math import KEEP_ON_STACK

#: Below this TVM's code generator makes a stack slot by itself, bytes.
_TVM_STACK_BYTES = 1024
#: Stack slots of one kernel above this would overflow the stacks of worker threads.
MAX_STACK_BYTES = 128 << 10
_ALIGNMENT = 64
#: Memory of the processor itself; an accelerator's own memories are its schedules' business.
_SCOPES = ("global", "local")
#: Name of the added parameter.
WORKSPACE = "workspace"


@dataclass
class Lifted:
    """What one kernel was found to need.

    Args:
        parts: most workers that share a parallel loop.
        workspace: bytes of the argument that was added, 0 where none was.
        left: allocations that the runtime still makes in a run: their size is known then only.
    """

    parts: int
    workspace: int = 0
    left: int = 0


_current: ContextVar[Lifted | None] = ContextVar("workspace", default=None)


@contextmanager
def lifting(parts: int) -> Iterator[Lifted]:
    """Let kernels lowered in the body take their workspace as an argument of at most ``parts``
    slices; what was found is told through the value."""
    found = Lifted(parts)
    token = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(token)


def nbytes(buffer: Any) -> float:
    """Size of ``buffer``; infinite when an extent is symbolic."""
    from tvm import tirx
    from tvm.runtime import DataType

    element = DataType(str(buffer.dtype))
    total: float = element.bits * element.lanes / 8
    for extent in buffer.shape:
        total *= int(extent) if isinstance(extent, tirx.IntImm) else float("inf")
    return total


def lift_workspace() -> Any:
    """The pass of the module text; comes right before parameters become packed arguments."""
    from tvm import tirx

    def run(func: Any, _mod: Any, _ctx: Any) -> Any:
        found = _current.get()
        return func if found is None else _Lift(found).function(func)

    return tirx.transform.prim_func_pass(run, opt_level=0, name="uif.LiftWorkspace")


class _Lift:
    """Moves the allocations of one kernel."""

    def __init__(self, found: Lifted) -> None:
        self._found = found
        self._stack = 0
        #: Buffer -> where it starts in the workspace, bytes, an expression in a parallel loop.
        self._starts: dict[Any, Any] = {}
        self._kept: set[Any] = set()

    def function(self, func: Any) -> Any:
        """``func`` with its workspace as a parameter, behind the other buffers."""
        import tvm_ffi
        from tvm import tirx

        loops: list[Any] = []
        tvm_ffi.structural_walk(
            func.body,
            [(tirx.For, lambda f: loops.append(f) if f.kind == tirx.ForKind.PARALLEL else None)],
        )
        inside = {id(loop): _allocations(loop.body) for loop in loops}
        in_loops = {alloc.buffer for allocs in inside.values() for alloc in allocs}
        top = [alloc for alloc in _allocations(func.body) if alloc.buffer not in in_loops]
        end = self._place(top, 0, None)
        total, splits = end, {}
        for loop in loops:
            large = self._large(inside[id(loop)])
            if large:
                split = _Split(loop, self._found.parts)
                total = max(total, end + split.parts * self._place(large, end, split.part))
                splits[loop.loop_var] = split
        body = func.body
        if splits:
            rewrite = [(tirx.For, lambda loop: _split(loop, splits))]
            body = tvm_ffi.structural_map(body, rewrite)
        if not total and not self._kept:
            return func
        param = tirx.decl_buffer((total,), "uint8", name=WORKSPACE)
        moved = [(tirx.AllocBuffer, lambda alloc: self._moved(alloc, param))]
        body = tvm_ffi.structural_map(body, moved)
        if not total:
            return func.with_body(body)
        self._found.workspace = total
        # Sizes may stand between the buffers too, where fusion or a caller passes them by value.
        buffers = [isinstance(each.ty, tirx.buffer.BufferType) for each in func.params]
        after = max((i + 1 for i, is_buffer in enumerate(buffers) if is_buffer), default=0)
        params = [*func.params[:after], param, *func.params[after:]]
        return tirx.PrimFunc(params, body, func.ret_type, func.attrs)

    def _place(self, allocs: list[Any], start: int, part: Any) -> int:
        """Give ``allocs`` places behind each other; returns the bytes they take.

        Args:
            part: the loop variable of the worker's part, ``None`` outside of parallel loops.
        """
        from tvm import tirx

        placed, at = [], 0
        for alloc in allocs:
            size = nbytes(alloc.buffer)
            if math.isinf(size):
                self._found.left += 1
            elif alloc.buffer.scope() in _SCOPES and size >= _TVM_STACK_BYTES:
                if alloc.buffer.scope() == "local" and size <= MAX_STACK_BYTES:
                    continue
                placed.append((alloc.buffer, at))
                at += -(-int(size) // _ALIGNMENT) * _ALIGNMENT
        for buffer, offset in placed:
            base = tirx.const(start + offset, "int64")
            slices = part.astype("int64") * tirx.const(at, "int64") if part is not None else None
            self._starts[buffer] = base if slices is None else base + slices
        return at

    def _large(self, allocs: list[Any]) -> list[Any]:
        """Those of a parallel loop that do not go onto the stack."""
        large = []
        for alloc in allocs:
            size = nbytes(alloc.buffer)
            if alloc.buffer.scope() not in _SCOPES or size < _TVM_STACK_BYTES:
                continue
            if alloc.buffer.scope() == "local" and size <= MAX_STACK_BYTES:
                continue
            if self._stack + size <= MAX_STACK_BYTES // 2:
                self._stack += int(size)
                self._kept.add(alloc.buffer)
            else:
                large.append(alloc)
        return large

    def _moved(self, alloc: Any, param: Any) -> Any:
        from tvm import tirx

        if alloc.buffer in self._kept:
            keep = {**dict(alloc.annotations), KEEP_ON_STACK: tirx.IntImm("int32", 1)}
            return tirx.AllocBuffer(alloc.buffer, keep)
        start = self._starts.get(alloc.buffer)
        if start is None:
            return alloc
        where = tirx.handle_add_byte_offset(param.data, start)
        return tirx.DeclBuffer(alloc.buffer, data=where)


class _Split:
    """A parallel loop in as many parts as there are workers.

    Args:
        loop: the loop.
        workers: most of them.
    """

    def __init__(self, loop: Any, workers: int) -> None:
        from tvm import tirx

        extent = loop.extent
        self.parts = min(workers, int(extent)) if isinstance(extent, tirx.IntImm) else workers
        self.part = tirx.Var("part", loop.loop_var.ty)

    def around(self, loop: Any) -> Any:
        """The loop over parts around ``loop`` over one part's share."""
        from tvm import tirx

        dtype = str(loop.loop_var.ty.dtype)
        zero, parts = tirx.const(0, dtype), tirx.const(self.parts, dtype)
        share = tirx.floordiv(loop.extent + (parts - 1), parts)
        begin = self.part * share
        count = tirx.max(tirx.min(share, loop.extent - begin), zero)
        own = tirx.For(loop.loop_var, loop.min + begin, count, tirx.ForKind.SERIAL, loop.body)
        return tirx.For(self.part, zero, parts, tirx.ForKind.PARALLEL, own)


def _split(loop: Any, splits: dict[Any, _Split]) -> Any:
    from tvm import tirx

    split = splits.get(loop.loop_var) if loop.kind == tirx.ForKind.PARALLEL else None
    return loop if split is None else split.around(loop)


def _allocations(body: Any) -> list[Any]:
    import tvm_ffi
    from tvm import tirx

    found: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.AllocBuffer, found.append)])
    return found
