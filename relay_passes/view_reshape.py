"""Reshapes as views: ``call_tir(copy_in_another_shape, x)  ->  reshape(x)``, which copies nothing.

Runs after fusion, so that a reshape between two fused operators has become index arithmetic
already; what is left alone would be a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import relax
from uif_tvm.relay_passes.fusion_facts import copies_in_another_shape
from uif_tvm.relay_passes.fusion_graph import result_bytes

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import calls, op_name

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
        for var, call in calls(mod):
            if op_name(call) == "relax.reshape":
                gain = Gain(bytes=2 * result_bytes(var), launches=1)
                ctx.report.decide(
                    self.name, str(var.name), True, "a view of its operand, no copy",
                    gain_us=gain.microseconds(ctx.target), **gain.figures(),
                )  # fmt: skip
            elif not isinstance(var, relax.DataflowVar) and _copies(mod, call):
                ctx.report.decide(
                    self.name, str(var.name), False,
                    "a copy: a result of the model has memory of its own",
                )  # fmt: skip
        return mod


def _copies(mod: tvm.IRModule, call: Any) -> bool:
    """Whether a call is one of a kernel that does no more than copy in another shape."""
    if op_name(call) != "relax.call_tir":
        return False
    func = mod[call.args[0]]
    return len(func.params) == 2 and copies_in_another_shape(func)


PASS = ViewReshape()
