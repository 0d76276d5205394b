"""BLAKE3 over buffers: all cores for large ones, the calling thread for small ones."""

from __future__ import annotations

import os

from blake3 import blake3

# Below this, starting the thread pool costs more than it saves.
_THREADED_BYTES = 1 << 20


class _Process:
    #: The library's thread pool does not survive a fork; the child would wait for it for ever.
    forked = False


def _after_fork_in_child() -> None:
    _Process.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def hash_threads(nbytes: int) -> int:
    """The ``max_threads`` to hash ``nbytes`` with."""
    return 1 if _Process.forked or nbytes < _THREADED_BYTES else blake3.AUTO


def digest_of(data: bytes | memoryview) -> str:
    """BLAKE3 digest, 64 hex digits."""
    return str(blake3(data, max_threads=hash_threads(len(data))).hexdigest())
