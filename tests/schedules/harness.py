"""Shared by schedule tests: targets with given machines, building and running one kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from uif_tvm.targets.cpu.target import create

from uif_tvm.compiler import tir_pipeline
from uif_tvm.target.spec import Machine, Refusal, TargetSpec

KIB, MIB = 1 << 10, 1 << 20
#: Machines to schedule for. All run on any host: LLVM splits vectors that are too wide.
WIDE = Machine(64, 32, 48 * KIB, MIB, 32 * MIB, cores=2)
MIDDLE = Machine(32, 16, 32 * KIB, 512 * KIB, 16 * MIB, cores=4)
NARROW = Machine(16, 16, 32 * KIB, 256 * KIB, 8 * MIB, cores=1)
MACHINES = (WIDE, MIDDLE, NARROW)

Array = np.ndarray[Any, Any]


@cache
def host_spec(machine: Machine) -> TargetSpec:
    """The host's target with another machine to schedule for."""
    return dataclasses.replace(create(), machine=machine)


@cache
def host_target() -> tvm.target.Target:
    """What code is generated for in tests that run it."""
    return tvm.target.Target(dict(create().tvm_target))


def build(func: tirx.PrimFunc) -> Callable[..., None]:
    """Machine code of one kernel."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tirx.build(module, target=host_target(), pipeline=tir_pipeline.register())["main"]


def assembly(func: tirx.PrimFunc, mcpu: str) -> str:
    """Assembly of one kernel for another processor; nothing is run."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    return str(
        tirx.build(module, target=target, pipeline=tir_pipeline.register()).inspect_source("s")
    )


def run(func: tirx.PrimFunc, inputs: Sequence[Array], shape: Sequence[int], dtype: str) -> Array:
    """Result of one kernel with one result buffer, which starts out as garbage."""
    garbage = np.full(shape, 77, dtype)
    out = tvm.runtime.tensor(garbage)
    build(func)(*[tvm.runtime.tensor(np.ascontiguousarray(x)) for x in inputs], out)
    return out.numpy()


def scheduled(rule: Any, func: tirx.PrimFunc, machine: Machine = WIDE) -> tirx.PrimFunc:
    """``func`` scheduled by ``rule``, which must take it."""
    result = rule.apply(func, host_spec(machine))
    assert not isinstance(result, Refusal), result
    return result.func


def placeholder(*shape: Any, name: str = "x", dtype: str = "float32") -> te.Tensor:
    """A TE input with 64-bit extents, as Relax makes them."""
    from uif_tvm.kernels.matmul import shape64

    return te.placeholder(shape64(*shape), dtype, name=name)


def run_module(
    mod: tvm.IRModule, inputs: Sequence[Array], transform: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> list[Array]:
    """Run ``main`` of a legalised module with ``transform`` applied to every kernel."""
    functions: Mapping[Any, Any] = dict(mod.functions)
    mod = tvm.IRModule(
        {
            var: transform(func) if isinstance(func, tirx.PrimFunc) else func
            for var, func in functions.items()
        }
    )
    library = relax.build(
        mod, host_target(), relax_pipeline="default_build", tir_pipeline=tir_pipeline.register()
    )
    machine = relax.VirtualMachine(library, tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(x) for x in inputs])
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [tensor.numpy() for tensor in results]
