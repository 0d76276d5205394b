"""Inputs that were not given, and results that nobody could compute: values of the right type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uif_tvm.errors import ImportModelError
from uif_tvm.selection.arrays import Array, dtype_name, named_dtype
from uif_tvm.selection.onnx_node import Operand, Value, element_type


def complete(declared: Sequence[Any], given: Mapping[str, Array]) -> dict[str, Array]:
    """A value for every input: the one given, else one made up for its static shape.

    Raises:
        ImportModelError: an input that the model does not have, that contradicts its declaration,
            or whose shape is open and for which none is given; one that is no tensor.
    """
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    names = [value.name for value in declared]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise _misfit(unknown[0], f"the model has no such input; it has {', '.join(names)}")
    feeds: dict[str, Array] = {}
    for value in declared:
        if not value.type.HasField("tensor_type"):
            raise _misfit(value.name, "is no tensor, and nothing else can be made up")
        tensor = value.type.tensor_type
        dims = [_extent(d) for d in tensor.shape.dim]
        array = given.get(value.name)
        if array is None:
            if None in dims or not tensor.HasField("shape"):
                raise _misfit(value.name, "has an open shape, and no value was given for it")
            dtype = numpy_dtype(tensor.elem_type, f"input {value.name!r}")
            feeds[value.name] = made_up(dims, dtype.name)
            continue
        fits = len(dims) == array.ndim and all(
            dim in (None, extent) for dim, extent in zip(dims, array.shape, strict=False)
        )
        if tensor.HasField("shape") and not fits:
            raise _misfit(value.name, f"was given with shape {list(array.shape)}, not {dims}")
        if element_type(array) != tensor.elem_type:
            raise _misfit(value.name, f"was given as {dtype_name(array)}, another element type")
        feeds[value.name] = array
    return feeds


def _misfit(name: str, text: str) -> ImportModelError:
    return ImportModelError(
        f"input {name!r} {text}",
        code="UIF-IMPORT-INPUT",
        op=name,
        hint="give its value (--input), or its shape (--input-shape)",
    )


def _extent(dim: Any) -> int | None:
    """A dimension of a declared shape; ``None`` where it is open, as negative ones are too."""
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def made_up(shape: Any, dtype: str, seed: int = 0) -> Array:
    """Values for which nothing is known: normal floats, and integers that are valid indices."""
    extents = tuple(extent if isinstance(extent, int) else 1 for extent in shape)
    kind = named_dtype(dtype)
    rng = np.random.default_rng(seed)
    if kind.kind == "b":
        return np.ones(extents, kind)
    if kind.kind in "iu":
        return rng.integers(0, 2, extents).astype(kind)
    return np.asarray(rng.standard_normal(extents)).astype(kind)


class Guesses:
    """Made-up values for results that nobody could compute, by ONNX's shape inference."""

    def __init__(self, proto: Any, feeds: Mapping[str, Array]) -> None:
        self._proto = proto
        self._feeds = feeds
        self._types: dict[str, Any] | None = None

    def __call__(self, name: str, node: Any, operands: Sequence[Operand | None]) -> Value | None:
        """A value of the inferred type and shape, ``None`` where these are not known.

        An operator that ONNX does not define is taken to keep the type and shape of its first
        operand, as activations do: what follows is then tried on values that are made up anyway.
        """
        if self._types is None:
            self._types = self._infer()
        known = self._declared(name)
        if known is not None:
            return made_up(*known)
        first = operands[0].value if operands and operands[0] is not None else None
        foreign = node.domain not in ("", "ai.onnx", "ai.onnx.ml")
        if not foreign or name != node.output[0] or not isinstance(first, np.ndarray):
            return None
        return None if dtype_name(first) == "string" else made_up(first.shape, dtype_name(first))

    def _declared(self, name: str) -> tuple[list[int], str] | None:
        from uif_tvm.frontends.onnx.tensors import numpy_dtype

        kind = (self._types or {}).get(name)
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
            return None
        tensor = kind.tensor_type
        extents = [_extent(dim) for dim in tensor.shape.dim]
        settled = [extent for extent in extents if extent is not None]
        if not tensor.HasField("shape") or len(settled) < len(extents):
            return None
        return settled, numpy_dtype(tensor.elem_type, f"value {name!r}").name

    def _infer(self) -> dict[str, Any]:
        import onnx

        copy = onnx.ModelProto()
        copy.CopyFrom(self._proto)
        for value in copy.graph.input:
            if value.name in self._feeds:
                shape = value.type.tensor_type.shape
                del shape.dim[:]
                for extent in self._feeds[value.name].shape:
                    shape.dim.add().dim_value = int(extent)
        try:
            copy = onnx.shape_inference.infer_shapes(copy, data_prop=True)
        except Exception:  # a model too large or too odd for it: what it declares remains
            copy = self._proto
        values = [*copy.graph.value_info, *copy.graph.output]
        return {value.name: value.type for value in values}
