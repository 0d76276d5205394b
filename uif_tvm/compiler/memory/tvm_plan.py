"""What TVM's own planner would allocate for the same code, to compare with."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call

from uif_tvm.relax_util import op_name


def tvm_planned_bytes(mod: tvm.IRModule) -> int | None:
    """Bytes of all storages of ``main`` by TVM's ``StaticPlanBlockMemory``, results apart.

    Args:
        mod: after ``CallTIRRewrite`` (and with workspaces as arguments).

    Returns:
        ``None`` where the size of a storage is known in a run only.
    """
    sizes: list[int] = []
    unknown = False

    def visit(node: Any) -> None:
        nonlocal unknown
        if isinstance(node, Call) and op_name(node) == "relax.memory.alloc_storage":
            (size,) = node.args[0].values
            unknown = unknown or not isinstance(size, tirx.IntImm)
            sizes.append(int(size.value) if isinstance(size, tirx.IntImm) else 0)

    relax.analysis.post_order_visit(relax.transform.StaticPlanBlockMemory()(mod)["main"], visit)
    return None if unknown else sum(sizes)
