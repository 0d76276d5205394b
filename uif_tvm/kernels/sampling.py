"""Reading images between pixels, as expressions of one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Read = Callable[..., Any]


def bilinear(read: Read, y: Any, x: Any, rows: Any, columns: Any) -> Any:
    """Value at (y, x) between the four pixels around it.

    Coordinates are limited to two pixels beyond the image first: what lies further off is
    ``read``'s padding anyway, and a float that no integer holds must not become an index.
    """
    from tvm import tirx

    dtype = str(y.ty.dtype)
    one = tirx.const(1, dtype)
    y, x = limited(y, rows), limited(x, columns)
    top, left = tirx.floor(y), tirx.floor(x)
    dy, dx = y - top, x - left
    p, q = top.astype("int64"), left.astype("int64")
    upper = read(p, q) * (one - dx) + read(p, q + 1) * dx
    lower = read(p + 1, q) * (one - dx) + read(p + 1, q + 1) * dx
    return upper * (one - dy) + lower * dy


def limited(at: Any, extent: Any) -> Any:
    """A coordinate within two pixels of an axis; NaN counts as far outside."""
    from tvm import tirx

    dtype = str(at.ty.dtype)
    low, high = tirx.const(-2, dtype), (extent + 1).astype(dtype)
    raised = tirx.Select(at > low, at, low)
    return tirx.Select(raised < high, raised, high)
