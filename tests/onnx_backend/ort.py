"""ONNX Runtime on the same tests: every type that it can take at all is given to it."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np

#: Types that its Python interface does not take as plain arrays.
LACKING = re.compile(r"bfloat16|float[468]|u?int[24]\)")


class OrtModel:
    """A session over one model."""

    def __init__(self, model: Any) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self._names = [value.name for value in model.graph.input]
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._taken = {value.name for value in self._session.get_inputs()}
        every = [*self._session.get_inputs(), *self._session.get_outputs()]
        self._plain = not any(LACKING.search(value.type) for value in every)

    def run(self, inputs: list[Any]) -> list[Any]:
        """Outputs of one run."""
        given = dict(zip(self._names, inputs, strict=False))
        given = {
            name: value if value is None or isinstance(value, list) else np.asarray(value)
            for name, value in given.items()
            if name in self._taken
        }
        if self._plain:
            return list(self._session.run(None, given))
        feeds = {name: to_ort(value) for name, value in given.items()}
        return [from_ort(value) for value in self._session.run_with_ort_values(None, feeds)]


def to_ort(array: np.ndarray[Any, Any]) -> Any:
    """An array as ORT's own value, types that NumPy lacks by their packed bytes."""
    import onnxruntime as ort
    from onnx import numpy_helper

    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    proto = numpy_helper.from_array(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), proto.data_type)
    ctypes.memmove(value.data_ptr(), proto.raw_data, len(proto.raw_data))
    return value


def from_ort(value: Any) -> Any:
    """Inverse of :func:`to_ort`."""
    from onnx import TensorProto, helper, numpy_helper

    kind = value.element_type()
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    if dtype.isbuiltin == 1:
        return value.numpy()
    proto = TensorProto(data_type=kind, dims=value.shape())
    proto.raw_data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return numpy_helper.to_array(proto)
