"""BLAKE3 over buffers: all cores for large ones, the calling thread for small ones."""

from __future__ import annotations

from blake3 import blake3

# Below this, starting the thread pool costs more than it saves.
_THREADED_BYTES = 1 << 20


def digest_of(data: bytes | memoryview) -> str:
    """BLAKE3 digest, 64 hex digits."""
    threads = blake3.AUTO if len(data) >= _THREADED_BYTES else 1
    return str(blake3(data, max_threads=threads).hexdigest())
