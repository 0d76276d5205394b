"""Virtual machines over one loaded library, each with memory of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from uif_tvm.artifact import materialise_library
from uif_tvm.artifact.memory_plan import MemoryPlan
from uif_tvm.errors import ArtifactError
from uif_tvm.runtime import threads as workers
from uif_tvm.runtime.arena import arenas_of, place_weights, tensor_array
from uif_tvm.runtime.ffi import runtime
from uif_tvm.runtime.strings import Strings, using
from uif_tvm.runtime.tensors import Array, to_numpy, to_tensor

T = TypeVar("T")
_CPU_DEVICE_TYPE, _POOLED_ALLOCATOR = 1, 2


@dataclass(eq=False)
class Machine:
    """A virtual machine and the memory that it works in.

    Args:
        entry: the function to call.
        arenas: the plan's arenas, empty without a plan.
        memory: further arguments of ``entry``: the tensors over the arenas, if there is a plan.
    """

    entry: Callable[..., Any]
    arenas: tuple[Array, ...]
    memory: tuple[Any, ...]

    def holds(self, address: int) -> bool:
        """Whether the byte at ``address`` lies in an arena."""
        return any(
            arena.ctypes.data <= address < arena.ctypes.data + arena.nbytes for arena in self.arenas
        )


class ThreadLocalVM:
    """One virtual machine per thread over one loaded library.

    A virtual machine keeps its registers in itself, so two threads on one machine corrupt each
    other; so would a run inside another one (of a host operator that runs the same engine) in the
    arena. Each run takes a machine that no other uses. The loaded code and the weights are
    read-only and shared.
    """

    def __init__(
        self,
        library: bytes,
        entry: str,
        threads: int | None,
        plan: MemoryPlan | None = None,
        weights: Sequence[Array] = (),
    ) -> None:
        self._ffi = runtime()
        load = self._ffi.get_global_func("ffi.Module.load_from_file.so")
        with materialise_library(library) as path:
            try:
                self._module = load(path, "so")
            except Exception as error:
                raise ArtifactError(
                    f"the native library does not load: {error}",
                    code="UIF-ARTIFACT-LIBRARY",
                    hint="export the model again here; its code may need another libc or TVM",
                ) from error
        self._create_view = self._ffi.get_global_func("runtime.TVMTensorCreateView")
        self._entry = entry
        self._plan, self._weights = plan, weights
        self._threads = threads or workers.default_threads()
        self._local = threading.local()
        self._arena_bytes = 0

    @property
    def threads(self) -> int:
        """Worker threads of each run."""
        return self._threads

    @property
    def arena_bytes(self) -> int:
        """Bytes that the last machine made has allocated for its arenas."""
        return self._arena_bytes

    def call(
        self,
        arrays: Sequence[Array],
        weights: Any,
        results: Sequence[Array],
        texts: Strings,
        collect: Callable[[Any, Machine], T],
    ) -> T:
        """Run the entry function once.

        Calls of the host find ``texts`` as the current table of strings.

        Args:
            arrays: the inputs (see :func:`tensors.aligned`).
            weights: as :meth:`pack` made them.
            results: memory for the results that the plan has compiled code write.
            collect: gets what the function returned and the machine that it ran on; must take
                along what lies in the machine's arenas, which the next run overwrites. Returned
                tensors may lie in the memory of ``arrays`` or of the weights, too.
        """

        def run() -> T:
            # The closure keeps the arrays: tensors over them do not own their memory.
            machines = self._machines()
            machine = machines.pop() if machines else self._machine()
            try:
                with using(texts):
                    returned = machine.entry(
                        *map(self.tensor, arrays),
                        weights,
                        *machine.memory,
                        *map(self.tensor, results),
                    )
                return collect(returned, machine)
            finally:
                machines.append(machine)

        return workers.with_workers(self._ffi, self._threads, run)

    def warm(self) -> None:
        """Make this thread's machine now rather than in the first run."""
        machines = self._machines()
        if not machines:
            machines.append(self._machine())

    def _machines(self) -> list[Machine]:
        """This thread's machines that no run uses."""
        machines: list[Machine] | None = getattr(self._local, "machines", None)
        if machines is None:
            machines = self._local.machines = []
        return machines

    def _machine(self) -> Machine:
        native = self._module["vm_load_executable"]()
        native["vm_initialization"](_CPU_DEVICE_TYPE, 0, _POOLED_ALLOCATOR)
        entry = native[self._entry]
        if self._plan is None:
            return Machine(entry, (), ())
        arenas = arenas_of(self._plan)
        place_weights(self._plan, arenas, self._weights)
        self._arena_bytes = sum(arena.nbytes for arena in arenas)
        tensors = [self.tensor(tensor_array(arenas, item)) for item in self._plan.tensors]
        return Machine(entry, arenas, (self.pack(tensors),))

    def tensor(self, array: Array) -> Any:
        """``array`` as a runtime tensor, no copy; see :func:`tensors.to_tensor`."""
        return to_tensor(self._ffi, self._create_view, array)

    def array(self, tensor: Any, dtype: np.dtype[Any]) -> Array:
        """A runtime tensor as an array, no copy."""
        return to_numpy(self._ffi, self._create_view, tensor, dtype)

    def pack(self, tensors: list[Any]) -> Any:
        """Tensors as one FFI array, built once and passed to every run."""
        return self._ffi.Array(tensors)
