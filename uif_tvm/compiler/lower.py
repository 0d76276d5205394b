"""From an imported model to machine code: passes, kernels, memory plan, virtual-machine code."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar
from tvm.relax import _ffi_api as relax_ffi
from tvm.relax.expr_functor import PyExprMutator, mutator

from uif_tvm.artifact.memory_plan import MemoryPlan
from uif_tvm.compiler.codegen import KernelCompiler, buffer_bytes, kernel_key, temporary_folder
from uif_tvm.compiler.graph_pass import PassDriver
from uif_tvm.compiler.graph_view import graph
from uif_tvm.compiler.kernel_cache import CompiledKernel, KernelCache
from uif_tvm.compiler.memory.apply import planned
from uif_tvm.compiler.memory.copies import CopyKernels
from uif_tvm.compiler.memory.workspace_calls import pass_workspaces
from uif_tvm.compiler.memory_figures import planned_bytes
from uif_tvm.compiler.pipeline import passes_for, phases
from uif_tvm.compiler.report import KernelChoice
from uif_tvm.errors import CompileError, EnvironmentFault
from uif_tvm.relax_util import calls, host_function, host_op
from uif_tvm.relay_passes.fuse_kernels import MEMBERS_ATTR, SOURCES_ATTR
from uif_tvm.relay_passes.fusion_names import operator_names
from uif_tvm.relay_passes.lift_weights import WEIGHTS_ATTR

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CompiledModel:
    """Machine code and weights of one model on one target.

    Args:
        library: shared object with the kernels and the virtual machine's code.
        weights: arrays in the order of main's trailing parameter.
        memory: planned bytes by kind: see :func:`memory_figures.planned_bytes`.
        op_count: kernel calls per run.
        plan: where tensors lie, ``None`` where the virtual machine allocates them.
    """

    library: bytes
    weights: list[np.ndarray[Any, Any]]
    memory: dict[str, int]
    op_count: int
    plan: MemoryPlan | None = None


def compile_module(mod: tvm.IRModule, ctx: CompileContext, progress: Progress) -> CompiledModel:
    """Run the whole pipeline over ``mod`` for ``ctx.target``."""
    if ctx.disabled_fusion:
        ctx = replace(ctx, operators=operator_names(mod))
    driver = PassDriver(ctx)
    ctx.report.graph["before"] = graph(mod)
    stages = phases()
    for index, phase in enumerate(stages):
        progress(f"phase {index + 1} {phase.name}", index, len(stages))
        mod = driver.run(passes_for(phase, ctx), mod, phase.name)
    ctx.report.graph["after"] = graph(mod, _fused_members(mod), _fused_sources(mod))
    weights = [_array(tensor) for tensor in mod.attrs[WEIGHTS_ATTR]]
    with ctx.report.timed("kernels"):
        mod, kernels = _compile_kernels(mod, ctx, lambda d, t: progress("compile kernels", d, t))
    with ctx.report.timed("virtual machine"):
        mod, plan = _lower_main(mod, ctx, kernels)
        memory = planned_bytes(mod, weights, plan)
        ctx.report.memory.update(memory)
        progress("link", 0, 1)
        library = _link(mod, ctx, kernels)
        progress("link", 1, 1)
    op_count = sum(choice.calls for choice in ctx.report.kernels)
    return CompiledModel(library, weights, memory, op_count, plan)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


def _fused_members(mod: tvm.IRModule) -> dict[str, list[tuple[str, str]]]:
    """Fused kernel -> (kernel, source name) of each member; empty below level 2."""
    members = mod.attrs[MEMBERS_ATTR] if mod.attrs and MEMBERS_ATTR in mod.attrs else {}
    return {str(name): [(str(op), str(src)) for op, src in rows] for name, rows in members.items()}


def _fused_sources(mod: tvm.IRModule) -> dict[str, list[str]]:
    """Result of a fused call -> source names of its members; empty below level 2."""
    found = mod.attrs[SOURCES_ATTR] if mod.attrs and SOURCES_ATTR in mod.attrs else {}
    return {str(name): [str(source) for source in sources] for name, sources in found.items()}


@mutator
class _Redirect(PyExprMutator):  # type: ignore[misc]
    """Point every kernel call at the function that now holds the kernel."""

    def __init__(self, mod: tvm.IRModule, targets: dict[str, GlobalVar]) -> None:
        super().__init__(mod)
        self.targets = targets

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        head = call.args[0] if call.args else None
        if isinstance(head, GlobalVar) and head.name_hint in self.targets:
            args = [self.targets[head.name_hint], *call.args[1:]]
            return Call(call.op, args, call.attrs, call.ty_args)
        return call


def _compile_kernels(
    mod: tvm.IRModule, ctx: CompileContext, progress: Callable[[int, int], None]
) -> tuple[tvm.IRModule, list[CompiledKernel]]:
    """Compile every PrimFunc; returns main calling the unique ones by their final names."""
    members, inside = _fused_members(mod), _fused_sources(mod)
    uses: Counter[str] = Counter()
    sources: dict[str, list[str]] = defaultdict(list)
    for var, call in calls(mod):
        if call.args and isinstance(call.args[0], GlobalVar):
            name = call.args[0].name_hint
            uses[name] += 1
            one = [str(var.name)]
            sources[name] += inside.get(var.name, one) if name in members else one
    keys: dict[str, str] = {}
    unique: dict[str, tuple[str, tirx.PrimFunc]] = {}
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc) and uses[var.name_hint]:
            key = kernel_key(func, ctx.target)
            keys[var.name_hint] = key
            same = unique.setdefault(key, (var.name_hint, func))[1]
            if not tvm_ffi.structural_equal(func, same):
                # Two kernels under one 64-bit hash: the second gets a key of its own.
                keys[var.name_hint] = key = key[::-1]
                unique[key] = (var.name_hint, func)
    compiler = KernelCompiler(ctx.target, KernelCache(ctx.cache_dir))
    compiled = compiler.compile_all(unique, progress)
    ctx.report.notes.extend(compiler.crashed)
    counts: Counter[str] = Counter()
    for name, key in keys.items():
        counts[key] += uses[name]
    for key, (kernel, cached) in compiled.items():
        hint, func = unique[key]
        ctx.report.kernels.append(
            KernelChoice(
                kernel=kernel.symbol,
                ops=tuple(op for op, _ in members.get(hint, [(hint, "")])),
                sources=tuple(
                    source for name, same in keys.items() if same == key for source in sources[name]
                ),
                rule=kernel.rule,
                kind=kernel.kind,
                detail=kernel.detail,
                declined=kernel.declined,
                calls=counts[key],
                flops=kernel.flops,
                bytes=buffer_bytes(func),
                cached=cached,
            )
        )
    ctx.report.kernels += _host_kernels(mod)
    final = {}
    for key, (kernel, _) in compiled.items():
        final[key] = GlobalVar(kernel.symbol)
        relax.expr._update_type(final[key], unique[key][1].ty)
    redirect = _Redirect(mod, {name: final[key] for name, key in keys.items()})
    functions: dict[Any, Any] = {final[key]: func for key, (_, func) in unique.items()}
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            functions[var] = redirect.visit_expr(func)
    return tvm.IRModule(functions), [kernel for kernel, _ in compiled.values()]


def _host_kernels(mod: tvm.IRModule) -> list[KernelChoice]:
    """One entry per kind of operator that is called back on the host."""
    sources: dict[tuple[str, str], list[str]] = defaultdict(list)
    for var, call in calls(mod):
        function = host_function(call)
        if function is not None:
            sources[function, host_op(call)].append(var.name)
    return [
        KernelChoice(
            kernel=f"host:{op}",
            ops=(op,),
            sources=tuple(found),
            rule=function,
            kind="host",
            detail="reference evaluation on the host",
            calls=len(found),
        )
        for (function, op), found in sources.items()
    ]


def _lower_main(
    mod: tvm.IRModule, ctx: CompileContext, kernels: list[CompiledKernel]
) -> tuple[tvm.IRModule, MemoryPlan | None]:
    """Relax with kernel calls -> Relax ready for code generation, and its plan.

    Levels 0 and 1 have no plan: the virtual machine allocates each tensor, which makes them
    independent of the planner that they verify.
    """
    transform = relax.transform
    passes = [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
    ]
    late = [
        transform.LowerAllocTensor(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(emit_err_ctx=False),
        transform.AttachGlobalSymbol(),
    ]
    with tvm.target.Target(dict(ctx.target.tvm_target)):
        mod = tvm.transform.Sequential(passes)(mod)
        mod = pass_workspaces(mod, {kernel.symbol: kernel.workspace for kernel in kernels})
        mod, plan = (
            planned(mod, ctx, kernels, CopyKernels(ctx, kernels)) if ctx.level >= 2 else (mod, None)
        )
        if plan is None or plan.run_allocations:
            late.insert(1, transform.KillAfterLastUse())
        return tvm.transform.Sequential(late)(mod), plan


def _link(mod: tvm.IRModule, ctx: CompileContext, kernels: list[CompiledKernel]) -> bytes:
    """One shared object out of the kernels' objects and main's virtual-machine code."""
    target = tvm.target.Target(dict(ctx.target.tvm_target))
    builder = relax.ExecBuilder()
    leftover = relax_ffi.VMCodeGen(builder, mod)
    done = {kernel.symbol for kernel in kernels}
    # Passes after kernel selection add small helpers, for shapes computed at run time.
    helpers = {
        var: func
        for var, func in leftover.functions.items()
        if isinstance(func, tirx.PrimFunc) and var.name_hint not in done
    }
    library = tirx.build(tvm.IRModule(helpers), target=target) if helpers else None
    with temporary_folder() as folder:
        objects = []
        for kernel in kernels:
            path = folder / f"{kernel.symbol}.o"
            path.write_bytes(kernel.code)
            objects.append(tvm.runtime.load_static_library(str(path), [kernel.symbol]))
        executable = relax.vm_build.VMExecutable(
            relax_ffi.VMLink(builder, target, library, objects, {})
        )
        out = folder / "lib.so"
        try:
            executable.export_library(str(out))
        except Exception as error:
            raise _link_error(error, ctx) from error
        return out.read_bytes()


def _link_error(error: Exception, ctx: CompileContext) -> Exception:
    from tvm.support import cc

    compiler = cc.get_cc()
    if compiler is None or shutil.which(compiler) is None:
        return EnvironmentFault(
            f"linking needs a C++ compiler, and none was found: {error}",
            stage="compile",
            code="UIF-ENV-LINKER",
            target=ctx.target.id,
            hint="install g++ (Debian: apt-get install g++)",
        )
    return CompileError(
        f"linking the library failed: {error}",
        code="UIF-COMPILE-LINK",
        target=ctx.target.id,
        hint="run uif env to check the compiler",
    )
