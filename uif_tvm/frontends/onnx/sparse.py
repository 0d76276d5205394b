"""Sparse tensors of a model, made dense at import."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.onnx.tensors import to_numpy
from uif_tvm.frontends.onnx.values import Array

MAX_ELEMENTS = 1 << 28
"""Elements that a few bytes of a model may grow to."""


def dense(sparse: Any, folder: Path | None) -> Array:
    """The tensor of a ``SparseTensorProto``.

    Raises:
        ImportModelError: sizes or indices that do not fit the dimensions.
    """
    name = sparse.values.name
    dims = [int(dim) for dim in sparse.dims]
    total = math.prod(dims)
    if any(dim < 0 for dim in dims) or total > MAX_ELEMENTS:
        raise _fault(name, f"dimensions {dims} cannot be made dense")
    values = to_numpy(sparse.values, folder).reshape(-1)
    index = to_numpy(sparse.indices, folder).astype(np.int64)
    if index.shape == (len(values), len(dims)):
        inside = (index >= 0) & (index < np.asarray(dims))
        if not inside.all():
            raise _fault(name, f"an index lies outside of {dims}")
        index = np.ravel_multi_index(tuple(index.T), dims) if len(index) else index[:, 0]
    if index.shape != values.shape:
        raise _fault(name, f"{len(values)} values for indices of shape {list(index.shape)}")
    if index.size and not 0 <= index.min() <= index.max() < total:
        raise _fault(name, f"an index lies outside of {dims}")
    out = np.zeros(total, values.dtype)
    out[index] = values
    return out.reshape(dims)


def _fault(name: str, text: str) -> ImportModelError:
    return ImportModelError(
        f"sparse tensor {name!r}: {text}",
        code="UIF-IMPORT-SPARSE",
        op=name,
        hint="export the model again, or store the weight as a dense tensor",
    )
