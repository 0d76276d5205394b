"""Operators that only move or re-index elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uif_tvm.ops.spec import Array, OpSpec


def _permute_dims(x: Array, axes: Sequence[int] | None) -> Array:
    return np.transpose(x, None if axes is None else [int(axis) for axis in axes])


def _expand_dims(x: Array, axis: Sequence[int]) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in axis))


def _squeeze(x: Array, axis: Sequence[int] | None) -> Array:
    return np.squeeze(x, None if axis is None else tuple(int(a) for a in axis))


SPECS = (
    OpSpec("permute_dims", "shape", _permute_dims, flops_per_element=0, attributes=("axes",)),
    OpSpec("expand_dims", "shape", _expand_dims, flops_per_element=0, attributes=("axis",)),
    OpSpec("squeeze", "shape", _squeeze, flops_per_element=0, attributes=("axis",)),
)
