"""Lowering of CPU kernels: TVM's steps that matter there, vector math, ``local`` on the stack.

A ``local`` buffer is a schedule's word for "registers, or failing that the stack": accumulators of
a register tile, the partial sums of one row. TVM 0.27 turns each of them into a call of the
workspace allocator inside the innermost parallel loop (only ``global`` buffers under one kilobyte
are spared), which costs tens of nanoseconds per tile and keeps LLVM from promoting the buffer to
registers. This pipeline marks them so that the code generator makes plain stack slots.
"""

from __future__ import annotations

import threading
from typing import Any

from uif_tvm.compiler.vector_math import KEEP_ON_STACK, allow_vectors, expand_math

#: Pass this to ``tvm.tirx.build`` after :func:`register`.
PIPELINE = "uif"

_registering = threading.Lock()

#: Stack slots above this size would overflow the stacks of worker threads.
MAX_STACK_BYTES = 128 << 10


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
            block.CompactBufferAllocation(),
            block.LowerMatchBuffer(),
            block.StmtSimplify(),
            block.AnnotateIrregularLoop(),
            block.LowerOpaqueBlock(),
            plain.FlattenBuffer(),
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
            plain.VerifyMemory(),
            plain.AnnotateEntryFunc(),
            plain.SplitHostDevice(),
            plain.MakePackedAPI(),
            plain.FP8StorageLegalize(),
            plain.BF16StorageLegalize(),
        ]
    )


def keep_locals() -> Any:
    """The pass: ``alloc_buffer(scope="local")`` becomes a stack slot."""
    import tvm_ffi
    from tvm import tirx

    def mark(alloc: Any) -> Any:
        buffer = alloc.buffer
        if buffer.scope() != "local" or _bytes(buffer) > MAX_STACK_BYTES:
            return alloc
        keep = {**dict(alloc.annotations), KEEP_ON_STACK: tirx.IntImm("int32", 1)}
        return tirx.AllocBuffer(buffer, keep)

    @tirx.transform.prim_func_pass(opt_level=0, name="uif.KeepLocals")
    def run(func: Any, _mod: Any, _ctx: Any) -> Any:
        return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.AllocBuffer, mark)]))

    return run


def _bytes(buffer: Any) -> float:
    """Size of ``buffer``; infinite when an extent is symbolic."""
    from tvm import tirx
    from tvm.runtime import DataType

    element = DataType(str(buffer.dtype))
    total: float = element.bits * element.lanes / 8
    for extent in buffer.shape:
        total *= int(extent) if isinstance(extent, tirx.IntImm) else float("inf")
    return total
