"""Run an imported module as plainly as can be: indices made safe, stock code generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from torch.utils import _pytree as pytree
from tvm import relax
from uif_tvm.relay_passes import safe_indexing

from tests.frontends.lowering import plain
from uif_tvm.compiler.context import CompileContext
from uif_tvm.compiler.report import ReportBuilder
from uif_tvm.frontends.imported import ImportedModel
from uif_tvm.frontends.torch import import_torch
from uif_tvm.frontends.torch.dtypes import tensor_to_numpy
from uif_tvm.target.registry import get_target


def build(mod: tvm.IRModule) -> Callable[..., list[np.ndarray]]:
    """A function of NumPy arrays that returns the list of output arrays."""
    context = CompileContext(target=get_target("cpu"), level=0, report=ReportBuilder())
    kernels = relax.transform.LegalizeOps()(safe_indexing.PASS.apply(plain(mod), context))
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(kernels, target=target), tvm.cpu())

    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        results = machine["main"](*(tvm.runtime.tensor(np.asarray(x)) for x in inputs))
        return [result.numpy() for result in results]

    return call


def run(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile and run once."""
    return build(mod)(*inputs)


class Function(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def check(
    model: Callable[..., Any], *args: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6
) -> ImportedModel:
    """Import, run and compare every output with eager PyTorch: dtype, shape and values."""
    module = model if isinstance(model, torch.nn.Module) else Function(model)
    with torch.no_grad():
        leaves = pytree.tree_leaves(module.eval()(*(a.clone() for a in args)))
    want = [tensor_to_numpy(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    imported = import_torch(module, args)
    assert len(imported.signature.inputs) == len(args)
    have = run(imported.mod, [tensor_to_numpy(a) for a in args])
    assert len(have) == len(want)
    for number, (ours, reference) in enumerate(zip(have, want, strict=True)):
        where = f"output {number}"
        assert ours.dtype == reference.dtype, where
        assert ours.shape == reference.shape, where
        np.testing.assert_allclose(ours, reference, rtol, atol, equal_nan=True, err_msg=where)
    return imported
