"""Kernel fusion: ``b = f(a); c = g(b)  ->  c = (g . f)(a)`` by operator pattern.

An output-fusable kernel (convolution, matmul, reduction) takes the elementwise and broadcast
kernels that follow it as epilogue; chains of injective kernels become one. Grouping is TVM's
``FuseOps`` over the ``op_pattern`` attributes. A kernel whose name matches one of
``ctx.disabled_fusion`` is made opaque first and so stays alone.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import calls, op_name

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

OPAQUE = 8
#: Attribute of the module: fused kernel -> [kernel, source name] of each member.
MEMBERS_ATTR = "uif.members"


class FuseKernels(GraphPass):
    """Fuse producers and consumers into single kernels."""

    name = "fuse-kernels"
    requires = frozenset({"kernels-only"})
    ensures = frozenset({"fused"})

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        mod = self._isolate(mod, ctx)
        before = _kernel_calls(mod)
        mod = relax.transform.AnnotateTIROpPattern()(mod)
        apart = _named_calls(mod["main"])
        mod = relax.transform.FuseOps()(mod)
        members = _members(mod, apart)
        mod = relax.transform.FuseTIR()(mod)
        mod = relax.transform.DeadCodeElimination(["main"])(mod).with_attr(MEMBERS_ATTR, members)
        after = _kernel_calls(mod)
        saved = sum(before.values()) - sum(after.values())
        for name, count in after.items():
            if name.startswith("fused_"):
                ctx.report.decide(self.name, name, True, f"one kernel, called {count}x")
        if saved:
            gain = saved * ctx.target.roofline.launch_us
            ctx.report.decide(
                self.name, "main", True, f"{saved} kernel launches saved in all", gain
            )
        return mod

    def _isolate(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        patterns = ctx.disabled_fusion
        if not patterns:
            return mod
        mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        kernels = {v.name_hint: v for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        alone = {pattern: fnmatch.filter(kernels, pattern) for pattern in patterns}
        for name in sorted({name for names in alone.values() for name in names}):
            mod[kernels[name]] = mod[name].with_attr("op_pattern", OPAQUE)
            ctx.report.decide(self.name, name, False, "fusion disabled on request")
        for pattern, names in alone.items():
            if not names:
                known = ", ".join(sorted(kernels))
                ctx.report.notes.append(f"disable_fusion: {pattern!r} matches no kernel of {known}")
        return mod


def _members(mod: tvm.IRModule, apart: list[tuple[str, str]]) -> dict[str, list[list[str]]]:
    """Group -> its kernels and the source names of their results, in order.

    ``FuseOps`` keeps the names inside a group but drops its result's. Results follow one another
    as they did before fusion, so they are what ``apart``, the calls of then, has left when all
    that kept its name is taken away.
    """
    groups = {
        var.name_hint: _named_calls(func)
        for var, func in mod.functions.items()
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs
    }
    results = []
    for _, call in calls(tvm.IRModule({"main": mod["main"]})):
        if isinstance(call.op, GlobalVar) and call.op.name_hint in groups:
            results.append((call.op.name_hint, groups[call.op.name_hint][-1][0]))
        elif op_name(call) == "relax.call_tir":
            results.append(("", call.args[0].name_hint))
    left = Counter(row for rows in groups.values() for row in rows[:-1])
    ends = []
    for row in apart:
        if left[row]:
            left[row] -= 1
        else:
            ends.append(row)
    if [kernel for kernel, _ in ends] == [kernel for _, kernel in results]:
        for (group, _), end in zip(results, ends, strict=True):
            if group:
                groups[group][-1] = end
    return {group: [list(row) for row in rows] for group, rows in groups.items()}


def _named_calls(func: relax.Function) -> list[tuple[str, str]]:
    """Kernel and result name of every kernel call, in order."""
    return [
        (call.args[0].name_hint, var.name)
        for var, call in calls(tvm.IRModule({"main": func}))
        if op_name(call) == "relax.call_tir"
    ]


def _kernel_calls(mod: tvm.IRModule) -> Counter[str]:
    return Counter(
        call.args[0].name_hint for _, call in calls(mod) if op_name(call) == "relax.call_tir"
    )


PASS = FuseKernels()
