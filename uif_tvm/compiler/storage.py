"""Storage made before branches: ``if c { s = alloc } else { use s }  ->  s = alloc; if c ...``.

TVM's memory planner reuses one branch's storage in the other and after both, but leaves the
allocation in the branch where it came first: taking the other one reads a storage that never was.
Allocations move before the outermost branch; where a size is only read inside of it, no other
branch can know of the storage, and it stays.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.expr import _update_type

from uif_tvm.relax_util import op_name

_ALLOC = "relax.memory.alloc_storage"


def hoist_storage(mod: tvm.IRModule) -> tvm.IRModule:
    """Move the allocations inside branches of ``main`` before the outermost branch.

    Comes right after memory planning, when no block is a dataflow block any more.
    """
    main = mod["main"]
    before = main.body
    body = _hoisted(before)
    if body is before:
        return mod
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return mod


def largest_storage(mod: tvm.IRModule) -> int:
    """Bytes of the largest planned storage of ``main`` whose size is known."""
    sizes = [0]

    def visit(node: Any) -> None:
        if isinstance(node, Call) and op_name(node) == _ALLOC:
            known = [int(n) for n in node.args[0].values if isinstance(n, tirx.IntImm)]
            sizes.extend(known)

    relax.analysis.post_order_visit(mod["main"], visit)
    return max(sizes)


def _hoisted(seq: Any) -> Any:
    """``seq``, a sequence outside of any branch, with what its branches allocate before them."""
    blocks, changed = [], False
    for block in seq.blocks:
        kept: list[Any] = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.If):
                moved: list[Any] = []
                binding = _emptied(binding, moved)
                kept += moved
                changed = changed or bool(moved)
            kept.append(binding)
        blocks.append(relax.BindingBlock(kept))
    return _typed(relax.SeqExpr(blocks, seq.body), seq) if changed else seq


def _emptied(binding: Any, moved: list[Any]) -> Any:
    """The binding of an ``If`` without the allocations in it, which are put into ``moved``."""
    value = binding.value
    branches = [
        _without_allocs(branch, moved) for branch in (value.true_branch, value.false_branch)
    ]
    return relax.VarBinding(binding.var, _typed(relax.If(value.cond, *branches), value))


def _without_allocs(seq: Any, moved: list[Any]) -> Any:
    read = _sizes_read(seq)
    blocks = []
    for block in seq.blocks:
        kept: list[Any] = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, Call) and op_name(value) == _ALLOC:
                (kept if read & _variables(value) else moved).append(binding)
                continue
            if isinstance(value, relax.If):
                inner: list[Any] = []
                binding = _emptied(binding, inner)
                for alloc in inner:
                    (kept if read & _variables(alloc.value) else moved).append(alloc)
            kept.append(binding)
        blocks.append(relax.BindingBlock(kept))
    return _typed(relax.SeqExpr(blocks, seq.body), seq)


def _variables(alloc: Call) -> set[Any]:
    """Symbolic variables in the size of an allocation."""
    return {
        var
        for size in alloc.args[0].values
        if not isinstance(size, tirx.IntImm)
        for var in tirx.analysis.undefined_vars(size)
    }


def _sizes_read(seq: Any) -> set[Any]:
    """Variables of sizes that ``seq`` itself reads out of tensors."""
    found: set[Any] = set()
    for block in seq.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                shape = getattr(binding.ty, "shape", None) or binding.ty
                found.update(
                    size for size in getattr(shape, "values", ()) if isinstance(size, tirx.Var)
                )
    return found


def _typed(new: Any, old: Any) -> Any:
    _update_type(new, old.ty)
    return new
