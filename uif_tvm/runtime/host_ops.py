"""Operators that run on the host by ONNX's reference implementation, counted and timed.

Compiled code calls ``uif.host.onnx(op, model bytes, inputs..., outputs...)``; see the frontend's
host module for who emits it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from uif_tvm.errors import EnvironmentFault

HOST_CALL = "uif.host.onnx"

_lock = threading.Lock()
_registered = False
_spent: dict[int, dict[str, float]] = {}


def register(ffi: Any) -> None:
    """Make the call known to the runtime; once per process.

    Raises:
        EnvironmentFault: the ``onnx`` package, which evaluates the operators, is missing.
    """
    global _registered
    try:
        import onnx.reference  # noqa: F401
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            "this model runs operators on the host through the onnx package, which is missing",
            code="UIF-ENV-HOST-OPS",
            hint="pip install 'uif[onnx]', or export with fallback_mode='error' to see which",
        ) from error
    with _lock:
        if not _registered:
            ffi.register_global_func(HOST_CALL, _call, override=True)
            _registered = True


def seconds_by_op(addresses: Iterable[int]) -> dict[str, float]:
    """Seconds spent per operator in calls whose model lies at one of ``addresses``.

    Every engine maps its weights, models included, to addresses of its own.
    """
    total: dict[str, float] = {}
    with _lock:
        for address in addresses:
            for op, seconds in _spent.get(address, {}).items():
                total[op] = total.get(op, 0.0) + seconds
    return total


def forget(addresses: Iterable[int]) -> None:
    """Start the clocks of ``addresses`` anew: a freed engine may have lived there before."""
    with _lock:
        for address in addresses:
            _spent.pop(address, None)


@lru_cache(maxsize=1024)
def _evaluator(model: bytes) -> tuple[Any, tuple[str, ...]]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load_model_from_string(model)
    return ReferenceEvaluator(proto), tuple(value.name for value in proto.graph.input)


def _call(op: str, model: Any, *tensors: Any) -> None:
    """Evaluate one node; ``tensors`` are its inputs, then the results to fill."""
    start = time.perf_counter()
    source = np.from_dlpack(model)
    evaluator, names = _evaluator(source.tobytes())
    arrays = [np.from_dlpack(tensor) for tensor in tensors]
    with np.errstate(all="ignore"):
        results = evaluator.run(None, dict(zip(names, arrays, strict=False)))
    for out, value in zip(arrays[len(names) :], results, strict=True):
        if out.shape != np.shape(value):
            raise RuntimeError(
                f"host operator {op} gave shape {list(np.shape(value))}, planned {list(out.shape)}"
            )
        out[...] = value
    with _lock:
        spent = _spent.setdefault(source.ctypes.data, {})
        spent[str(op)] = spent.get(str(op), 0.0) + time.perf_counter() - start
