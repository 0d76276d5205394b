"""Calls pass the workspaces: ``k(x, y)  ->  w = alloc_tensor([n], uint8); k(x, y, w)``.

Comes after ``CallTIRRewrite``, so that a workspace is an allocation like any other, alive for the
one step that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar

from uif_tvm.compiler.memory.workspace import WORKSPACE
from uif_tvm.relax_util import op_name

_DYNAMIC = "relax.vm.call_tir_dyn"


def pass_workspaces(mod: tvm.IRModule, sizes: Mapping[str, int]) -> tvm.IRModule:
    """Every call of a kernel in ``sizes`` (name -> bytes) passes that much workspace."""
    if not any(sizes.values()):
        return mod
    changed = {}
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            body = _sequence(func.body, sizes)
            changed[var] = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    return tvm.IRModule({**dict(mod.functions), **changed}, attrs=mod.attrs)


def kernel_of(call: Any) -> GlobalVar | None:
    """The function of the module that ``call`` calls, with shape arguments or without."""
    if not isinstance(call, Call):
        return None
    if isinstance(call.op, GlobalVar):
        return call.op
    return call.args[0] if op_name(call) == _DYNAMIC else None


def _sequence(seq: Any, sizes: Mapping[str, int]) -> Any:
    blocks = []
    for block in seq.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If):
                branches = [_sequence(b, sizes) for b in (value.true_branch, value.false_branch)]
                branched = relax.If(value.cond, *branches)
                relax.expr._update_type(branched, value.ty)
                binding = relax.VarBinding(binding.var, branched)
            kernel = kernel_of(value)
            size = sizes.get(kernel.name_hint, 0) if kernel is not None else 0
            if size:
                made = _allocation(size)
                bindings.append(made)
                binding = relax.VarBinding(binding.var, _with(value, made.var))
            bindings.append(binding)
        blocks.append(relax.BindingBlock(bindings))
    new = relax.SeqExpr(blocks, seq.body)
    relax.expr._update_type(new, seq.ty)
    return new


def _allocation(size: int) -> Any:
    ty = relax.TensorType([size], "uint8")
    call = relax.op.builtin.alloc_tensor(relax.ShapeExpr([size]), "uint8", 0)
    relax.expr._update_type(call, ty)
    return relax.VarBinding(relax.Var(WORKSPACE, ty), call)


def _with(call: Call, workspace: Any) -> Call:
    """``call`` with one more buffer behind the others."""
    if isinstance(call.op, GlobalVar):
        new = Call(call.op, [*call.args, workspace], call.attrs, call.ty_args)
    else:
        args = call.args[1]
        fields = list(args.fields)
        # Sizes follow the buffers.
        at = len(fields) - (1 if isinstance(fields[-1], relax.ShapeExpr) else 0)
        grown = relax.Tuple([*fields[:at], workspace, *fields[at:]])
        new = Call(call.op, [call.args[0], grown, *call.args[2:]], call.attrs, call.ty_args)
    relax.expr._update_type(new, call.ty)
    return new
