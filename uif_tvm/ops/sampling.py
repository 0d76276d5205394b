"""Reading images between pixels: what the references of sampling operators share."""

from __future__ import annotations

import numpy as np

from uif_tvm.ops.spec import Array


def pixel(image: Array, y: Array, x: Array) -> Array:
    """Pixels at whole positions of a (rows, columns) image; zero outside."""
    rows, columns = image.shape
    inside = (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    if not image.size:
        return np.zeros(np.broadcast(y, x).shape, image.dtype)
    near = image[np.clip(y, 0, rows - 1), np.clip(x, 0, columns - 1)]
    return np.where(inside, near, np.zeros((), image.dtype))


def bilinear(image: Array, y: Array, x: Array) -> Array:
    """Values between the four pixels around each position; zero outside."""
    top, left = np.floor(y), np.floor(x)
    dy, dx = y - top, x - left
    p, q = top.astype(np.int64), left.astype(np.int64)
    upper = pixel(image, p, q) * (1 - dx) + pixel(image, p, q + 1) * dx
    lower = pixel(image, p + 1, q) * (1 - dx) + pixel(image, p + 1, q + 1) * dx
    return upper * (1 - dy) + lower * dy
