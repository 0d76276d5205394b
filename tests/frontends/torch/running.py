"""Run a Relax module as plainly as can be: no pass of ours, the default code generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax


def build(mod: tvm.IRModule) -> Any:
    """A function of NumPy arrays that returns the list of output arrays."""
    target = tvm.target.Target({"kind": "llvm", "opt-level": 1})
    machine = relax.VirtualMachine(
        tvm.compile(relax.transform.LegalizeOps()(mod), target=target), tvm.cpu()
    )

    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        results = machine["main"](*(tvm.runtime.tensor(np.asarray(x)) for x in inputs))
        return [result.numpy() for result in results]

    return call


def run(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile and run once."""
    return build(mod)(*inputs)
