"""Kernels that copy tensors between memories, compiled like any other kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from tvm import relax, te, tirx
from tvm.ir import GlobalVar

from uif_tvm.compiler.codegen import KernelCompiler, buffer_bytes, kernel_key
from uif_tvm.compiler.kernel_cache import CompiledKernel, KernelCache
from uif_tvm.compiler.report import KernelChoice

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext


class CopyKernels:
    """The kernels of the transfers of one module.

    Args:
        kernels: what has been compiled so far; new kernels are added.
    """

    def __init__(self, ctx: CompileContext, kernels: list[CompiledKernel]) -> None:
        self._ctx, self._kernels = ctx, kernels
        self._made: dict[tuple[Any, ...], tuple[GlobalVar, tirx.PrimFunc]] = {}
        self._rows: dict[str, KernelChoice] = {}
        self._values: dict[str, list[str]] = {}

    @property
    def functions(self) -> dict[GlobalVar, tirx.PrimFunc]:
        """All kernels made."""
        return dict(self._made.values())

    def kernel(self, name: str, value: str, shape: tuple[int, ...], dtype: str) -> GlobalVar:
        """The kernel for one transfer.

        Args:
            name: says between which tiers; its symbol begins with it.
            value: what is copied, for the report.
        """
        key = (name, shape, dtype)
        if key not in self._made:
            self._made[key] = self._compile(name, _copy(shape, dtype))
        symbol = self._made[key][0].name_hint
        self._values.setdefault(symbol, []).append(value)
        return self._made[key][0]

    def record(self) -> None:
        """Put the kernels into the report, with their calls."""
        for symbol, row in self._rows.items():
            values = self._values[symbol]
            self._ctx.report.kernels.append(replace(row, sources=tuple(values), calls=len(values)))

    def _compile(self, name: str, func: tirx.PrimFunc) -> tuple[GlobalVar, tirx.PrimFunc]:
        # The name belongs to the key: equal copies between other tiers are told apart.
        key = blake3(f"{kernel_key(func, self._ctx.target)} {name}".encode()).hexdigest()[:32]
        compiler = KernelCompiler(self._ctx.target, KernelCache(self._ctx.cache_dir))
        kernel, cached = compiler.compile_all({key: (name, func)}, lambda done, total: None)[key]
        self._ctx.report.notes.extend(compiler.crashed)
        self._kernels.append(kernel)
        self._rows[kernel.symbol] = KernelChoice(
            kernel=kernel.symbol,
            ops=(name,),
            rule=kernel.rule,
            kind=kernel.kind,
            detail=kernel.detail,
            declined=kernel.declined,
            bytes=buffer_bytes(func),
            cached=cached,
        )
        var = GlobalVar(kernel.symbol)
        relax.expr._update_type(var, func.ty)
        return var, func


def _copy(shape: tuple[int, ...], dtype: str) -> tirx.PrimFunc:
    """All elements of one tensor to another."""
    source = te.placeholder(shape, dtype, name="source")
    copied = te.compute(shape, lambda *at: source(*at), name="transfer")
    return te.create_prim_func([source, copied])
