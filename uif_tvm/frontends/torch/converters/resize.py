"""Resizing of images: every mode of ``torch.nn.functional.interpolate``.

PyTorch's resize is separable and linear in the data, so each axis is a table of source positions
and weights. The tables are taken from PyTorch itself, by resizing unit vectors while importing:
scale factors, corner alignment and antialiasing are then right by construction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tvm import relax, te, tirx

from uif_tvm.frontends.torch.dtypes import compute_dtype, is_float
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.registry import RefusedError, converts

#: Largest axis table (source size x result size) that is worked out.
_MAX_TABLE = 1 << 26

_RANKS = {"1d": 1, "2d": 2, "3d": 3}
_LINEAR = (
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)
_NEAREST = tuple(
    f"{kind}{rank}d"
    for kind in ("upsample_nearest", "_upsample_nearest_exact")
    for rank in (1, 2, 3)
)


@converts(*(f"aten.{name}.{kind}" for name in _NEAREST for kind in ("default", "vec")))
def nearest(cx: Emitter, x: Any, *_: Any) -> Any:
    """Pick one source element per result element."""
    rank, scales = _parameters(cx)
    for axis, result, scale in _axes(cx, x, rank, scales):
        size = cx.static_size(x, axis, "resize")
        probe = torch.arange(size, dtype=torch.float64)
        picked = _resize_axis(cx, probe.reshape(1, -1), result, scale)[0].numpy().astype("int64")
        x = _pick(cx, x, axis, picked)
    return x


def _pick(cx: Emitter, x: relax.Expr, axis: int, picked: np.ndarray) -> relax.Expr:
    size = cx.static_size(x, axis, "resize")
    result = len(picked)
    if result == size and np.array_equal(picked, np.arange(size)):
        return x
    factor = result // size
    if result % size == 0 and np.array_equal(picked, np.arange(result) // factor):
        # A whole factor needs no table.
        def kernel(data: te.Tensor) -> te.Tensor:
            shape = [*data.shape[:axis], result, *data.shape[axis + 1 :]]
            return te.compute(
                shape,
                lambda *ix: data(
                    *(tirx.floordiv(i, factor) if a == axis else i for a, i in enumerate(ix))
                ),
                name="upsample_nearest",
            )

        return cx.te(kernel, x, name="upsample_nearest")
    return cx.emit(relax.op.take(x, cx.const(picked, "int64"), axis))


@converts(*(f"aten.{name}.{kind}" for name in _LINEAR for kind in ("default", "vec")))
def weighted(cx: Emitter, x: Any, *_: Any) -> Any:
    """Weighted sums of source elements (linear, cubic, antialiased)."""
    if not is_float(cx.out_dtype):
        raise RefusedError(f"interpolation of {cx.out_dtype} is not supported")
    rank, scales = _parameters(cx)
    work = compute_dtype(cx.out_dtype)
    data = cx.cast(x, work)
    for axis, result, scale in _axes(cx, x, rank, scales):
        size = cx.static_size(x, axis, "resize")
        if size * result > _MAX_TABLE:
            raise RefusedError(f"resizing {size} to {result} elements is not supported")
        unit = torch.eye(size, dtype=torch.float64 if work == "float64" else torch.float32)
        matrix = _resize_axis(cx, unit, result, scale).numpy().T
        data = _weigh(cx, data, axis, matrix)
    return cx.cast(data, cx.out_dtype)


def _weigh(cx: Emitter, x: relax.Expr, axis: int, matrix: np.ndarray) -> relax.Expr:
    """Apply ``matrix`` (result x source, few non-zeros a row) along one axis."""
    result, size = matrix.shape
    if result == size and np.array_equal(matrix, np.eye(size, dtype=matrix.dtype)):
        return x
    taps = max(1, int((matrix != 0).sum(axis=1).max()))
    # Columns with weight first; a stable sort keeps them in order.
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
    weights = np.take_along_axis(matrix, order, axis=1)

    tables = cx.const(order, "int64"), cx.const(weights, cx.dtype(x))
    return cx.op("resample", x, *tables, axis=axis)


def _axes(
    cx: Emitter, x: relax.Expr, rank: int, scales: list[float | None]
) -> list[tuple[int, int, float | None]]:
    """(axis, result size, scale) of the spatial axes."""
    cx.static(x, "resize")
    first = len(cx.shape(x)) - rank
    return [(first + i, cx.out_shape[first + i], scales[i]) for i in range(rank)]


def _parameters(cx: Emitter) -> tuple[int, list[float | None]]:
    """Spatial rank and the scale factor per axis of the current node."""
    schema = cx.node.target._schema
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, cx.node.args, strict=False)) | dict(cx.node.kwargs)
    rank = next(r for suffix, r in _RANKS.items() if suffix in schema.name)
    if "scale_factors" in names:
        factors = given.get("scale_factors")
        scales = list(factors) if factors else [None] * rank
    else:
        labels = {
            1: ("scales",),
            2: ("scales_h", "scales_w"),
            3: ("scales_d", "scales_h", "scales_w"),
        }[rank]
        scales = [given.get(label) for label in labels]
    return rank, scales


def _resize_axis(cx: Emitter, rows: torch.Tensor, result: int, scale: float | None) -> torch.Tensor:
    """Resize each row of ``[count, size]`` to ``[count, result]`` with the node's operator."""
    target = cx.node.target
    names = [argument.name for argument in target._schema.arguments]
    given = dict(zip(names, cx.node.args, strict=False)) | dict(cx.node.kwargs)
    rank = next(r for suffix, r in _RANKS.items() if suffix in target._schema.name)
    # Other axes keep size one; the axis in question comes last.
    data = rows.reshape([rows.shape[0], *([1] * rank), rows.shape[1]])
    sizes = [1] * (rank - 1) + [result]
    keywords: dict[str, Any] = {}
    if "align_corners" in names:
        keywords["align_corners"] = given["align_corners"]
    function = getattr(torch.ops.aten, target._schema.name.split("::")[1]).default
    arguments = [argument.name for argument in function._schema.arguments]
    for name in ("scales", "scales_w"):
        if name in arguments:
            keywords[name] = scale
    with torch.no_grad():
        out = function(data, sizes, **keywords)
    return out.reshape(rows.shape[0], result)
