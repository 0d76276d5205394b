"""Standard operators evaluated on the host by their OpSpec's NumPy reference, counted and timed.

Compiled code calls ``uif.host.reference(op, description, operands..., results...)``; the
description is JSON: the operator, its version, attributes, and which operands are given.
"""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from typing import Any

import numpy as np

from uif_tvm import ops
from uif_tvm.errors import EnvironmentFault, RunError, UifError
from uif_tvm.ops.spec import OpSpec
from uif_tvm.runtime import host_clock
from uif_tvm.runtime.tensors import Array, numpy_dtype, to_numpy

HOST_CALL = "uif.host.reference"

_lock = threading.Lock()
_registered = False


def register(ffi: Any) -> None:
    """Make the call known to the runtime; once per process."""
    global _registered
    with _lock:
        if not _registered:
            ffi.register_global_func(HOST_CALL, _Host(ffi).fill, override=True)
            _registered = True


@lru_cache(maxsize=1024)
def _plan(text: bytes) -> tuple[OpSpec, dict[str, Any], tuple[bool, ...]]:
    """(spec, attributes, which operands are given).

    Raises:
        EnvironmentFault: this installation has another version of the operator, or none.
    """
    data = json.loads(text)
    try:
        spec = _installed(data["op"])
    except UifError as error:
        raise EnvironmentFault(
            f"this model runs operator {data['op']!r} on the host, which is not installed here",
            code="UIF-ENV-HOST-OPS",
            op=data["op"],
            hint="install the package that brings the operator",
        ) from error
    if spec.version != data["version"]:
        raise EnvironmentFault(
            f"this model was exported with version {data['version']} of operator "
            f"{spec.name!r}; version {spec.version} is installed",
            code="UIF-ENV-HOST-OPS",
            op=spec.name,
            hint="export the model again with this version of uif",
        )
    return spec, {key: _tuples(value) for key, value in data["attrs"].items()}, tuple(data["given"])


def _installed(name: str) -> OpSpec:
    """The operator's spec; those of plug-ins are loaded where it is none of ours."""
    try:
        return ops.find(name)
    except UifError:
        from uif_tvm.frontends.extension import plugins

        plugins()
        return ops.find(name)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


class _Host:
    """The function that compiled code calls."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        self._view = ffi.get_global_func("runtime.TVMTensorCreateView")

    def fill(self, op: str, description: Any, *tensors: Any) -> None:
        """Evaluate one operator; ``tensors`` are its operands, then the results to fill."""
        source = np.from_dlpack(description)
        with host_clock.timed(source.ctypes.data, str(op)):
            spec, attrs, given = _plan(source.tobytes())
            arrays = [self._array(tensor) for tensor in tensors]
            waiting = iter(arrays)
            operands = [next(waiting) if present else None for present in given]
            values = spec.evaluate(operands, attrs)
            outs = list(waiting)
            for out, value in zip(
                outs, values if isinstance(values, tuple) else (values,), strict=True
            ):
                if out.shape != value.shape:
                    raise RunError(
                        f"host operator {op} gave shape {list(value.shape)}, "
                        f"planned {list(out.shape)}",
                        op=str(op),
                    )
                out[...] = value

    def _array(self, tensor: Any) -> Array:
        return to_numpy(self._ffi, self._view, tensor, numpy_dtype(str(tensor.dtype)))
