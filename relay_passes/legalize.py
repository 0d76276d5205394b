"""Legalisation: ``relax.op(args)  ->  call_tir(kernel of op, args)``.

Each operator becomes the kernel that the framework's own map gives (``uif_tvm.kernels.legalize``),
else TVM's. What has neither is refused, all of it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax

from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.errors import UnsupportedError, UnsupportedOp
from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.relax_util import high_level_ops

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext


class Legalize(GraphPass):
    """Turn every operator into a kernel call."""

    name = "legalize"
    requires = frozenset({"indices-safe"})
    ensures = frozenset({"kernels-only"})
    optional = False

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text.

        Raises:
            UnsupportedError: operators that have no kernel anywhere.
        """
        with tvm.target.Target(dict(ctx.target.tvm_target)):
            mod = relax.backend.DispatchSortScan()(mod)
            mod = relax.transform.LegalizeOps(dict(LEGALIZE))(mod)
        # Legalisations may leave one variable bound to another, which fusion would stop at.
        mod = relax.transform.CanonicalizeBindings()(mod)
        left = high_level_ops(mod)
        if left:
            raise UnsupportedError(
                [
                    UnsupportedOp(name, count, "no kernel is defined for this operator")
                    for name, count in sorted(left.items())
                ],
                stage="compile",
                code="UIF-COMPILE-NO-KERNEL",
                target=ctx.target.id,
                hint="register a legalisation for it in uif_tvm/kernels/legalize",
            )
        return mod


PASS = Legalize()
