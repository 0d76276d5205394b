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
    sizes = {name: size for name, size in sizes.items() if size}
    if not sizes:
        return mod
    # What a call may pass is checked against the type of the function's name.
    names = {
        var.name_hint: _grown(var, sizes[var.name_hint])
        for var in mod.functions
        if var.name_hint in sizes
    }
    functions = {}
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            body = _Pass(sizes, names).sequence(func.body)
            func = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        functions[names.get(var.name_hint, var)] = func
    return tvm.IRModule(functions, attrs=mod.attrs)


def kernel_of(call: Any) -> GlobalVar | None:
    """The function of the module that ``call`` calls, with shape arguments or without."""
    if not isinstance(call, Call):
        return None
    if isinstance(call.op, GlobalVar):
        return call.op
    return call.args[0] if op_name(call) == _DYNAMIC else None


def _grown(var: GlobalVar, size: int) -> GlobalVar:
    """The name of a kernel that takes a workspace besides what ``var`` takes."""
    ty = var.ty
    grown = GlobalVar(var.name_hint)
    workspace = relax.TensorType([size], "uint8")
    relax.expr._update_type(grown, relax.FuncType([*ty.params, workspace], ty.ret, ty.purity))
    return grown


class _Pass:
    def __init__(self, sizes: Mapping[str, int], names: Mapping[str, GlobalVar]) -> None:
        self._sizes, self._names = sizes, names

    def sequence(self, seq: Any) -> Any:
        """``seq`` with workspaces made before the calls that need one."""
        blocks = []
        for block in seq.blocks:
            bindings: list[Any] = []
            for binding in block.bindings:
                value = binding.value
                kernel = kernel_of(value)
                if isinstance(value, relax.If):
                    branches = [self.sequence(b) for b in (value.true_branch, value.false_branch)]
                    branched = relax.If(value.cond, *branches)
                    relax.expr._update_type(branched, value.ty)
                    binding = relax.VarBinding(binding.var, branched)
                elif kernel is not None and kernel.name_hint in self._sizes:
                    made = _allocation(self._sizes[kernel.name_hint])
                    bindings.append(made)
                    call = _with(value, self._names[kernel.name_hint], made.var)
                    binding = relax.VarBinding(binding.var, call)
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


def _with(call: Call, kernel: GlobalVar, workspace: Any) -> Call:
    """``call`` of ``kernel`` with one more buffer behind the others."""
    if isinstance(call.op, GlobalVar):
        new = Call(kernel, [*call.args, workspace], call.attrs, call.ty_args)
    else:
        *buffers, symbols = call.args[1].fields
        passed = relax.Tuple([*buffers, workspace, symbols])
        new = Call(call.op, [kernel, passed, *call.args[2:]], call.attrs, call.ty_args)
    relax.expr._update_type(new, call.ty)
    return new
