"""What is asked for is checked when the context is made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.models import context
from uif_tvm.errors import UsageError


@pytest.mark.parametrize("level", [-1, 4, 2.0, "2", True, None])
def test_level(level):
    with pytest.raises(UsageError, match="optimize_level must be 0, 1, 2 or 3") as caught:
        context(level=level)
    assert (caught.value.code, caught.value.exit_code) == ("UIF-USAGE-LEVEL", 2)
    assert "2: fusion (default)" in caught.value.hint


def test_fallback_mode():
    with pytest.raises(UsageError, match="got 'gpu'") as caught:
        context(fallback_mode="gpu")
    assert caught.value.hint


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        context().level = 3
