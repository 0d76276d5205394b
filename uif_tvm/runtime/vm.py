"""One virtual machine per thread over one loaded library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from uif_tvm.artifact import materialise_library
from uif_tvm.errors import ArtifactError
from uif_tvm.runtime import threads as workers
from uif_tvm.runtime.ffi import runtime
from uif_tvm.runtime.strings import Strings, using
from uif_tvm.runtime.tensors import Array, to_numpy, to_tensor

_CPU_DEVICE_TYPE, _POOLED_ALLOCATOR = 1, 2


class ThreadLocalVM:
    """One virtual machine per thread over one loaded library.

    A virtual machine keeps its registers in itself, so two threads on one machine corrupt each
    other; the loaded code and the weights are read-only and shared.
    """

    def __init__(self, library: bytes, entry: str, threads: int | None) -> None:
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
        self._threads = threads or workers.default_threads()
        self._local = threading.local()

    @property
    def threads(self) -> int:
        """Worker threads of each run."""
        return self._threads

    def call(self, arrays: list[Array], weights: Any, texts: Strings) -> Any:
        """The entry function's results for ``arrays`` (see :func:`tensors.aligned`).

        Results may lie in the memory of ``arrays`` or of the weights. Calls of the host find
        ``texts`` as the current table of strings.
        """

        def run() -> Any:
            # The closure keeps the arrays: tensors over them do not own their memory.
            with using(texts):
                return self._function()(*map(self.tensor, arrays), weights)

        return workers.with_workers(self._ffi, self._threads, run)

    def warm(self) -> None:
        """Make this thread's machine now rather than in the first run."""
        self._function()

    def _function(self) -> Callable[..., Any]:
        """The entry function of this thread's machine, created on first use."""
        entry: Callable[..., Any] | None = getattr(self._local, "entry", None)
        if entry is None:
            machine = self._module["vm_load_executable"]()
            machine["vm_initialization"](_CPU_DEVICE_TYPE, 0, _POOLED_ALLOCATOR)
            entry = machine[self._entry]
            self._local.machine, self._local.entry = machine, entry
        return entry

    def tensor(self, array: Array) -> Any:
        """``array`` as a runtime tensor, no copy; see :func:`tensors.to_tensor`."""
        return to_tensor(self._ffi, self._create_view, array)

    def array(self, tensor: Any, dtype: np.dtype[Any]) -> Array:
        """A runtime tensor as an array, no copy."""
        return to_numpy(self._ffi, self._create_view, tensor, dtype)

    def pack(self, tensors: list[Any]) -> Any:
        """Tensors as one FFI array, built once and passed to every run."""
        return self._ffi.Array(tensors)
