"""Results of a run: memory that compiled code writes into, and arrays that own what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from uif_tvm.artifact.memory_plan import MemoryPlan, ResultTensor
from uif_tvm.artifact.strictjson import REGET
from uif_tvm.errors import ArtifactError, InputError
from uif_tvm.runtime.elements import from_stored, stored_dtype
from uif_tvm.runtime.strings import TEXT, Strings
from uif_tvm.runtime.tensors import ALIGNMENT, Array, aligned_empty, numpy_dtype
from uif_tvm.runtime.vm import Machine
from uif_tvm.signature import Leaf, ListSpec, Spec, TensorSpec, leaves


class Results:
    """How the outputs of one model become arrays.

    Args:
        parts: the tensors and lists that the outputs consist of, in order.
        plan: the memory plan, if there is one.
        array: makes an array over a runtime tensor of the given dtype.
        weights: addresses of the weights.

    Raises:
        ArtifactError: the plan's results are not the model's outputs.
    """

    def __init__(
        self,
        parts: Sequence[Leaf],
        plan: MemoryPlan | None,
        array: Callable[[Any, np.dtype[Any]], Array],
        weights: set[int],
    ) -> None:
        self._leaves = list(parts)
        self._planned = list(plan.results) if plan else [None] * len(self._leaves)
        self._array, self._weights = array, weights
        if len(self._planned) != len(self._leaves):
            _unfit(f"it has {len(self._planned)} results, the model {len(self._leaves)}")
        for leaf, planned in zip(self._leaves, self._planned, strict=True):
            if planned is not None:
                _check_fits(leaf, planned)

    def begin(self, given: Sequence[Array | None] | None) -> RunResults:
        """Memory for the results of one run.

        Args:
            given: arrays of the caller, one per leaf, ``None`` where there is none.
        """
        wanted = given if given is not None else [None] * len(self._leaves)
        written: list[Array | None] = []
        for leaf, planned, own in zip(self._leaves, self._planned, wanted, strict=True):
            if planned is None:
                written.append(None)
            elif own is not None and _takes(own, leaf):
                written.append(own)
            else:
                written.append(aligned_empty(planned.shape, numpy_dtype(planned.dtype)))
        return RunResults(written, wanted)

    def collect(
        self,
        run: RunResults,
        returned: Any,
        machine: Machine,
        texts: Strings,
        inputs: Sequence[Array],
    ) -> list[Any]:
        """The value of each leaf.

        A returned tensor is copied where its memory is an arena's, an input's, a weight's or
        another result's: models return such tensors as they are or reshaped; either way the
        address is the same.

        Args:
            returned: what compiled code returned.
            inputs: what the run read.
        """
        taken: set[int] = set()
        if None in self._planned:  # else nothing is returned that could lie in them
            taken.update(array.ctypes.data for array in (*inputs, *run.memory))
        waiting = iter(returned)
        values: list[Any] = []
        for leaf, written, own in zip(self._leaves, run.written, run.given, strict=True):
            if written is None:
                value = self._value(next(waiting), leaf, texts, taken, machine, run)
            else:
                value = _declared(written, leaf, texts)
            if own is not None and own is not written:
                value = _copied_into(own, value, leaf)
            values.append(value)
        return values

    def _value(
        self,
        result: Any,
        leaf: Leaf,
        texts: Strings,
        taken: set[int],
        machine: Machine,
        run: RunResults,
    ) -> Any:
        if isinstance(leaf, ListSpec):
            item = TensorSpec(leaf.name, (), leaf.dtype)
            return [self._value(part, item, texts, taken, machine, run) for part in result]
        array = self._array(result, numpy_dtype(stored_dtype(leaf.dtype)))
        address = array.ctypes.data
        if address in taken or address in self._weights or machine.holds(address):
            array = array.copy()
        run.other_bytes += array.nbytes
        taken.add(address)
        return from_stored(array, leaf.dtype, texts)


@dataclass
class RunResults:
    """Results of one run.

    Args:
        written: per leaf, the memory that compiled code writes it to, in the plan's form.
        given: per leaf, the caller's array.
        other_bytes: bytes of the results that are not written that way.
    """

    written: list[Array | None]
    given: Sequence[Array | None]
    other_bytes: int = 0

    @property
    def memory(self) -> list[Array]:
        """The arrays that compiled code gets, in order."""
        return [array for array in self.written if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all results, the caller's memory included."""
        return self.other_bytes + sum(array.nbytes for array in self.memory)


