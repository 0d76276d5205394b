"""Floating-point operations of an ONNX model, counted from its graph."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any


def count(path: Path) -> float:
    """Multiplies plus adds in ``Conv``, ``Gemm`` and ``MatMul``; everything else is left out.

    Nodes whose shapes cannot be inferred count nothing.
    """
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)), data_prop=True)
    graph = model.graph
    shapes: dict[str, tuple[int, ...]] = {
        tensor.name: tuple(tensor.dims) for tensor in graph.initializer
    }
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    return float(sum(_node(node, shapes) for node in graph.node))


def _node(node: Any, shapes: dict[str, tuple[int, ...]]) -> int:
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return 0
    out = shapes.get(node.output[0])
    operands = [shapes.get(name) for name in node.input[:2]]
    if out is None or None in operands:
        return 0
    left, right = operands
    if left is None or right is None:
        return 0
    if node.op_type == "Conv":
        # Weights are O, I / groups, kernel...: each output element reads one filter.
        return 2 * math.prod(out) * math.prod(right[1:])
    if node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute):
        return 2 * math.prod(out) * left[0]
    return 2 * math.prod(out) * left[-1]
