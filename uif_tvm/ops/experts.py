"""Mixtures of experts: which rows go where, and products with one matrix per group of rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.linear import WIDE, array, exactly, normal, product_flops
from uif_tvm.ops.spec import (
    LOOSE,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
)


def moe_routing(
    logits: Array, top_k: int, normalize: bool, softmax_first: bool
) -> tuple[Array, Array]:
    """Weights and numbers of the ``top_k`` experts of each row, best first.

    Weights are the softmax over all experts (``softmax_first``), divided by their sum if
    ``normalize``; else the softmax over the chosen ones. The first of equals wins.
    """
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :top_k]
    chosen = np.take_along_axis(logits, order, -1)
    peak = logits.max(-1, keepdims=True)
    powers = np.exp(chosen - peak)
    if not softmax_first:
        return powers / powers.sum(-1, keepdims=True), order.astype(np.int64)
    weights = powers / np.exp(logits - peak).sum(-1, keepdims=True)
    weights = weights / weights.sum(-1, keepdims=True) if normalize else weights
    return weights, order.astype(np.int64)


def grouped_matmul(x: Array, weight: Array, ends: Array) -> Array:
    """Each row times the matrix of its group.

    Args:
        x: ``[rows, inputs]``; group ``g`` has rows ``ends[g - 1] .. ends[g] - 1``.
        weight: ``[groups, inputs, outputs]``.
        ends: non-decreasing; rows past the last end give zero.
    """
    y = np.zeros((x.shape[0], weight.shape[2]), x.dtype)
    start = 0
    for matrix, end in zip(weight, ends, strict=True):
        y[start : int(end)] = x[start : int(end)] @ matrix
        start = max(start, int(end))
    return y


def _routing_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (logits,) = types
    experts, top = logits.shape[-1], attrs["top_k"]
    if logits.rank != 2 or top < 1 or (isinstance(experts, int) and top > experts):
        raise ShapeError(f"{top} of {experts} experts")
    shape = (logits.shape[0], top)
    return TensorType(shape, logits.dtype), TensorType(shape, "int64")


def _grouped_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, weight, ends = types
    if x.rank != 2 or weight.rank != 3 or ends.rank != 1:
        raise ShapeError("x [rows, in], weight [groups, in, out] and ends [groups] are needed")
    if not infer.equal(x.shape[1], weight.shape[1]):
        raise ShapeError(f"inner extents {x.shape[1]} and {weight.shape[1]} differ")
    return (TensorType((x.shape[0], weight.shape[2]), x.dtype),)


def _routings() -> Iterable[Case]:
    logits = normal(5, 8)
    yield Case("softmax-all", (logits,), {"top_k": 2})
    yield Case("normalized", (logits,), {"top_k": 3, "normalize": True})
    yield Case("softmax-chosen", (logits,), {"top_k": 2, "softmax_first": False})
    yield Case("ties", (np.zeros((2, 4), np.float32),), {"top_k": 2})
    yield Case("all-experts-large", (logits * 50,), {"top_k": 8})
    yield Case("no-rows", (normal(0, 4),), {"top_k": 1})


def _groups() -> Iterable[Case]:
    x, weight = normal(7, 4), normal(3, 4, 5, seed=1)
    yield Case("uneven", (x, weight, array("int32", [2, 6, 7])))
    yield Case("empty-group", (x, weight, array("int64", [3, 3, 7])))
    yield Case("rows-left-over", (x, weight, array("int32", [1, 2, 4])))


SPECS = (
    OpSpec(
        "moe_routing",
        "experts",
        exactly(moe_routing),
        _routing_type,
        operands=(Operand("logits"),),
        attributes=(
            Attribute("top_k"),
            Attribute("normalize", False),
            Attribute("softmax_first", True),
        ),
        results=2,
        dtypes=("float16", "bfloat16", "float32", "float64"),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_routings,
        flops=30,
    ),
    OpSpec(
        "grouped_matmul",
        "experts",
        exactly(grouped_matmul),
        _grouped_type,
        operands=(Operand("x"), Operand("weight"), Operand("ends")),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_groups,
        flops=product_flops,
        source="PyTorch _grouped_mm",
    ),
)
