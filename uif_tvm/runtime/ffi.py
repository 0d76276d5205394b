"""TVM's runtime through its FFI alone: running a model does not import the compiler.

``import tvm`` costs seconds; loading ``libtvm_runtime`` costs milliseconds and holds all that a
compiled model needs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from uif_tvm.errors import EnvironmentFault
from uif_tvm.runtime import threads

#: What the FFI imports for its own conveniences, which take seconds and which we do not use.
_UNWANTED = frozenset({"torch"})


@cache
def runtime() -> Any:
    """The FFI module with TVM's runtime functions registered.

    Raises:
        EnvironmentFault: TVM is not installed, or its runtime does not load.
    """
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentFault(
            "the TVM runtime is not installed",
            code="UIF-ENV-TVM",
            hint="pip install 'apache-tvm==0.27.0.post1' 'apache-tvm-ffi<0.1.15'",
        )
    threads.prepare()
    ffi = import_ffi()
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        try:
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise EnvironmentFault(
                f"the TVM runtime library cannot be loaded: {error}",
                code="UIF-ENV-TVM",
                hint="reinstall it: pip install --force-reinstall 'apache-tvm==0.27.0.post1'",
            ) from error
    return ffi


def import_ffi() -> ModuleType:
    """``tvm_ffi``, without the model framework that it imports along where one is installed."""
    with _absent(_UNWANTED - sys.modules.keys()):
        import tvm_ffi
    return tvm_ffi  # type: ignore[no-any-return]


@contextmanager
def _absent(names: frozenset[str]) -> Iterator[None]:
    """Let imports of ``names`` fail in this thread, as if they were not installed."""
    me = threading.get_ident()

    class Refusing:
        @staticmethod
        def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
            if name in names and threading.get_ident() == me:
                raise ModuleNotFoundError(f"{name} is left out on purpose", name=name)

    sys.meta_path.insert(0, Refusing)
    try:
        yield
    finally:
        sys.meta_path.remove(Refusing)
