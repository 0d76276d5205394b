"""Kernels of standard operators: ``uif.op(args)  ->  call_tir(kernel of op, args)``.

Layout passes lift kernels that treat every channel alike, and fusion takes kernels; so what Relax
has no operator for becomes its kernel before them. Relax's own operators stay as they are, also
those that a kernel's legalisation leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.ir import Op

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.relax_util import calls, op_name

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

_STANDARD, _RELAX = "uif.", "relax."


class StandardKernels(GraphPass):
    """Turn the operators that Relax lacks into kernel calls."""

    name = "standard-kernels"
    requires = frozenset({"indices-safe"})

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if not any((op_name(call) or "").startswith(_STANDARD) for _, call in calls(mod)):
            return mod
        kept = [name for name in Op.list_op_names() if name.startswith(_RELAX)]
        own = {name: rule for name, rule in LEGALIZE.items() if name.startswith(_STANDARD)}
        with tvm.target.Target(dict(ctx.target.tvm_target)):
            mod = relax.transform.LegalizeOps(own, kept)(mod)
        return relax.transform.CanonicalizeBindings()(mod)


PASS = StandardKernels()
