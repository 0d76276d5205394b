"""Files on disk: replace one atomically, map one read-only; every fault is an ArtifactIOError."""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uif_tvm.errors import ArtifactIOError, UsageError

PathLike = str | os.PathLike[str]


class OutFile:
    """An unbuffered file being written; every byte handed in is on its way to the disk."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes | memoryview) -> None:
        """Write all of ``data`` at the current position (one call may write less)."""
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(self._fd, rest) :]

    def rewrite(self, offset: int, data: bytes) -> None:
        """Replace bytes already written; the current position stays."""
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError("a rewrite of a few bytes was cut short")


@contextmanager
def replacing(path: PathLike) -> Iterator[OutFile]:
    """A new file that takes ``path``'s place when the body succeeds; else the old one stays.

    The bytes are on disk before the name changes, so a crash at any moment leaves the old file or
    the new one. Where the file system can hold an unnamed file, a killed process leaves nothing.

    Raises:
        ArtifactIOError: the folder or the disk does not take the file.
    """
    final = _path(path)
    temporary = final.parent / f".uif-{secrets.token_hex(8)}.tmp"
    try:
        # A pipe or device would be replaced by a file: never what is meant.
        if final.exists() and not final.is_file():
            raise OSError("it exists and is no regular file")
        fd, named = _open_new(temporary)
        try:
            yield OutFile(fd)
            os.fsync(fd)
            if not named:
                _give_name(fd, temporary)
            os.replace(temporary, final)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(fd)
    except OSError as error:
        raise ArtifactIOError(
            f"cannot write {os.fspath(final)!r}: {error.strerror or error}",
            stage="compile",
            hint="choose a folder that exists, is writable and has room; an older file there "
            "was left as it was",
        ) from error
    _sync_folder(final.parent)


def map_file(path: PathLike) -> tuple[mmap.mmap | None, int]:
    """Map a regular file read-only; returns the map (``None`` when it is empty) and its bytes.

    Raises:
        ArtifactIOError: it is missing, unreadable, or no regular file.
    """
    name = _path(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        fd = os.open(name, flags)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is no regular file")
            if status.st_size == 0:
                return None, 0
            return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ), status.st_size
        finally:
            os.close(fd)
    except OSError as error:
        raise ArtifactIOError(
            f"cannot read {os.fspath(name)!r}: {error.strerror or error}",
            hint="check the path and that this user may read the file",
        ) from error


def _open_new(temporary: Path) -> tuple[int, bool]:
    """A new empty file in ``temporary``'s folder: descriptor, and whether it has the name yet."""
    if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        with suppress(OSError):
            return os.open(temporary.parent, os.O_TMPFILE | os.O_RDWR, 0o666), False
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, 0o666), True


def _give_name(fd: int, temporary: Path) -> None:
    """Link an unnamed file into its folder."""
    try:
        # The descriptor makes Python call linkat, which alone follows the /proc link; the path
        # is absolute, so nothing is looked up in it.
        os.link(f"/proc/self/fd/{fd}", temporary, src_dir_fd=fd, follow_symlinks=True)
    except OSError:
        # Some sandboxes forbid links. A copy needs the room twice, but it gets there.
        os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, "rb", closefd=False) as source, open(temporary, "xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())


def _sync_folder(folder: Path) -> None:
    # The new name is in place already; a file system that cannot sync folders is no failure.
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _path(path: PathLike) -> Path:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise UsageError(
            f"a file path must be text or a Path, found {type(path).__name__}",
            hint="pass the path of the .uif file",
        ) from None
    if not text or "\0" in text:
        raise UsageError(f"{text!r:.200} is no file path", hint="pass the path of the .uif file")
    return Path(text)
