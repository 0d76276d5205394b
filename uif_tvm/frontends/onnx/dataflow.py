"""Cutting ``main`` into dataflow blocks.

Passes may reorder a dataflow block by the values its bindings use, and do not count the symbolic
dimensions as values. So what defines or checks dimensions stands between blocks, and everything
that uses a dimension comes after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import relax
from tvm.ir import Call, GlobalVar
from tvm.relax.expr import _update_type

from uif_tvm.relax_util import op_name

if TYPE_CHECKING:
    import tvm


def cut_into_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """``main`` with its pure bindings in dataflow blocks, also inside the branches of ``If``."""
    main = mod["main"]
    body = _cut(main.body)
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return relax.transform.CanonicalizeBindings()(mod)


def _cut(seq: relax.SeqExpr) -> relax.SeqExpr:
    blocks: list[relax.BindingBlock] = []
    pure: list[Any] = []

    def close() -> None:
        if pure:
            blocks.append(relax.DataflowBlock(list(pure)))
            pure.clear()

    for block in seq.blocks:
        for binding in block.bindings:
            if _is_boundary(binding):
                close()
                blocks.append(relax.BindingBlock([_inner(binding)]))
            else:
                pure.append(binding)
    close()
    result = relax.SeqExpr(blocks, seq.body)
    _update_type(result, seq.ty)
    return result


def _is_boundary(binding: Any) -> bool:
    if isinstance(binding, relax.MatchCast):
        return True
    value = binding.value
    if isinstance(value, relax.If | relax.ShapeExpr):
        return True
    if not isinstance(value, Call):
        return False
    return isinstance(value.op, GlobalVar) or op_name(value) == "relax.tensor_to_shape"


def _inner(binding: Any) -> Any:
    value = getattr(binding, "value", None)
    if not isinstance(value, relax.If) or isinstance(binding, relax.MatchCast):
        return binding
    changed = relax.If(value.cond, _cut(value.true_branch), _cut(value.false_branch))
    _update_type(changed, value.ty)
    return relax.VarBinding(binding.var, changed)
