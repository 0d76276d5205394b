"""Binding what a caller passes to ``Engine.run`` to the model's signature."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from uif_tvm.errors import InputError
from uif_tvm.runtime.strings import TEXT, as_text
from uif_tvm.runtime.tensors import Array, numpy_dtype, to_numpy
from uif_tvm.signature import OptionalSpec, SequenceSpec, Signature, Spec, TensorSpec, tensors


def bind(signature: Signature, args: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """The tensors that the inputs consist of (see ``signature.tensors``), in order, checked but
    not yet aligned.

    Raises:
        InputError: wrong number, names, dtypes or shapes; says what was expected.
    """
    if len(args) == 1 and not named and isinstance(args[0], Mapping):
        return bind(signature, [], args[0])
    specs = signature.inputs
    if args and named:
        raise InputError(
            f"got {len(args)} positional and {len(named)} named inputs",
            code="UIF-RUN-MIXED",
            hint="pass all inputs by position, or all by name",
        )
    values = list(args) if not named else _by_name(specs, named)
    if len(values) != len(specs):
        raise InputError(
            f"got {len(values)} inputs, the model takes {len(specs)}: {_expected(specs)}",
            code="UIF-RUN-COUNT",
            hint=f"unpack the {type(values[0]).__name__}: run(*inputs)"
            if len(values) == 1 and isinstance(values[0], list | tuple)
            else "pass one array per input, in this order, or a dict by name",
        )
    arrays: list[Array] = []
    for position, (value, spec) in enumerate(zip(values, specs, strict=True)):
        arrays.extend(_parts(value, spec, f"input {position} ({spec.name!r})"))
    flat = tuple(tensors(specs))
    _check_symbols(arrays, flat)
    _check_ranges(arrays, flat)
    return arrays


def _parts(value: Any, spec: Spec, where: str) -> Iterator[Array]:
    """The tensors that one input consists of; the structure must be the one of export."""
    if isinstance(spec, TensorSpec):
        yield _checked(value, spec, where)
    elif isinstance(spec, SequenceSpec):
        if not isinstance(value, list | tuple) or len(value) != len(spec.items):
            listed = isinstance(value, list | tuple)
            given = f"a list of {len(value)}" if listed else "no list"
            raise InputError(
                f"{where} is {given}, expected a list of {len(spec.items)}: {spec}",
                code="UIF-RUN-STRUCTURE",
                hint="export the model again with an example of this length"
                if listed
                else "pass a list with one array per item",
            )
        for number, (part, item) in enumerate(zip(value, spec.items, strict=True)):
            yield from _parts(part, item, f"{where}, item {number}")
    elif isinstance(spec, OptionalSpec):
        if (value is None) != (spec.value is None):
            raise InputError(
                f"{where} is {'absent' if value is None else 'given'}, expected {spec}",
                code="UIF-RUN-STRUCTURE",
                hint="export the model again with an example that "
                + ("leaves it out (None)" if value is None else "has it"),
            )
        if spec.value is not None:
            yield from _parts(value, spec.value, where)


def _expected(specs: Sequence[Spec]) -> str:
    return "; ".join(str(spec) for spec in specs) or "none"


def _by_name(specs: Sequence[Spec], named: Mapping[str, Any]) -> list[Any]:
    names = [spec.name for spec in specs]
    unknown = [str(name) for name in named if name not in names]
    missing = [name for name in names if name not in named]
    if unknown or missing:
        parts = []
        if missing:
            parts.append(f"missing {', '.join(map(repr, missing))}")
        for name in unknown:
            near = difflib.get_close_matches(name, names, n=1)
            parts.append(f"unknown {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        raise InputError(
            f"input names do not fit: {'; '.join(parts)}",
            code="UIF-RUN-NAMES",
            hint=f"the model takes {_expected(specs)}",
        )
    return [named[name] for name in names]


def as_array(value: Any, name: str) -> Array:
    """``value`` as an array over the same memory where that is possible.

    Takes NumPy arrays, anything with ``__dlpack__`` on the CPU (torch tensors, runtime tensors),
    array-interface objects, and plain numbers or nested lists.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise _no_array(
            value,
            name,
            "has a mask, which the model cannot see",
            hint="put numbers in place of what is masked: array.filled(value)",
        )
    if isinstance(value, np.ndarray):
        return value
    detach = getattr(value, "detach", None)
    if callable(detach):
        value = detach()  # a tensor that requires grad refuses DLPack
    if hasattr(value, "__dlpack__"):
        for read in (np.from_dlpack, _through_runtime):
            try:
                return read(value)
            except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
                continue  # a device tensor; the array protocol says best what is wrong with it
    try:
        array = np.asarray(value)
    except Exception as error:
        raise _no_array(value, name, f"cannot be read as an array: {error}") from error
    if array.dtype == object:
        raise _no_array(value, name, "is not an array of numbers")
    return array


