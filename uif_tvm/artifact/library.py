"""Give a library that exists only in memory a path for the loader, leaving nothing on disk.

The loader wants a file name. On Linux an anonymous memory file has one, ``/proc/self/fd/N``: it
vanishes with the process, however that ends. Two traps:

- The loader takes two libraries of the same *name* for one and returns the first. Descriptor
  numbers are reused, so each call spells the name differently, with redundant slashes and dots.
- TVM's ``load_module`` picks its reader by the suffix of the *resolved* path, and there is none:
  call the reader for shared libraries itself, ``ffi.Module.load_from_file.so``.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from uif_tvm.errors import ArtifactIOError

_serial = itertools.count(1)


@contextmanager
def materialise_library(data: bytes) -> Iterator[str]:
    """A path under which ``data`` can be loaded while the body runs, never twice the same.

    Load only what :meth:`Artifact.library` gave: a damaged library can kill the process, and a
    foreign one can do anything. What is loaded stays loaded after the body. Where there are no
    memory files, a private folder is used and removed.

    Raises:
        ArtifactIOError: there is no room for the copy.
    """
    fd = _memory_file(data)
    if fd is not None:
        try:
            yield f"/proc/self/fd/{_spelling(next(_serial))}{fd}"
        finally:
            os.close(fd)
        return
    # mkdtemp's folder is this user's alone (0700) and its name is new.
    with tempfile.TemporaryDirectory(prefix="uif-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "lib.so")
        try:
            with open(path, "xb") as file:
                file.write(data)
        except OSError as error:
            raise _no_room(error) from error
        yield path


def _memory_file(data: bytes) -> int | None:
    """An anonymous, sealed file that holds ``data``; ``None`` where the system has none."""
    if not hasattr(os, "memfd_create") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        fd = os.memfd_create("uif-library", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(fd, rest) :]
        _seal(fd)
    except OSError as error:
        os.close(fd)
        raise _no_room(error) from error
    return fd


def _seal(fd: int) -> None:
    """From here on nobody can change or shorten the code, not even through the descriptor."""
    import fcntl

    with suppress(AttributeError):
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def _spelling(serial: int) -> str:
    """A prefix of slashes and dots that changes nothing but the name, distinct per serial."""
    return "".join("./" if bit == "1" else "/" for bit in f"{serial:b}")


def _no_room(error: OSError) -> ArtifactIOError:
    return ArtifactIOError(
        f"cannot make a loadable copy of the native library: {error.strerror or error}",
        hint="free memory, or set TMPDIR to a writable folder",
    )
