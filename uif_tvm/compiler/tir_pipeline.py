"""Lowering of CPU kernels: TVM's steps that matter there, vector math, ``local`` on the stack.

A ``local`` buffer is a schedule's word for "registers, or failing that the stack": accumulators of
a register tile, the partial sums of one row. TVM 0.27 turns each of them into a call of the
workspace allocator inside the innermost parallel loop (only ``global`` buffers under one kilobyte
are spared), which costs tens of nanoseconds per tile and keeps LLVM from promoting the buffer to
registers. This pipeline marks them so that the code generator makes plain stack slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from uif_tvm.compiler.memory.workspace import MAX_STACK_BYTES, lift_workspace, nbytes
from uif_tvm.compiler.vector_math import KEEP_ON_STACK, allow_vectors, expand_math

#: Pass this to ``tvm.tirx.build`` after :func:`register`.
PIPELINE = "uif"

_registering = threading.Lock()


def register() -> str:
    """Make the pipeline known to TVM (once is enough) and return its name."""
    from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

    def factory() -> Any:
        def finish() -> Any:
            from tvm import ir

            return ir.transform.Sequential([keep_locals(), expand_math(), finalize_host_passes()])

        return _lower(), finish, finalize_device_passes

    # Kernels compile on several threads, and TVM refuses a second registration.
    with _registering:
        if PIPELINE not in PIPELINE_MAP:
            allow_vectors()
            register_tir_pipeline(PIPELINE, factory)
    return PIPELINE


def _lower() -> Any:
    """TVM's default lowering without the steps that only other processors need.

    Left out, with what each is for: thread bindings and virtual threads, shared memory, tensor
    cores, asynchronous copies, double buffering and software pipelines. Left out although it
    changes code for processors: hoisting conditions out of loops, which LLVM does as well and
    which took a third of the time.
    """
    from tvm import ir, s_tir, tirx

    block, plain = s_tir.transform, tirx.transform
    return ir.transform.Sequential(
        [
            block.CanonicalizeLoop(),
            block.LowerInitBlock(),
            block.PlanAndUpdateBufferAllocationLocation(),
            block.ConvertBlocksToOpaque(),
            compact(),
            block.LowerMatchBuffer(),
            block.StmtSimplify(),
            block.AnnotateIrregularLoop(),
            block.LowerOpaqueBlock(),
            store_truths(),
            guard_shifts(),
            plain.FlattenBuffer(),
            release_shifts(),
            plain.BF16ComputeLegalize(),
            plain.NarrowDataType(32),
            block.LoopPartition(),
            plain.VectorizeLoop(True),
            plain.StorageRewrite(),
            plain.UnrollLoop(),
            plain.StmtSimplify(),
            plain.RemoveNoOp(),
            block.RewriteUnsafeSelect(),
            plain.CommonSubexprElim(),
            plain.FP8ComputeLegalize(),
            lift_workspace(),
            plain.VerifyMemory(),
            plain.AnnotateEntryFunc(),
            plain.SplitHostDevice(),
            plain.MakePackedAPI(),
            plain.FP8StorageLegalize(),
            plain.BF16StorageLegalize(),
        ]
    )


def compact() -> Any:
    """The pass: buffers as large as what is used of them, where that can be told.

    TVM's own leaves loop variables in the extents of a buffer outside of these loops, where an
    index is divided by an open size. Such a kernel keeps its buffers as they were.
    """
    import tvm
    import tvm_ffi
    from tvm import s_tir, tirx

    inner = s_tir.transform.CompactBufferAllocation()

    def run(func: Any) -> Any:
        small = inner(tvm.IRModule({"main": func}))["main"]
        loops: set[Any] = set()
        extents: list[Any] = []

        def allocated(block: Any) -> None:
            extents.extend(extent for buffer in block.alloc_buffers for extent in buffer.shape)

        tvm_ffi.structural_walk(
            small.body,
            [(tirx.For, lambda loop: loops.add(loop.loop_var)), (s_tir.SBlock, allocated)],
        )
        used = {var for extent in extents for var in tirx.analysis.undefined_vars(extent)}
        return func if used & loops else small

    return _pass("uif.Compact", run)


def store_truths() -> Any:
    """The pass: ``b = alloc(bool); b[i] = v; f(b[j])  ->  b = alloc(int8); ...; f(b[j] != 0)``.

    TVM's rewriting of allocations to vectors of their accesses takes truth values for bytes, and
    code generation then combines the two.
    """
    import tvm_ffi
    from tvm import ir, tirx

    def run(func: Any) -> Any:
        found: dict[Any, Any] = {}

        def note(alloc: Any) -> None:
            old = alloc.buffer
            if str(old.dtype) == "bool":
                found[old] = tirx.decl_buffer(old.shape, "int8", old.name, scope=old.scope())

        def load(node: Any) -> Any:
            if node.source not in found:
                return node
            value = tirx.BufferLoad(found[node.source], node.indices)
            return tirx.NE(value, tirx.const(0, "int8"))

        def store(node: Any) -> Any:
            if node.buffer not in found:
                return node
            return tirx.BufferStore(found[node.buffer], node.value.astype("int8"), node.indices)

        def alloc(node: Any) -> Any:
            buffer = found.get(node.buffer)
            return node if buffer is None else tirx.AllocBuffer(buffer, dict(node.annotations))

        tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, note)])
        if not found:
            return func
        rewrites = [(ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.AllocBuffer, alloc)]
        return func.with_body(tvm_ffi.structural_map(func.body, rewrites))

    return _pass("uif.StoreTruths", run)


def guard_shifts() -> Any:
    """The pass: ``x[(i + c) // n]  ->  x[((i + c) & -1) // n]`` where n need not divide c.

    Flattening normalises indices as sums of loop parts (TVM's ``IterMapSimplify``), and loses
    offsets that end inside a division: ``(i % 8 + 2) // 4`` becomes ``(i + 2) % 8 // 4``. So a
    roll or a slice between two reshapes reads other elements once the three are one kernel; the
    same happens to an offset that is a symbolic size or an argument. An operation that it does
    not know makes it leave the index alone; :func:`release_shifts` takes that away again.
    """
    import tvm_ffi
    from tvm import ir, tirx

    def run(func: Any) -> Any:
        loops: set[Any] = set()
        tvm_ffi.structural_walk(func.body, [(tirx.For, lambda loop: loops.add(loop.loop_var))])

        def guard(node: Any) -> Any:
            divisor = int(node.b.value) if isinstance(node.b, tirx.IntImm) else 0
            term = offset(node.a, loops)
            if term is not None and (term % divisor == 0 if divisor else term == 0):
                return node
            mask = tirx.const(-1, str(node.a.ty.dtype))
            return type(node)(tirx.bitwise_and(node.a, mask), node.b)

        def indices(access: Any) -> Any:
            changed = [
                tvm_ffi.structural_map(index, [(tirx.FloorDiv, guard), (tirx.FloorMod, guard)])
                for index in access.indices
            ]
            if isinstance(access, ir.TensorLoad):
                return tirx.BufferLoad(access.source, changed)
            return tirx.BufferStore(access.buffer, access.value, changed)

        rewrites = [(ir.TensorLoad, indices), (tirx.BufferStore, indices)]
        return func.with_body(tvm_ffi.structural_map(func.body, rewrites))

    return _pass("uif.GuardShifts", run)


def release_shifts() -> Any:
    """The pass: ``x & -1  ->  x``."""
    import tvm_ffi
    from tvm import tirx

    def release(node: Any) -> Any:
        mask = node.b
        return node.a if isinstance(mask, tirx.IntImm) and int(mask.value) == -1 else node

    def run(func: Any) -> Any:
        return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.BitwiseAnd, release)]))

    return _pass("uif.ReleaseShifts", run)


def offset(index: Any, loops: Collection[Any]) -> int | None:
    """The constant term of a sum of parts of ``loops``; None when it is not known here.

    Not known are a symbolic size, an argument, a value read from a buffer, and what is neither
    sum, product nor division.
    """
    from tvm import tirx

    if isinstance(index, tirx.IntImm):
        return int(index.value)
    if isinstance(index, tirx.Var):
        return 0 if index in loops else None
    if isinstance(index, tirx.Cast):
        return offset(index.value, loops)
    if not isinstance(index, tirx.Add | tirx.Sub | tirx.Mul | tirx.FloorDiv | tirx.FloorMod):
        return None
    left, right = offset(index.a, loops), offset(index.b, loops)
    if isinstance(index, tirx.FloorDiv | tirx.FloorMod):
        return _quotient_offset(index, left)
    if isinstance(index, tirx.Mul):
        if left == 0 or right == 0:
            return 0
        constant = isinstance(index.a, tirx.IntImm) or isinstance(index.b, tirx.IntImm)
        return left * right if constant and left is not None and right is not None else None
    if left is None or right is None:
        return None
    return left + right if isinstance(index, tirx.Add) else left - right


def _quotient_offset(index: Any, term: int | None) -> int | None:
    """What ``term`` inside a division or a remainder adds to its result."""
    from tvm import tirx

    if term == 0 or term is None:
        return term
    if not isinstance(index.b, tirx.IntImm) or term % int(index.b.value):
        return None
    return term // int(index.b.value) if isinstance(index, tirx.FloorDiv) else 0


def _pass(name: str, run: Callable[[Any], Any]) -> Any:
    from tvm import tirx

    @tirx.transform.prim_func_pass(opt_level=0, name=name)
    def apply(func: Any, _mod: Any, _ctx: Any) -> Any:
        return run(func)

    return apply


def keep_locals() -> Any:
    """The pass: ``alloc_buffer(scope="local")`` becomes a stack slot."""
    import tvm_ffi
    from tvm import tirx

    def mark(alloc: Any) -> Any:
        buffer = alloc.buffer
        if buffer.scope() != "local" or nbytes(buffer) > MAX_STACK_BYTES:
            return alloc
        keep = {**dict(alloc.annotations), KEEP_ON_STACK: tirx.IntImm("int32", 1)}
        return tirx.AllocBuffer(buffer, keep)

    @tirx.transform.prim_func_pass(opt_level=0, name="uif.KeepLocals")
    def run(func: Any, _mod: Any, _ctx: Any) -> Any:
        return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.AllocBuffer, mark)]))

    return run
