"""PyTorch operators that run on the host by ATen, counted and timed.

Compiled code calls ``uif.host.aten(op, recipe, inputs..., results...)`` where the results' shapes
are known, and ``uif.host.aten.sized(op, recipe, inputs...)``, which returns them, where the data
decides their shapes. A recipe is JSON in UTF-8, see :func:`_value` for how arguments are written:
``{"op": "aten.cdist.default", "args": [...], "kwargs": {...}, "inputs": ["float32", ...],
"results": ["float32", ...]}``. The IR has no complex numbers: a complex tensor travels as a real
one with a trailing axis of two, and a dtype in ``inputs`` or ``results`` says that it is one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from uif_tvm.errors import EnvironmentFault
from uif_tvm.runtime import host_clock

HOST_CALL = "uif.host.aten"
#: The variant for results whose shapes depend on the data.
SIZED_CALL = "uif.host.aten.sized"

_OPERATOR = re.compile(r"[A-Za-z]\w*\.\w+\.[A-Za-z]\w*")
_lock = threading.Lock()
_registered = False


def register(ffi: Any) -> None:
    """Make the calls known to the runtime; once per process.

    Raises:
        EnvironmentFault: PyTorch, which evaluates the operators, is missing.
    """
    global _registered
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            "this model runs operators on the host through PyTorch, which is missing",
            code="UIF-ENV-HOST-OPS",
            hint="pip install 'uif[torch]', or export with fallback_mode='error' to see which",
        ) from error
    with _lock:
        if not _registered:
            ffi.register_global_func(HOST_CALL, _fill, override=True)
            ffi.register_global_func(SIZED_CALL, _sized(ffi), override=True)
            _registered = True


def overload(name: str) -> Any:
    """The operator overload of a name such as ``aten.cdist.default``.

    Raises:
        EnvironmentFault: PyTorch here has no such operator.
    """
    import torch

    found: Any = torch.ops
    if _OPERATOR.fullmatch(name):
        for part in name.split("."):
            found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise EnvironmentFault(
            f"PyTorch {torch.__version__} here has no operator {name}",
            code="UIF-ENV-HOST-OPS",
            op=name,
            hint="install the PyTorch version, or import the extension, that the model was "
            "exported with",
        )
    return found


def _fill(op: str, recipe: Any, *tensors: Any) -> None:
    """Evaluate one operator; ``tensors`` are its inputs, then the results to fill."""
    source = np.from_dlpack(recipe)
    with host_clock.timed(source.ctypes.data, str(op)):
        plan = _plan(source.tobytes())
        count = len(plan["inputs"])
        results = _evaluate(plan, tensors[:count])
        for out, value in zip(map(_view, tensors[count:]), results, strict=True):
            if out.shape != value.shape or out.dtype != value.dtype:
                raise RuntimeError(
                    f"host operator {op} gave {value.dtype}{list(value.shape)}, "
                    f"planned {out.dtype}{list(out.shape)}"
                )
            out.copy_(value)


def _sized(ffi: Any) -> Any:
    def call(op: str, recipe: Any, *tensors: Any) -> Any:
        """Evaluate one operator and return its results, a single one by itself."""
        source = np.from_dlpack(recipe)
        with host_clock.timed(source.ctypes.data, str(op)):
            results = _evaluate(_plan(source.tobytes()), tensors)
            # A copy in the layout of kernels: results may be views, and may share memory.
            made = [ffi.from_dlpack(_own(value)) for value in results]
        return made[0] if len(made) == 1 else ffi.Array(made)

    return call


def _own(value: Any) -> Any:
    import torch

    own = torch.empty(value.shape, dtype=value.dtype)
    return own.copy_(value)


@lru_cache(maxsize=1024)
def _plan(recipe: bytes) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(recipe)
    plan["function"] = overload(plan["op"])
    return plan


def _view(tensor: Any) -> Any:
    """A runtime tensor as PyTorch's, over the same memory."""
    import torch

    return torch.from_dlpack(tensor)


def _evaluate(plan: dict[str, Any], tensors: Sequence[Any]) -> list[Any]:
    """The results that the plan lists, complex ones as pairs of real numbers."""
    import torch

    inputs = [
        torch.view_as_complex(_view(tensor)) if dtype.startswith("complex") else _view(tensor)
        for tensor, dtype in zip(tensors, plan["inputs"], strict=True)
    ]
    args = [_value(arg, inputs) for arg in plan["args"]]
    kwargs = {name: _value(arg, inputs) for name, arg in plan["kwargs"].items()}
    with torch.no_grad():
        outcome = plan["function"](*args, **kwargs)
    values = list(outcome) if isinstance(outcome, (tuple, list)) else [outcome]
    results = []
    for value, dtype in zip(values, plan["results"], strict=True):
        if dtype is None:
            continue  # nothing reads it
        dense = value.detach().resolve_conj().resolve_neg()
        results.append(torch.view_as_real(dense) if dtype.startswith("complex") else dense)
    return results


def _value(arg: Any, inputs: Sequence[Any]) -> Any:
    """An argument as it was: plain JSON values stand for themselves, the rest is tagged.

    ``{"tensor": 0}`` is an input; ``{"item": 1}`` the whole number in an input;
    ``{"dtype": "float32"}``, ``{"layout": "strided"}``, ``{"memory_format": ...}``, ``{"device":
    "cpu"}`` are PyTorch's objects; ``{"float": "inf"}`` and ``{"complex": ["1.0", "nan"]}``
    numbers that JSON lacks.
    """
    import torch

    if isinstance(arg, list):
        return [_value(item, inputs) for item in arg]
    if not isinstance(arg, dict):
        return arg
    ((kind, what),) = arg.items()
    if kind == "tensor":
        return inputs[what]
    if kind == "item":
        return int(inputs[what])
    if kind == "float":
        return float(what)
    if kind == "complex":
        return complex(float(what[0]), float(what[1]))
    if kind == "device":
        return torch.device("cpu")
    if kind in ("dtype", "layout", "memory_format"):
        return getattr(torch, what)
    raise ValueError(f"recipe with an argument of kind {kind!r}")
