"""Fixtures for all tests: one kernel cache that never is the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that several tests need are compiled once, on whichever worker needs them first."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if base.name.startswith("popen-") else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UIF_CACHE_DIR", str(folder / "kernel-cache"))
        yield
