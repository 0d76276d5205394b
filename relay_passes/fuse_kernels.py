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

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.compiler.relax_util import calls, op_name

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
        mod = relax.transform.FuseOps()(mod)
        members = _members(mod)
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


def _members(mod: tvm.IRModule) -> dict[str, list[list[str]]]:
    """Group -> its kernels and the source names of their results, in order."""
    return {
        var.name_hint: [
            [value.args[0].name_hint, bound.name]
            for bound, value in calls(tvm.IRModule({var: func}))
            if op_name(value) == "relax.call_tir"
        ]
        for var, func in mod.functions.items()
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs
    }


def _kernel_calls(mod: tvm.IRModule) -> Counter[str]:
    return Counter(
        call.args[0].name_hint for _, call in calls(mod) if op_name(call) == "relax.call_tir"
    )


PASS = FuseKernels()
