"""Dead code elimination: ``let x = f(y) in z  ->  z`` where ``x`` is unused and ``f`` is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from uif_tvm.compiler.graph_pass import GraphPass

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext


class DeadCode(GraphPass):
    """Drop bindings whose value nobody uses, and functions nobody calls."""

    name = "dead-code"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        return relax.transform.DeadCodeElimination(["main"])(mod)


PASS = DeadCode()