def given_arrays(outputs: Sequence[Spec], out: Any, inputs: Sequence[Array]) -> list[Array | None]:
    """The caller's arrays for the outputs, in order, checked.

    Args:
        out: a list in order, or a dict by name; ``None`` for what the engine shall make.
        inputs: what the run reads.

    Raises:
        InputError: they do not fit the outputs, cannot be written, or share memory.
    """
    listed = _in_order(outputs, out)
    arrays: list[Array | None] = []
    for spec, array in zip(outputs, listed, strict=True):
        if not isinstance(spec, TensorSpec):
            if array is not None:
                _refuse(f"output {spec.name!r} is no tensor, but {spec}", "leave it out (None)")
            arrays += [None] * len(list(leaves((spec,))))
            continue
        if array is not None:
            _check_given(spec, array)
            for other in (*inputs, *(each for each in arrays if each is not None)):
                if np.may_share_memory(array, other):
                    _refuse(
                        f"the array for output {spec.name!r} shares memory with an input or with "
                        "another output's",
                        "pass arrays of their own: engine.empty_outputs() makes them",
                    )
        arrays.append(array)
    return arrays


def empty_outputs(outputs: Sequence[Spec]) -> list[Array | None]:
    """Arrays that compiled code can write to directly; ``None`` where a size is open."""
    made: list[Array | None] = []
    for spec in outputs:
        shape = getattr(spec, "shape", ("?",))
        known = [extent for extent in shape if isinstance(extent, int)]
        if not isinstance(spec, TensorSpec) or len(known) < len(shape) or spec.dtype == TEXT:
            made.append(None)
        else:
            made.append(aligned_empty(tuple(known), numpy_dtype(spec.dtype)))
    return made


def _in_order(outputs: Sequence[Spec], out: Any) -> list[Any]:
    if isinstance(out, Mapping):
        names = [spec.name for spec in outputs]
        if unknown := [name for name in out if name not in names]:
            _refuse(f"there is no output {unknown[0]!r}", f"the outputs are {', '.join(names)}")
        return [out.get(name) for name in names]
    if not isinstance(out, list | tuple) or len(out) != len(outputs):
        given = f"{len(out)}" if isinstance(out, list | tuple) else type(out).__name__
        _refuse(
            f"arrays for {len(outputs)} outputs are needed, got {given}",
            "pass one array per output, in order, or a dict by name",
        )
    return list(out)


def _check_given(spec: TensorSpec, array: Any) -> None:
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        kind = "a read-only array" if isinstance(array, np.ndarray) else type(array).__name__
        _refuse(f"output {spec.name!r} cannot be written to {kind}", "pass a NumPy array")
    if array.dtype != numpy_dtype(spec.dtype):
        _refuse(f"output {spec} does not fit an array of {array.dtype}", f"use {spec.dtype}")
    fits = len(array.shape) == len(spec.shape) and all(
        isinstance(wanted, str) or wanted == extent
        for wanted, extent in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        _refuse(f"output {spec} does not fit an array of shape {list(array.shape)}", "")


def _takes(array: Array, leaf: Leaf) -> bool:
    """Whether compiled code can write the declared form of ``leaf`` into ``array`` itself."""
    plain = stored_dtype(leaf.dtype) == leaf.dtype and array.dtype.kind != "c"
    aligned = bool(array.size) and array.ctypes.data % ALIGNMENT == 0
    return plain and aligned and array.flags.c_contiguous


def _declared(array: Array, leaf: Leaf, texts: Strings) -> Any:
    """A written result in its declared type; complex numbers are written as pairs."""
    dtype = numpy_dtype(stored_dtype(leaf.dtype))
    if dtype.kind == "c":
        array = array.view(dtype)[..., 0]
    return from_stored(array, leaf.dtype, texts)


def _copied_into(own: Array, value: Array, leaf: Leaf) -> Array:
    if own.shape != value.shape:
        _refuse(
            f"output {leaf.name!r} turned out as {list(value.shape)} in this run, "
            f"its array has {list(own.shape)}",
            "leave it out (None) where the size is known after the run only",
        )
    own[...] = value
    return own


def _check_fits(leaf: Leaf, planned: ResultTensor) -> None:
    if not isinstance(leaf, TensorSpec):
        _unfit(f"output {leaf.name!r:.80} is a list, which is never written")
    stored = numpy_dtype(stored_dtype(leaf.dtype))
    shape: tuple[int | str, ...] = leaf.shape
    if stored.kind == "c":
        stored, shape = np.empty(0, stored).real.dtype, (*shape, 2)
    fits = len(shape) == len(planned.shape) and all(
        isinstance(wanted, str) or wanted == extent
        for wanted, extent in zip(shape, planned.shape, strict=True)
    )
    if not fits or numpy_dtype(planned.dtype) != stored:
        _unfit(f"output {leaf!s:.200} would be written as {planned.dtype}{list(planned.shape)}")


def _unfit(reason: str) -> NoReturn:
    raise ArtifactError(
        f"the memory plan is another model's: {reason}", code="UIF-ARTIFACT-MEMORY", hint=REGET
    )


def _refuse(reason: str, hint: str) -> NoReturn:
    raise InputError(reason, code="UIF-RUN-OUT", hint=hint or None)
