"""Reshapes as views: ``call_tir(copy_in_another_shape, x)  ->  reshape(x)``, which copies nothing.

Runs after fusion, so that a reshape between two fused operators has become index arithmetic
already; what is left alone would be a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import high_level_ops

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext


class ViewReshape(GraphPass):
    """Replace kernels that only reshape."""

    name = "view-reshape"
    requires = frozenset({"kernels-only"})

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        try:
            mod = relax.transform.RewriteDataflowReshape()(mod)
        except Exception as error:  # TVM cannot compare index maps of some symbolic shapes
            lines = str(error).splitlines()
            reason = f"shapes settled at run time only: {lines[0][:120] if lines else 'unknown'}"
            ctx.report.decide(self.name, "main", False, reason, 0.0)
            return mod
        views = high_level_ops(mod)["relax.reshape"]
        if views:
            gain = views * ctx.target.roofline.launch_us
            ctx.report.decide(self.name, "main", True, f"{views} copies became views", gain)
        return mod


PASS = ViewReshape()
