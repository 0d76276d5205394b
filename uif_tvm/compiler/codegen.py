"""Kernels to object code: select a schedule, lower, generate, cache.

Kernels are named by their content, so equal kernels of one model are compiled once and equal
kernels of two models share a cache entry.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from blake3 import blake3
from tvm import s_tir, tirx

from uif_tvm.compiler import tir_pipeline
from uif_tvm.compiler.fingerprint import toolchain
from uif_tvm.compiler.kernel_cache import CompiledKernel, KernelCache
from uif_tvm.compiler.memory.workspace import Lifted, lifting
from uif_tvm.compiler.select import select
from uif_tvm.errors import EnvironmentFault
from uif_tvm.runtime.host import available_cores
from uif_tvm.target.spec import dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.target.spec import TargetSpec

_READABLE = 48
#: What LLVM says of its own result: its vectoriser of straight code sometimes makes invalid code
#: of short sums in bfloat16. Without that step, at level 1, the same kernel compiles.
_INVALID = "LLVM module verification failed"
_AT_LEVEL_1 = "; compiled at LLVM's level 1, whose default made invalid code of it"


def kernel_key(func: tirx.PrimFunc, target: TargetSpec) -> str:
    """Digest of everything the object code depends on.

    TVM's structural hash sees neither the names of blocks, which some rules go by, nor the sign
    of a zero; both are added.
    """
    bare = func.without_attr("global_symbol") if "global_symbol" in func.attrs else func
    buffers = [
        (str(param.dtype), [str(extent) for extent in param.shape]) for param in buffers_of(bare)
    ]
    parts = {
        "func": tvm_ffi.structural_hash(bare),
        "details": _details(bare),
        "buffers": buffers,
        "target": dict(target.tvm_target),
        "machine": repr(target.machine),
        "schedules": target.schedule_version,
        "toolchain": toolchain(target),
    }
    return blake3(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _details(func: tirx.PrimFunc) -> list[str]:
    """Block names and floating-point constants, in order."""
    found: list[str] = []

    def block(node: Any) -> None:
        found.append(str(node.name_hint))

    def constant(node: Any) -> None:
        found.append(repr(float(node.value)))

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, block), (tirx.FloatImm, constant)])
    return found


def kernel_symbol(hint: str, key: str) -> str:
    """Readable and unique: the fused operators, then the head of the key."""
    readable = re.sub(r"[^A-Za-z0-9_]", "_", hint.removeprefix("fused_"))[:_READABLE].strip("_")
    return f"{readable}_{key[:12]}"


class KernelCompiler:
    """Compiles PrimFuncs for one target, through the cache."""

    def __init__(self, target: TargetSpec, cache: KernelCache) -> None:
        self._spec = target
        self._target = tvm.target.Target(dict(target.tvm_target))
        self._cache = cache
        #: Faults of schedule rules that a later rule made good, one sentence each.
        self.crashed: list[str] = []
        self._plain: set[str] = set()

    def compile_all(
        self,
        funcs: dict[str, tuple[str, tirx.PrimFunc]],
        progress: Callable[[int, int], None],
    ) -> dict[str, tuple[CompiledKernel, bool]]:
        """Compile ``{key: (name hint, func)}``; returns ``{key: (kernel, came from cache)}``."""
        done: dict[str, tuple[CompiledKernel, bool]] = {}
        pool = ThreadPoolExecutor(available_cores(), "uif-compile")
        try:
            futures = {
                key: pool.submit(self._one, key, hint, func) for key, (hint, func) in funcs.items()
            }
            for key, future in futures.items():
                done[key] = future.result()
                progress(len(done), len(funcs))
        finally:
            # After an error or an interrupt nothing is left to wait for but what runs already.
            pool.shutdown(cancel_futures=True)
        if not all(cached for _, cached in done.values()):
            self._cache.prune()
        return done

    def _one(self, key: str, hint: str, func: tirx.PrimFunc) -> tuple[CompiledKernel, bool]:
        cached = self._cache.get(key)
        if cached is not None:
            return cached, True
        symbol = kernel_symbol(hint, key)
        flops = estimate_flops(func)
        with lifting(self._spec.machine.cores) as lifted:
            choice = select(
                func, symbol, self._spec, lambda made: self.object_code(made, symbol, lifted)
            )
        self.crashed += [f"kernel {symbol}: {text}" for text in choice.crashed]
        kernel = CompiledKernel(
            code=choice.code,
            symbol=symbol,
            rule=choice.rule.name,
            kind=choice.rule.kind,
            detail=choice.scheduled.detail + (_AT_LEVEL_1 if symbol in self._plain else ""),
            declined=choice.declined + choice.crashed,
            flops=flops,
            workspace=lifted.workspace,
            run_allocations=lifted.left,
        )
        if not choice.crashed:  # a crash may be of today only, such as memory running out
            self._cache.put(key, kernel)
        return kernel, False

    def object_code(self, func: tirx.PrimFunc, symbol: str, lifted: Lifted) -> bytes:
        """Relocatable object with ``func`` under ``symbol``; ``lifted`` tells what it takes."""
        lifted.workspace = lifted.left = 0  # an earlier attempt may have left its own
        module = tvm.IRModule({symbol: func.with_attr("global_symbol", symbol)})
        pipeline = tir_pipeline.register()
        try:
            library = tirx.build(module, target=self._target, pipeline=pipeline)
        except Exception as error:
            if _INVALID not in str(error) or "opt-level" in self._spec.tvm_target:
                raise
            plain = tvm.target.Target({**dict(self._spec.tvm_target), "opt-level": 1})
            lifted.workspace = lifted.left = 0
            library = tirx.build(module, target=plain, pipeline=pipeline)
            self._plain.add(symbol)
        with temporary_folder() as folder:
            path = folder / "kernel.o"
            library.write_to_file(str(path))
            return path.read_bytes()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the files that TVM and the linker exchange, gone afterwards.

    Raises:
        EnvironmentFault: the disk does not take them.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="uif-") as folder:
            yield Path(folder)
    except OSError as error:
        raise EnvironmentFault(
            f"temporary files cannot be written: {error.strerror or error}",
            stage="compile",
            code="UIF-ENV-TEMP",
            hint="free disk space, or set TMPDIR to a writable folder",
        ) from error


def estimate_flops(func: tirx.PrimFunc) -> float:
    """Arithmetic operations of one call; 0 where the analysis cannot tell (dynamic shapes)."""
    try:
        return float(tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": func})))
    except Exception:
        return 0.0


def buffers_of(func: tirx.PrimFunc) -> list[Any]:
    """The parameters of ``func`` that are buffers."""
    return [param for param in func.params if isinstance(param.ty, tirx.buffer.BufferType)]


def buffer_bytes(func: tirx.PrimFunc) -> float:
    """Bytes of all parameters: what the kernel must at least read and write."""
    total = 0.0
    for buffer in buffers_of(func):
        extent = 1
        for size in buffer.shape:
            extent *= int(size.value) if isinstance(size, tirx.IntImm) else 1
        total += extent * dtype_bytes(str(buffer.dtype))
    return total
