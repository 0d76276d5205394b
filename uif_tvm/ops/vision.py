"""Boxes: suppression of overlapping ones, and pooling of whole-pixel regions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from uif_tvm.ops.linear import array, normal
from uif_tvm.ops.spec import (
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as (y1, x1, y2, x2) with the smaller corner first; given (cx, cy, w, h) if centred."""
    if centred:
        cx, cy, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([cy - h / 2, cx - w / 2, cy + h / 2, cx + w / 2], -1)
    low = np.minimum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, np.maximum(boxes[..., :2], boxes[..., 2:])], -1)


def _overlap(one: Array, other: Array) -> float:
    """Intersection over union; 0 for boxes without area."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    both = float(np.prod(np.maximum(sides, 0)))
    union = float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2])) - both
    return both / union if union > 0 else 0.0


def non_max_suppression(
    boxes: Array,
    scores: Array,
    most: Array | None,
    iou: Array | None,
    lowest: Array | None,
    centred: bool,
) -> Array:
    """Rows (batch, class, box): the best boxes of each class that overlap no better one much.

    Args:
        boxes: ``[batch, boxes, 4]``.
        scores: ``[batch, classes, boxes]``.
        most: boxes kept per class, none by default.
        iou: overlap above which a box is dropped, 0 by default.
        lowest: scores up to this do not count.
    """
    corners = _corners(boxes, centred)
    limit = 0 if most is None else int(np.reshape(most, ()))
    bound = 0.0 if iou is None else float(np.reshape(iou, ()))
    floor = float(np.finfo(np.float32).min if lowest is None else np.reshape(lowest, ()))
    rows: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for box in np.argsort(-scores[batch, kind], kind="stable"):
            if len(kept) >= limit or not scores[batch, kind, box] > floor:
                break
            if all(_overlap(corners[batch, box], corners[batch, k]) <= bound for k in kept):
                kept.append(int(box))
        rows += [(batch, kind, box) for box in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def non_max_suppression_padded(
    boxes: Array,
    scores: Array,
    most: Array | None,
    iou: Array | None,
    lowest: Array | None,
    centred: bool,
) -> tuple[Array, Array]:
    """The rows of :func:`non_max_suppression`, filled up with -1, and how many there are."""
    rows = non_max_suppression(boxes, scores, most, iou, lowest, centred)
    total = scores.size
    filled = np.full((total, 3), -1, np.int64)
    filled[: len(rows)] = rows
    return filled, np.array([len(rows)], np.int64)


def roi_pool(x: Array, rois: Array, pooled_size: Sequence[int], spatial_scale: float) -> Array:
    """Maximum over each cell of each region; cells without a pixel are zero.

    Regions are rows (batch, x1, y1, x2, y2), scaled and rounded to whole pixels, ends included.
    """
    y = np.zeros((len(rois), x.shape[1], *pooled_size), x.dtype)
    for r, roi in enumerate(rois):
        # Halves are rounded away from zero, as C's round does.
        scaled = roi[1:].astype(np.float32) * np.float32(spatial_scale)
        x1, y1, x2, y2 = np.trunc(scaled + np.copysign(0.5, scaled)).astype(int)
        starts, spans = (y1, x1), (max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1))
        for cell in np.ndindex(*pooled_size):
            part = []
            for axis, (first, span, count) in enumerate(
                zip(starts, spans, pooled_size, strict=True)
            ):
                low = math.floor(cell[axis] * span / count) + first
                high = math.ceil((cell[axis] + 1) * span / count) + first
                limit = x.shape[2 + axis]
                part.append(slice(min(max(low, 0), limit), min(max(high, 0), limit)))
            seen = x[int(roi[0])][(slice(None), *part)]
            if seen.size:
                y[(r, slice(None), *cell)] = seen.max((1, 2))
    return y


def _padded_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    boxes, scores = types[:2]
    if boxes.rank != 3 or boxes.shape[2] != 4 or scores.rank != 3:
        raise ShapeError("boxes must be [batch, boxes, 4] and scores [batch, classes, boxes]")
    if (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise ShapeError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)}")
    return TensorType((math.prod(scores.shape), 3), "int64"), TensorType((1,), "int64")


def _pool_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, rois = types
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5:
        raise ShapeError("an image of rank 4 and rois [regions, 5]")
    return (TensorType((rois.shape[0], x.shape[1], *attrs["pooled_size"]), x.dtype),)


def _pair_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    boxes = types[0].shape[1]
    return elements(types[1]) * (boxes if isinstance(boxes, int) else 1) * 12.0


def _suppressed() -> Iterable[Case]:
    rng = np.random.default_rng(0)
    corner = rng.random((2, 7, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + rng.random((2, 7, 2)).astype(np.float32)], -1)
    scores = rng.random((2, 3, 7)).astype(np.float32)
    limits = array("int64", [3]), array("float32", [0.4])
    yield Case("plain", (boxes, scores, *limits, None))
    yield Case("score-limit", (boxes, scores, *limits, array("float32", [0.5])))
    yield Case("centred", (boxes, scores, *limits, None), {"centred": True})
    yield Case("none-asked", (boxes, scores, None, None, None))
    flipped = boxes[..., [2, 3, 0, 1]]
    yield Case("corners-exchanged-ties", (flipped, np.ones_like(scores), *limits, None))


def _pooled() -> Iterable[Case]:
    x = normal(2, 3, 8, 9)
    rois = array("float32", [[0, 0, 0, 4, 5], [1, 1, 2, 7, 7], [1, 3, 3, 3, 3], [0, 12, 2, 30, 4]])
    yield Case("plain", (x, rois), {"pooled_size": (2, 3), "spatial_scale": 1.0})
    yield Case("scaled", (x, rois), {"pooled_size": (3, 3), "spatial_scale": 0.5})


_BOXES = (
    Operand("boxes"),
    Operand("scores"),
    Operand("most", optional=True),
    Operand("iou", optional=True),
    Operand("lowest", optional=True),
)

SPECS = (
    OpSpec(
        "non_max_suppression",
        "vision",
        non_max_suppression,
        operands=_BOXES,
        attributes=(Attribute("centred", False),),
        dtypes=("float32",),
        cases=_suppressed,
        flops=_pair_flops,
        data_dependent=True,
        source="ONNX NonMaxSuppression-11",
    ),
    OpSpec(
        "non_max_suppression_padded",
        "vision",
        non_max_suppression_padded,
        _padded_type,
        operands=_BOXES,
        attributes=(Attribute("centred", False),),
        results=2,
        dtypes=("float32",),
        cases=_suppressed,
        flops=_pair_flops,
    ),
    OpSpec(
        "roi_pool",
        "vision",
        roi_pool,
        _pool_type,
        operands=(Operand("x"), Operand("rois")),
        attributes=(Attribute("pooled_size"), Attribute("spatial_scale")),
        dtypes=("float32",),
        relax="relax.vision.roi_pool",
        cases=_pooled,
        flops=8,
        source="ONNX MaxRoiPool-22",
    ),
)
