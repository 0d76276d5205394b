"""Content-addressed cache of compiled kernels: object code and how it was made.

One kernel is two files, ``<key>.o`` and ``<key>.json``; the JSON is written last and holds the
object's digest, so a torn or damaged entry is a miss, never a wrong kernel. Writers on several
processes race harmlessly: all write the same content.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from blake3 import blake3

from uif_tvm.errors import EnvironmentFault

#: Oldest entries go when the folder grows past this.
MAX_BYTES = 2 << 30


@dataclass(frozen=True)
class CompiledKernel:
    """Object code of one kernel, with the choice that led to it.

    Args:
        code: relocatable object; defines the symbol ``__tvm_ffi_<symbol>``.
        symbol: kernel name.
        rule, kind, detail, declined: as in :class:`~uif_tvm.compiler.report.KernelChoice`.
        flops: per call.
    """

    code: bytes
    symbol: str
    rule: str
    kind: str
    detail: str
    declined: tuple[str, ...]
    flops: float


class KernelCache:
    """A folder of compiled kernels; ``folder=None`` never hits and keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EnvironmentFault(
                    f"the kernel cache {folder} cannot be created: {error}",
                    stage="compile",
                    code="UIF-ENV-CACHE",
                    hint="choose another folder with cache_dir=, or switch it off with cache_dir=None",
                ) from error

    def get(self, key: str) -> CompiledKernel | None:
        """The kernel stored under ``key``; damaged entries count as absent."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}.json"
        try:
            meta = json.loads(path.read_text())
            code = (self._folder / f"{key}.o").read_bytes()
            if blake3(code).hexdigest() != meta.pop("digest"):
                return None
            os.utime(path)
            return CompiledKernel(code=code, **(meta | {"declined": tuple(meta["declined"])}))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, kernel: CompiledKernel) -> None:
        """Store ``kernel``; a full disk costs the entry, not the compilation."""
        if self._folder is None:
            return
        meta = asdict(kernel)
        code = meta.pop("code")
        meta["digest"] = blake3(code).hexdigest()
        try:
            self._write(f"{key}.o", code)
            self._write(f"{key}.json", json.dumps(meta).encode())
        except OSError:
            return

    def prune(self, max_bytes: int = MAX_BYTES) -> int:
        """Delete least recently used entries above ``max_bytes``; returns how many went."""
        if self._folder is None:
            return 0
        entries = []
        for meta in self._folder.glob("*.json"):
            code = meta.with_suffix(".o")
            try:
                entries.append((meta.stat().st_mtime, code.stat().st_size, meta, code))
            except OSError:
                continue
        excess = sum(size for _, size, _, _ in entries) - max_bytes
        gone = 0
        for _, size, meta, code in sorted(entries):
            if excess <= 0:
                break
            meta.unlink(missing_ok=True)
            code.unlink(missing_ok=True)
            excess -= size
            gone += 1
        return gone

    def _write(self, name: str, data: bytes) -> None:
        assert self._folder is not None
        handle, temp = tempfile.mkstemp(dir=self._folder, prefix=".tmp-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temp, self._folder / name)
        except BaseException:
            Path(temp).unlink(missing_ok=True)
            raise
