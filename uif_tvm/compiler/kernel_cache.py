"""Content-addressed cache of compiled kernels: object code and how it was made.

One kernel is one file, ``<key>.kernel``: a digest of all that follows, the length of the
description, the description as JSON, the object code. Files appear under their name in one step,
so writers on several processes race harmlessly, and a torn or damaged file is a miss, never a
wrong kernel.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from blake3 import blake3

from uif_tvm.errors import EnvironmentFault

#: Least recently used entries go when the folder grows past this.
MAX_BYTES = 2 << 30

_SUFFIX, _TEMPORARY = ".kernel", ".tmp-"
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32
#: A writer needs milliseconds; what is older was left behind by one that died, in seconds.
_STALE_AFTER = 3600.0


@dataclass(frozen=True)
class CompiledKernel:
    """Object code of one kernel, with the choice that led to it.

    Args:
        code: relocatable object; defines the symbol ``__tvm_ffi_<symbol>``.
        symbol: kernel name.
        rule, kind, detail, declined: as in :class:`~uif_tvm.compiler.report.KernelChoice`.
        flops: per call.
        workspace: bytes that it takes as one more buffer, behind the others; 0 for none.
        run_allocations: allocations that it leaves to the runtime: of sizes known in a run only.
    """

    code: bytes
    symbol: str
    rule: str
    kind: str
    detail: str
    declined: tuple[str, ...]
    flops: float
    workspace: int = 0
    run_allocations: int = 0

    def to_bytes(self) -> bytes:
        """The file's content."""
        fields = asdict(self)
        code: bytes = fields.pop("code")
        text = json.dumps(fields).encode()
        body = _LENGTH.pack(len(text)) + text + code
        digest: bytes = blake3(body).digest()
        return digest + body

    @classmethod
    def from_bytes(cls, data: bytes) -> CompiledKernel | None:
        """Inverse of :meth:`to_bytes`; ``None`` for damaged data."""
        body = memoryview(data)[_DIGEST_BYTES:]
        if blake3(body).digest() != data[:_DIGEST_BYTES]:
            return None
        try:
            (length,) = _LENGTH.unpack(body[: _LENGTH.size])
            start = _LENGTH.size + length
            fields = json.loads(bytes(body[_LENGTH.size : start]))
            fields["declined"] = tuple(fields["declined"])
            return cls(code=bytes(body[start:]), **fields)
        except (ValueError, KeyError, TypeError, struct.error):
            return None  # sound, but written by another version


class KernelCache:
    """A folder of compiled kernels; ``folder=None`` never hits and keeps nothing.

    Raises:
        EnvironmentFault: the folder does not exist and cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFault(
                    f"the kernel cache {folder} cannot be created: {error.strerror or error}",
                    stage="compile",
                    code="UIF-ENV-CACHE",
                    hint="choose another folder with cache_dir=, or switch it off with "
                    "cache_dir=None",
                ) from error

    def get(self, key: str) -> CompiledKernel | None:
        """The kernel stored under ``key``; damaged entries count as absent."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}{_SUFFIX}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):  # a folder that may only be read serves all the same
            os.utime(path)
        return CompiledKernel.from_bytes(data)

    def put(self, key: str, kernel: CompiledKernel) -> bool:
        """Store ``kernel``; a full disk costs the entry, not the compilation.

        Returns:
            Whether it was stored.
        """
        if self._folder is None:
            return False
        try:
            self._write(self._folder, f"{key}{_SUFFIX}", kernel.to_bytes())
        except OSError:
            return False
        return True

    def prune(self, max_bytes: int = MAX_BYTES) -> int:
        """Delete least recently used entries above ``max_bytes``; returns how many went."""
        if self._folder is None:
            return 0
        entries = []
        try:
            paths = list(self._folder.iterdir())
        except OSError:
            return 0  # gone, or not ours to list: nothing to tidy up
        for path in paths:
            with suppress(OSError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    entries.append((status.st_mtime, status.st_size, path))
                elif (
                    path.name.startswith(_TEMPORARY)
                    and status.st_mtime < time.time() - _STALE_AFTER
                ):
                    path.unlink(missing_ok=True)
        excess = sum(size for _, size, _ in entries) - max_bytes
        gone = 0
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            with suppress(OSError):
                path.unlink(missing_ok=True)
                excess -= size
                gone += 1
        return gone

    @staticmethod
    def _write(folder: Path, name: str, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, folder / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
