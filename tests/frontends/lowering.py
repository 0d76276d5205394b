"""Standard operators of imported modules as kernels, so that stock TVM runs them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from uif_tvm import ops
from uif_tvm.kernels.legalize import LEGALIZE
from uif_tvm.standard_ops import RelaxBuilder, read


def plain(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with our kernels, and operators that have neither ours nor Relax's composed."""
    rules = dict.fromkeys((s.graph_name for s in ops.specs() if s.relax is None), composed)
    rules |= LEGALIZE
    kept = [name for name in Op.list_op_names() if name.startswith("relax.") and name not in rules]
    return relax.transform.LegalizeOps(rules, kept)(mod)


def composed(bb: relax.BlockBuilder, call: Any) -> relax.Expr:
    """A legalisation by the operator's decomposition."""
    found = read(call)
    assert found is not None
    spec, operands, attrs = found
    assert spec.decompose is not None, spec.name
    value = spec.decompose(RelaxBuilder(bb), operands, attrs)
    return relax.Tuple(list(value)) if isinstance(value, tuple) else value
