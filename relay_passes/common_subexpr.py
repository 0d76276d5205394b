"""Common subexpressions: ``a = f(x); b = f(x)  ->  a = f(x); b = a``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import relax

from uif_tvm.compiler.graph_pass import GraphPass

if TYPE_CHECKING:
    import tvm

    from uif_tvm.compiler.context import CompileContext


class CommonSubexpr(GraphPass):
    """Compute each pure expression once."""

    name = "common-subexpr"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        mod = relax.transform.EliminateCommonSubexpr(call_only=True)(mod)
        return relax.transform.CanonicalizeBindings()(mod)


PASS = CommonSubexpr()
