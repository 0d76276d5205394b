"""Plain NumPy convolution and pooling, and blocked layouts, for the tests of blocked kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from uif_tvm.kernels.layout import Window

Array = np.ndarray[Any, Any]


def blocked(x: Array, width: int) -> Array:
    """``[N, C, H, W]`` in blocks; lanes past the last channel are NaN, so that any use shows."""
    batch, channels, rows, columns = x.shape
    count = -(-channels // width)
    padded = np.full((batch, count * width, rows, columns), np.nan, x.dtype)
    padded[:, :channels] = x
    shape = (batch, count, width, rows, columns)
    return np.ascontiguousarray(padded.reshape(shape).transpose(0, 1, 3, 4, 2))


def plain(x: Array, channels: int) -> Array:
    """Inverse of :func:`blocked`."""
    batch, count, rows, columns, width = x.shape
    full = x.transpose(0, 1, 4, 2, 3).reshape(batch, count * width, rows, columns)
    return full[:, :channels]


def windows(x: Array, window: Window, fill: float) -> list[tuple[int, int, Array]]:
    """(tap row, tap column, the input element under that tap for every output element)."""
    top, left, bottom, right = window.padding
    rows, columns = window.out(*x.shape[2:])
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    taps = []
    for p in range(window.kernel[0]):
        for q in range(window.kernel[1]):
            y, z = p * window.dilation[0], q * window.dilation[1]
            part = padded[:, :, y :: window.strides[0], z :: window.strides[1]]
            taps.append((p, q, part[:, :, :rows, :columns]))
    return taps


def conv2d(x: Array, w: Array, window: Window, groups: int) -> Array:
    """Grouped convolution in float64."""
    outer, inner = w.shape[0] // groups, w.shape[1]
    result: Array = np.zeros((x.shape[0], w.shape[0], *window.out(*x.shape[2:])))
    for p, q, part in windows(x.astype(np.float64), window, 0.0):
        for g in range(groups):
            values = part[:, g * inner : (g + 1) * inner]
            factors = w[g * outer : (g + 1) * outer, :, p, q].astype(np.float64)
            result[:, g * outer : (g + 1) * outer] += np.einsum("nihw,oi->nohw", values, factors)
    return result


def pool(x: Array, window: Window, reduce: Callable[..., Array], fill: float) -> Array:
    """``reduce`` over the taps of a window, with padding of ``fill``."""
    taps = [part for _, _, part in windows(x.astype(np.float64), window, fill)]
    return reduce(np.stack(taps), axis=0)
