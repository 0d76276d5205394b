"""Extents of tensors in kernels: Python integers where they are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def known(extents: Sequence[Any]) -> list[Any]:
    """``extents`` with static ones as ``int``; shape rules then work on them as they are."""
    from tvm import tirx

    return [int(n) if isinstance(n, tirx.IntImm) else n for n in extents]
