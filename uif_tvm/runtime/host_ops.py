"""ONNX operators that run on the host by ONNX's reference implementation, counted and timed.

Compiled code calls ``uif.host.onnx(op, model bytes, inputs..., results...)`` where the results'
shapes are known, and ``uif.host.onnx.sized(op, model bytes, inputs...)``, which returns them,
where the data decides their shapes. Tensors arrive in stored types (:mod:`runtime.elements`); the
model's inputs and outputs declare what they are. Its metadata lists how many arguments fill each
input (:data:`SLOTS`): ``[["tensor", 1], ["sequence", 3], ["list", 1], ["nothing", 0]]``.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from uif_tvm.errors import EnvironmentFault, RunError
from uif_tvm.runtime import host_clock, strings
from uif_tvm.runtime.elements import element_name, from_stored, stored_dtype, to_stored
from uif_tvm.runtime.host_control import corrected_ops
from uif_tvm.runtime.tensors import Array, aligned_empty, is_extended, numpy_dtype, to_numpy

HOST_CALL = "uif.host.onnx"
#: The variant for results whose shapes depend on the data.
SIZED_CALL = "uif.host.onnx.sized"

SLOTS = "uif.slots"
"""Metadata key of the model: per input, what fills it and how many arguments that takes."""
TENSOR, SEQUENCE, LIST, NOTHING = "tensor", "sequence", "list", "nothing"

_lock = threading.Lock()
_registered = False


def register(ffi: Any) -> None:
    """Make the calls known to the runtime; once per process.

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
            host = _Host(ffi)
            ffi.register_global_func(HOST_CALL, host.fill, override=True)
            ffi.register_global_func(SIZED_CALL, host.make, override=True)
            _registered = True


@dataclass(frozen=True)
class _Plan:
    """A model ready to be evaluated.

    Args:
        evaluator: ONNX's reference evaluator over it.
        inputs: (name, declared dtype name, what fills it, number of arguments) of each input.
        results: declared dtype name of each result.
    """

    evaluator: Any
    inputs: tuple[tuple[str, str, str, int], ...]
    results: tuple[str, ...]


@lru_cache(maxsize=1024)
def _plan(model: bytes) -> _Plan:
    import onnx

    proto = onnx.load_model_from_string(model)
    slots = json.loads(next(p.value for p in proto.metadata_props if p.key == SLOTS))
    inputs = tuple(
        (value.name, element_of(value.type), kind, count)
        for value, (kind, count) in zip(proto.graph.input, slots, strict=True)
    )
    results = tuple(element_of(value.type) for value in proto.graph.output)
    return _Plan(evaluator_of(proto), inputs, results)


def evaluator_of(proto: Any) -> Any:
    """ONNX's reference evaluator over a model, what it has wrong corrected.

    Raises:
        Exception: it lacks an operator of the model.
    """
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto, new_ops=list(corrected_ops()))


def element_of(kind: Any) -> str:
    """Declared dtype name of a tensor type, or of the items of a sequence or optional type."""
    from onnx import TensorProto, helper

    while not kind.HasField("tensor_type"):
        which = kind.WhichOneof("value")
        if which not in ("sequence_type", "optional_type"):
            raise ValueError(f"a value of type {which} cannot be exchanged with the host")
        kind = getattr(kind, which).elem_type
    code = kind.tensor_type.elem_type
    if code == TensorProto.STRING:
        return strings.TEXT
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(code)).name)


