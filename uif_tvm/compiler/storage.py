"""Storage made before branches: ``if c { s = alloc } else { use s }  ->  s = alloc; if c ...``.

TVM's memory planner reuses one branch's storage in the other and after both, but leaves the
allocation in the branch where it came first: taking the other one reads a storage that never was.
Sizes of planned storages are constants, so all of them can be made at the start.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr import _update_type

from uif_tvm.relax_util import op_name

_ALLOC = "relax.memory.alloc_storage"


def hoist_storage(mod: tvm.IRModule) -> tvm.IRModule:
    """Move the allocations inside branches of ``main`` to its start.

    Comes right after memory planning, when no block is a dataflow block any more.
    """
    main = mod["main"]
    moved: list[Any] = []
    body = _without_allocs(main.body, moved, inside=False)
    if not moved:
        return mod
    first = relax.BindingBlock(moved)
    body = _typed(relax.SeqExpr([first, *body.blocks], body.body), body)
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return mod


def _without_allocs(seq: Any, moved: list[Any], *, inside: bool) -> Any:
    """``seq`` with the allocations in branches (in all of it, if ``inside``) put into ``moved``."""
    blocks = []
    for block in seq.blocks:
        kept = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if inside and isinstance(value, Call) and op_name(value) == _ALLOC:
                moved.append(binding)
                continue
            if isinstance(value, relax.If):
                branches = [
                    _without_allocs(branch, moved, inside=True)
                    for branch in (value.true_branch, value.false_branch)
                ]
                binding = relax.VarBinding(
                    binding.var, _typed(relax.If(value.cond, *branches), value)
                )
            kept.append(binding)
        blocks.append(relax.BindingBlock(kept))
    return _typed(relax.SeqExpr(blocks, seq.body), seq)


def _typed(new: Any, old: Any) -> Any:
    _update_type(new, old.ty)
    return new
