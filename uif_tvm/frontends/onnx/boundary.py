"""The border of an ONNX model: what its inputs and outputs are, and which values carry them.

Inside, ``main`` is a function of flat tensors in their stored types. Sequences and optionals get
the structure of the example, at import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.errors import ImportModelError, UnsupportedError, UnsupportedOp
from uif_tvm.frontends.onnx.dims import OpenDims
from uif_tvm.frontends.onnx.tensors import dtype_name
from uif_tvm.frontends.onnx.values import (
    Absent,
    Array,
    Dynamic,
    HostSequence,
    Known,
    SequenceValue,
    Symbolic,
    UnknownShapeError,
    Value,
    shape_of,
)
from uif_tvm.runtime.elements import element_name, is_stored
from uif_tvm.runtime.host_ops import element_of
from uif_tvm.signature import ListSpec, OptionalSpec, SequenceSpec, Spec, TensorSpec

if TYPE_CHECKING:
    from tvm import relax

    from uif_tvm.frontends.onnx.importer import GraphImporter

MISSING = object()
"""In place of an example that nobody gave; ``None`` is one for an optional left out."""


def examples_by_name(declared: Sequence[Any], dummy_input: Any) -> dict[str, Any]:
    """The example of each input that has one: an array, a list for a sequence, or ``None``.

    Raises:
        ImportModelError: it names no input, or the number differs.
    """
    if dummy_input is None:
        return {}
    types = {value.name: value.type for value in declared}
    if isinstance(dummy_input, Mapping):
        unknown = [name for name in dummy_input if name not in types]
        if unknown:
            raise ImportModelError(
                f"the model has no input {unknown[0]!r}; it has {', '.join(map(repr, types))}",
                code="UIF-IMPORT-INPUT",
            )
        items = dict(dummy_input)
    else:
        single = hasattr(dummy_input, "shape") or not isinstance(dummy_input, Sequence)
        values = [dummy_input] if single else list(dummy_input)
        if len(values) != len(types):
            raise ImportModelError(
                f"{len(values)} example inputs for a model with {len(types)}: "
                f"{', '.join(map(repr, types))}",
                code="UIF-IMPORT-INPUT",
            )
        items = dict(zip(types, values, strict=True))
    return {name: _example(item, types[name], name) for name, item in items.items()}


def _example(item: Any, kind: Any, name: str) -> Any:
    if kind.HasField("optional_type"):
        return None if item is None else _example(item, kind.optional_type.elem_type, name)
    if kind.HasField("sequence_type"):
        if not isinstance(item, list | tuple):
            raise _misfit(name, f"the example is a {type(item).__name__}, the model takes a list")
        return [_example(part, kind.sequence_type.elem_type, name) for part in item]
    if item is None:
        raise _misfit(name, "the example is None, the model takes a tensor")
    try:
        if hasattr(item, "__dlpack__") and not isinstance(item, np.ndarray):
            return np.from_dlpack(item.detach() if hasattr(item, "detach") else item)
        return np.asarray(item)
    except Exception as error:  # whatever the object's own code raises
        raise _misfit(
            name,
            f"the example, a {type(item).__name__}, cannot be read as an array: {error}",
            "pass a NumPy array",
        ) from error


def _misfit(name: str, text: str, hint: str | None = None) -> ImportModelError:
    return ImportModelError(f"input {name!r}: {text}", code="UIF-IMPORT-INPUT", op=name, hint=hint)


def input_specs(
    declared: Sequence[Any], examples: Mapping[str, Any], dims: OpenDims, *, given: bool
) -> list[Spec]:
    """Names, shapes and dtypes of the inputs: the model's declaration, completed by the example.

    Axes in ``dims`` keep their names; the example's extents there are only examples.

    Args:
        examples: see :func:`examples_by_name`.
        given: whether there is a dummy input at all; it must cover every input then.

    Raises:
        ImportModelError: the example lacks an input, or contradicts the declaration.
    """
    hint = (
        f"dummy_input must give {', '.join(value.name for value in declared)}, or "
        "dynamic_shapes name the open axes"
    )
    specs: list[Spec] = []
    for value in declared:
        example = examples.get(value.name, MISSING)
        if example is MISSING and (given or not _is_static(value, dims)):
            raise ImportModelError(
                f"no example for input {value.name!r}, whose shape is not static",
                code="UIF-IMPORT-INPUT",
                op=value.name,
                hint=hint,
            )
        specs.append(_spec(value.name, value.type, example, dims))
    return specs


def _is_static(value: Any, dims: OpenDims) -> bool:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return False
    return None not in _extents(value.name, value.type.tensor_type, dims)


def _extents(name: str, tensor: Any, dims: OpenDims) -> list[int | str | None]:
    named = dims.axes.get(name, {})
    fixed = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    ]
    return [named.get(axis, extent) for axis, extent in enumerate(fixed)]


def _spec(name: str, kind: Any, example: Any, dims: OpenDims) -> Spec:
    if kind.HasField("optional_type"):
        inner = kind.optional_type.elem_type
        return OptionalSpec(name, None if example is None else _spec(name, inner, example, dims))
    if kind.HasField("sequence_type"):
        inner = kind.sequence_type.elem_type
        items = (_spec(f"{name}[{i}]", inner, item, dims) for i, item in enumerate(example))
        return SequenceSpec(name, tuple(items))
    if not kind.HasField("tensor_type"):
        what = str(kind.WhichOneof("value")).removesuffix("_type")
        raise UnsupportedError(
            [UnsupportedOp(f"{what} input", 1, "no such value enters a model", (name,))],
            hint="convert it to tensors before it enters the model",
        )
    tensor = kind.tensor_type
    dtype = dtype_name(tensor.elem_type, f"input {name!r}")
    if dtype.startswith("complex"):
        raise UnsupportedError(
            [UnsupportedOp(f"{dtype} input", 1, "complex numbers have no kernels", (name,))],
            hint="pass real and imaginary parts as two tensors",
        )
    extents = _extents(name, tensor, dims)
    if example is MISSING:
        shape = tuple(extent for extent in extents if extent is not None)
        return TensorSpec(name, shape, dtype, dims.ranges(shape))
    _check_example(name, tensor, extents, dtype, example)
    named = dims.axes.get(name, {})
    kept = tuple(named.get(axis, int(extent)) for axis, extent in enumerate(example.shape))
    return TensorSpec(name, kept, dtype, dims.ranges(kept))


def _check_example(
    name: str, tensor: Any, extents: Sequence[int | str | None], dtype: str, array: Array
) -> None:
    fits = len(array.shape) == len(extents) and all(
        not isinstance(want, int) or want == have
        for want, have in zip(extents, array.shape, strict=True)
    )
    if tensor.HasField("shape") and not fits:
        wanted = ["?" if extent is None else extent for extent in extents]
        have = [int(extent) for extent in array.shape]
        raise _misfit(name, f"the example has shape {have}, the model declares {wanted}")
    if element_name(array) != dtype:
        raise _misfit(
            name,
            f"the example is {element_name(array)}, the model declares {dtype}",
            f"convert the example to {dtype}",
        )


def input_value(spec: Spec, params: Iterator[relax.Var]) -> Value:
    """What the importer knows an input as; consumes one parameter per tensor."""
    if isinstance(spec, SequenceSpec):
        return SequenceValue(tuple(input_value(item, params) for item in spec.items))
    if isinstance(spec, OptionalSpec):
        return Absent() if spec.value is None else input_value(spec.value, params)
    return Dynamic(next(params), element=spec.dtype if is_stored(spec.dtype) else None)


def example_arrays(spec: Spec, example: Any) -> Iterator[tuple[str, Array | None]]:
    """Name and example of each tensor that an input consists of."""
    if isinstance(spec, TensorSpec):
        yield spec.name, None if example is MISSING else example
    elif isinstance(spec, SequenceSpec):
        for item, part in zip(spec.items, example, strict=True):
            yield from example_arrays(item, part)
    elif isinstance(spec, OptionalSpec) and spec.value is not None:
        yield from example_arrays(spec.value, example)


def output(
    importer: GraphImporter, name: str, value: Value, kind: Any
) -> tuple[Spec, list[relax.Expr]]:
    """The spec of an output, and the tensors that it consists of.

    Args:
        kind: its declared ``TypeProto``; function bodies and old models may not declare any.

    Raises:
        UnsupportedError: even the rank of a tensor is settled at run time only.
    """
    if kind.HasField("optional_type"):
        if isinstance(value, Absent):
            return OptionalSpec(name, None), []
        spec, exprs = output(importer, name, value, kind.optional_type.elem_type)
        return OptionalSpec(name, spec), exprs
    if isinstance(value, Absent):
        return OptionalSpec(name, None), []
    if isinstance(value, SequenceValue):
        inner = kind.sequence_type.elem_type
        items: list[Spec] = []
        parts: list[relax.Expr] = []
        for number, item in enumerate(value.items):
            spec, exprs = output(importer, f"{name}[{number}]", item, inner)
            items.append(spec)
            parts.extend(exprs)
        return SequenceSpec(name, tuple(items)), parts
    if isinstance(value, Symbolic):
        expr, dtype = importer.materialise(value, name), value.dtype
    elif isinstance(value, Known):
        expr, dtype = importer.constant(value.array), value.dtype
    elif isinstance(value, Dynamic):
        expr, dtype = value.expr, value.dtype
    elif isinstance(value, HostSequence):
        return ListSpec(name, element_of(value.type_proto)), [value.expr]
    else:
        raise ImportModelError(f"output {name!r} has no value", code="UIF-IMPORT-OUTPUT", op=name)
    try:
        dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in shape_of(expr))
    except UnknownShapeError as error:
        raise UnsupportedError(
            [UnsupportedOp("tensor output", 1, str(error), (name,))],
            hint="declare the output's rank in the model",
        ) from error
    return TensorSpec(name, dims, dtype), [expr]
