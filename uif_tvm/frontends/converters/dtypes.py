"""Dtype names of the things TE functions handle."""

from __future__ import annotations

from typing import Any


def kind(item: Any) -> str:
    """Dtype name of a TE tensor or of a scalar expression."""
    return str(item.dtype if hasattr(item, "dtype") else item.ty.dtype)