class _Host:
    """The functions that compiled code calls."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        self._view = ffi.get_global_func("runtime.TVMTensorCreateView")

    def fill(self, op: str, model: Any, *arguments: Any) -> None:
        """Evaluate one node; ``arguments`` are its inputs, then the results to fill."""
        source = np.from_dlpack(model)
        with host_clock.timed(source.ctypes.data, str(op)):
            plan = _plan(source.tobytes())
            count = sum(item[3] for item in plan.inputs)
            values = self._evaluate(str(op), plan, arguments[:count])
            for tensor, value, dtype in zip(arguments[count:], values, plan.results, strict=True):
                out = self._array(tensor, stored_dtype(dtype))
                stored = _stored(str(op), value, dtype)
                if out.shape != stored.shape:
                    raise RunError(
                        f"host operator {op} gave shape {list(stored.shape)}, "
                        f"planned {list(out.shape)}",
                        op=str(op),
                    )
                out[...] = stored

    def make(self, op: str, model: Any, *arguments: Any) -> Any:
        """Evaluate one node and return its results, a single one by itself."""
        source = np.from_dlpack(model)
        with host_clock.timed(source.ctypes.data, str(op)):
            plan = _plan(source.tobytes())
            values = self._evaluate(str(op), plan, arguments)
            made = [
                self._result(str(op), value, dtype)
                for value, dtype in zip(values, plan.results, strict=True)
            ]
            return made[0] if len(made) == 1 else self._ffi.Array(made)

    def _evaluate(self, op: str, plan: _Plan, arguments: Any) -> list[Any]:
        feeds: dict[str, Any] = {}
        given = iter(arguments)
        for name, dtype, kind, count in plan.inputs:
            taken = [next(given) for _ in range(count)]
            if kind == NOTHING:
                feeds[name] = None
            elif kind == TENSOR:
                feeds[name] = self._declared(taken[0], dtype)
            else:
                items = taken[0] if kind == LIST else taken
                feeds[name] = [self._declared(item, dtype) for item in items]
        try:
            with np.errstate(all="ignore"):
                return list(plan.evaluator.run(None, feeds))
        except Exception as error:
            raise RunError(
                f"host operator {op} failed in ONNX's reference implementation: "
                f"{type(error).__name__}: {error}",
                op=op,
                hint="check the inputs of this run against the operator's specification",
            ) from error

    def _array(self, tensor: Any, dtype: str) -> Array:
        return to_numpy(self._ffi, self._view, tensor, numpy_dtype(dtype))

    def _declared(self, tensor: Any, dtype: str) -> Array:
        # A copy: the evaluator may work in place, and the memory may be a weight's.
        stored = self._array(tensor, stored_dtype(dtype)).copy()
        return from_stored(stored, dtype, strings.current() if dtype == strings.TEXT else None)

    def _result(self, op: str, value: Any, dtype: str) -> Any:
        if isinstance(value, (list, tuple)):
            return self._ffi.Array([self._result(op, item, dtype) for item in value])
        if value is None:
            raise RunError(f"host operator {op} gave an empty optional", op=op)
        stored = _stored(op, value, dtype)
        own = aligned_empty(stored.shape, stored.dtype)
        own[...] = stored
        return self._tensor(own)

    def _tensor(self, array: Array) -> Any:
        """A tensor that owns the memory of ``array``."""
        if is_extended(array.dtype):
            bits = self._ffi.from_dlpack(array.view(np.uint16), require_contiguous=True)
            return self._view(bits, self._ffi.Shape(array.shape), array.dtype.name, 0)
        return self._ffi.from_dlpack(array, require_contiguous=True)


def _stored(op: str, value: Any, dtype: str) -> Array:
    """A result of the evaluator in the stored form of its declared type.

    Raises:
        RunError: the evaluator gave another kind of element than the model declares.
    """
    array = np.asarray(value)
    if dtype == strings.TEXT:
        return to_stored(array.astype(object), strings.current())
    if array.size == 0 and element_name(array) != dtype:  # of a loop that never ran
        array = np.empty(array.shape, _declared_dtype(dtype))
    if element_name(array) != dtype:
        wanted = _declared_dtype(dtype)
        if array.dtype.kind not in "fiub" or not np.can_cast(array.dtype, wanted, "same_kind"):
            raise RunError(f"host operator {op} gave {array.dtype} instead of {dtype}", op=op)
        array = array.astype(wanted)
    return to_stored(array)


def _declared_dtype(dtype: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
