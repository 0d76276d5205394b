"""Memory planning as one step of lowering: plan, rewrite, and say what has no fixed place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import GlobalVar

from uif_tvm.artifact.memory_plan import MemoryPlan
from uif_tvm.compiler.memory.assignment import assign
from uif_tvm.compiler.memory.copies import CopyKernels
from uif_tvm.compiler.memory.emit import FETCHERS, Planned, plan_memory
from uif_tvm.compiler.memory.emit_tiers import plan_tiers
from uif_tvm.compiler.memory.liveness import holds_no_tensor
from uif_tvm.compiler.memory.tiers import reachable
from uif_tvm.compiler.memory.tvm_plan import tvm_planned_bytes
from uif_tvm.relax_util import calls, op_name

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.kernel_cache import CompiledKernel

_ALLOC = "relax.builtin.alloc_tensor"
#: The planner may search as long for a smaller arena, seconds.
_PLAN_SECONDS = 5.0
#: Option of a context: tell what TVM's planner would allocate (``tvm`` of the report's memory).
COMPARE_MEMORY = "compare_memory"
#: Names listed in a note.
_LISTED = 5


def planned(
    mod: tvm.IRModule,
    ctx: CompileContext,
    kernels: Sequence[CompiledKernel],
    copies: CopyKernels,
) -> tuple[tvm.IRModule, MemoryPlan]:
    """``mod`` with its tensors at fixed places, and the plan.

    Args:
        mod: after ``CallTIRRewrite`` and with workspaces as arguments.
        kernels: what it calls.
        copies: makes the kernels of transfers, where the target has several memories.
    """
    if ctx.options.get(COMPARE_MEMORY):
        theirs = tvm_planned_bytes(mod)
        if theirs is not None:
            ctx.report.memory["tvm"] = theirs
    made = _plan(mod, ctx, copies)
    own = [kernel.symbol for kernel in kernels if kernel.run_allocations]
    calling = list(_own_results(made.mod))
    note = "; ".join(filter(None, (made.report.get("note"), _note(made, own, calling))))
    if note:
        made.report["note"] = note
        ctx.report.notes.append(note)
    ctx.report.memory_plan = made.report
    allocations = sum(op_name(call) == _ALLOC for _, call in calls(made.mod))
    total = allocations + len(own) + len(calling)
    return made.mod, replace(made.plan, run_allocations=total)


def _plan(mod: tvm.IRModule, ctx: CompileContext, copies: CopyKernels) -> Planned:
    """One arena for each memory of the target; one in all where values cannot move."""
    tiers = ctx.target.memory
    if len(tiers) == 1:
        return plan_memory(mod, tiers[0].name, _PLAN_SECONDS, exact=True)
    priced = partial(assign, launch_us=ctx.target.roofline.launch_us)
    spread = plan_tiers(mod, tiers, priced, copies)
    if isinstance(spread, Planned):
        for row in spread.report["transfers"]:
            subject = f"{row['value']}: {row['from']} to {row['to']}"
            reason = f"{row['bytes']} bytes before step {row['step'] + 1}"
            ctx.report.decide("memory-tiers", subject, True, reason, -row["us"])
        reason = "memory traffic saved against all values in the slowest addressable tier"
        saved = spread.report["saved_us"]
        ctx.report.decide("memory-tiers", "main", True, reason, saved)
        return spread
    # All of it in the largest memory that kernels can address.
    largest = max(filter(reachable, tiers), key=lambda tier: tier.bytes)
    reason = f"all tensors in {largest.name}: {spread}"
    ctx.report.decide("memory-tiers", "main", False, reason, 0.0)
    made = plan_memory(mod, largest.name, _PLAN_SECONDS, exact=True)
    made.report["note"] = f"memory is not spread over tiers: {reason}"
    return made


def _own_results(mod: tvm.IRModule) -> Iterator[str]:
    """Names of the values that functions return in tensors of their own."""
    for var, call in calls(mod):
        function = getattr(call.op, "global_symbol", "")
        foreign = isinstance(call.op, GlobalVar | relax.ExternFunc) and function not in FETCHERS
        if foreign and not holds_no_tensor(var.ty):
            yield str(var.name)


def _note(made: Planned, own: Sequence[str], calling: Sequence[str]) -> str:
    """What is not at a fixed place, or is only by an upper end; empty where all is settled."""
    attrs = made.mod["main"].attrs or {}
    parts = []
    limits = attrs.get("tir_var_upper_bound", {})
    unlimited = [str(name) for name in attrs.get("tir_var_lower_bound", {}) if name not in limits]
    if made.refused_bytes:
        parts.append(
            "memory is allocated as a run needs it: at the upper ends of the ranges one tensor "
            f"would take {made.refused_bytes >> 20} MiB"
        )
    elif unlimited and made.left:
        parts.append(
            "memory is allocated by the extents of a run: no limit is given for "
            + ", ".join(unlimited)
        )
    else:
        if "tir_var_lower_bound" in attrs and not unlimited:
            parts.append("memory is planned for the upper ends of all ranges")
        if made.left:
            parts.append(f"allocated in each run, by its extents: {_listed(made.left)}")
    if calling:
        parts.append(f"allocated by the functions that return them: {_listed(calling)}")
    if own:
        parts.append(f"kernels that allocate workspace by the extents of a run: {_listed(own)}")
    others = [
        str(var.name_hint)
        for var, func in made.mod.functions.items()
        if isinstance(func, relax.Function) and var.name_hint != "main"
    ]
    if others:
        parts.append(f"loops allocate as they run: {_listed(others)}")
    return "; ".join(parts)


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(names[:_LISTED]) + (" ..." if len(names) > _LISTED else "")