def _through_runtime(value: Any) -> Array:
    """Elements that NumPy's DLPack does not know, such as bfloat16."""
    from uif_tvm.runtime.ffi import runtime

    ffi = runtime()
    contiguous = getattr(value, "contiguous", None)
    tensor = ffi.from_dlpack(contiguous() if callable(contiguous) else value)
    create_view = ffi.get_global_func("runtime.TVMTensorCreateView")
    return to_numpy(ffi, create_view, tensor, numpy_dtype(str(tensor.dtype)))


def _no_array(value: Any, name: str, reason: str, hint: str | None = None) -> InputError:
    return InputError(
        f"input {name!r}: {type(value).__name__} {reason}",
        code="UIF-RUN-TYPE",
        hint=hint
        or "pass a NumPy array, a CPU torch tensor, or anything with __dlpack__ on the CPU",
    )


def _texts(value: Any, where: str) -> Array:
    """``value`` as an object array of ``str``; anything nested of texts, or an array of them."""
    if not isinstance(value, np.ndarray):
        value = np.asarray(value, object)
    texts = np.empty(value.shape, object)
    try:
        texts.reshape(-1)[:] = [as_text(item) for item in value.reshape(-1)]
    except (TypeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{where} holds no text: {error}",
            code="UIF-RUN-DTYPE",
            hint="pass an array of str (dtype=object), or of UTF-8 bytes",
        ) from error
    return texts


def _checked(value: Any, spec: TensorSpec, where: str) -> Array:
    dtype = numpy_dtype(spec.dtype)
    array = _texts(value, where) if spec.dtype == TEXT else as_array(value, spec.name)
    if array.dtype != dtype:
        # Byte order is not a type, and Python's numbers have none of ours.
        untyped = not hasattr(value, "dtype") and np.can_cast(array.dtype, dtype, "same_kind")
        if not untyped and array.dtype.newbyteorder("=") != dtype:
            raise InputError(
                f"{where} has dtype {array.dtype}, expected {spec.dtype}",
                code="UIF-RUN-DTYPE",
                hint=f"convert it: array.astype({spec.dtype!r})",
            )
        array = _converted(array, dtype, where) if untyped else array.astype(dtype)
    if len(array.shape) != len(spec.shape) or any(
        isinstance(want, int) and have != want
        for have, want in zip(array.shape, spec.shape, strict=False)
    ):
        raise InputError(
            f"{where} has shape {list(array.shape)}, expected [{', '.join(map(str, spec.shape))}]",
            code="UIF-RUN-SHAPE",
            hint="reshape the input, or export the model for this shape",
        )
    return array


def _converted(array: Array, dtype: np.dtype[Any], where: str) -> Array:
    """Python's numbers in the model's type: integers exactly, floats rounded but not overflown."""
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(dtype)
        if array.dtype.kind not in "iu":
            lost = np.isfinite(array) & ~np.isfinite(made)
        elif dtype.kind in "iu":
            lost = made != array
        else:
            # Not compared as floats: that would round the integers in the same way.
            lost = made.astype(array.dtype) != array
    if lost.any():
        raise InputError(
            f"{where} holds {array[lost][0]}, which {dtype.name} cannot represent",
            code="UIF-RUN-DTYPE",
            hint=f"pass values within {dtype.name}, or export the model with a wider input type",
        )
    return made


def _check_symbols(arrays: Sequence[Array], specs: Sequence[TensorSpec]) -> None:
    """A symbolic dimension must have one value over all inputs."""
    bound: dict[str, tuple[int, str]] = {}
    for array, spec in zip(arrays, specs, strict=True):
        for have, want in zip(array.shape, spec.shape, strict=True):
            if isinstance(want, int):
                continue
            value, first = bound.setdefault(want, (have, spec.name))
            if value != have:
                raise InputError(
                    f"dimension {want!r} is {value} in {first!r} but {have} in {spec.name!r}",
                    code="UIF-RUN-SHAPE",
                    hint="inputs that share a dimension need equal lengths along it",
                )


def _check_ranges(arrays: Sequence[Array], specs: Sequence[TensorSpec]) -> None:
    """A symbolic dimension must lie in the range that the model was compiled for."""
    for array, spec in zip(arrays, specs, strict=True):
        for dim in spec.ranges:
            axis = spec.shape.index(dim.name)
            extent = array.shape[axis]
            if extent not in dim:
                most = "" if dim.maximum is None else f" to {dim.maximum}"
                raise InputError(
                    f"input {spec.name!r}: axis {axis} ({dim.name!r}) is {extent}, "
                    f"the model takes {dim.minimum}{most or ' or more'}",
                    code="UIF-RUN-RANGE",
                    hint="export the model again with a range in dynamic_shapes that holds it",
                )
