"""Dead code elimination: ``let x = f(y) in z  ->  z`` where ``x`` is unused and ``f`` is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax
from uif_tvm.relay_passes.fusion_graph import result_bytes

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.relax_util import calls, op_name

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext


class DeadCode(GraphPass):
    """Drop bindings whose value nobody uses, and functions nobody calls."""

    name = "dead-code"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        after = relax.transform.DeadCodeElimination(["main"])(mod)
        if after.same_as(mod):
            return after
        kept = {var for var, _ in calls(after)}
        for var, call in calls(mod):
            if var not in kept:
                gain = Gain(bytes=result_bytes(var), launches=1)
                ctx.report.decide(
                    self.name, str(var.name), True,
                    f"{op_name(call) or 'a call'} computes what nobody reads",
                    gain_us=gain.microseconds(ctx.target), **gain.figures(),
                )  # fmt: skip
        return after


PASS = DeadCode()
