"""A sound file as bytes, and a place to put unsound ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.artifact.forge import WEIGHTS, make_payload, write_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound file for two targets, as bytes."""
    path = tmp_path_factory.mktemp("sample") / "sample.uif"
    other = make_payload("toy-2", weights=WEIGHTS | {"mask": np.ones(70, np.uint8)})
    return write_sample(path, make_payload(), other).read_bytes()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    """Puts bytes into a file (always the same one) and returns its path."""
    path = tmp_path_factory.mktemp("place") / "file.uif"

    def put(data: bytes) -> Path:
        # A new file each time: cutting an old one makes some file systems wait for the disk.
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        return path

    return put
