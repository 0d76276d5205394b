"""Arithmetic and memory traffic of one operator instance, from its shapes.

Counts multiplies and adds of products and convolutions, one operation per result element (or per
input element where that is more) of all others; sources: the definitions in the ONNX operator
specification. Bytes are those of all operands and results, each moved once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]

#: Operators that only say how elements are to be read; compiled code does no work for them.
FREE = frozenset(
    "Identity Reshape Squeeze Unsqueeze Flatten Shape Size Constant Dropout Optional "
    "OptionalGetElement OptionalHasElement SequenceConstruct SequenceEmpty SequenceAt "
    "SequenceInsert SequenceErase SequenceLength If Loop Scan SequenceMap".split()
)
#: Gates of recurrent operators.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "DynamicQuantizeLSTM": 4}
#: Operands of a convolution: data, weights.
_CONVOLUTIONS = {
    "Conv": (0, 1),
    "ConvInteger": (0, 1),
    "QLinearConv": (0, 3),
    "ConvTranspose": (0, 1),
    "DeformConv": (0, 1),
}
_PRODUCTS = {
    "MatMul": (0, 1),
    "MatMulInteger": (0, 1),
    "QLinearMatMul": (0, 3),
    "FusedMatMul": (0, 1),
    "DynamicQuantizeMatMul": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
}


def flops(
    op: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape],
) -> float:
    """Arithmetic operations of one instance of the ONNX operator ``op``."""
    given = [shape for shape in inputs if shape is not None]
    result = math.prod(outputs[0]) if outputs else 0
    if op in FREE:
        return 0.0
    if op in _CONVOLUTIONS:
        data, weights = (_at(inputs, index) for index in _CONVOLUTIONS[op])
        # Weights: O, I / groups, kernel...; transposed ones I, O / groups, kernel...
        places = math.prod(data) if op == "ConvTranspose" else result
        return 2.0 * places * math.prod(weights[1:])
    if op in _PRODUCTS:
        left = _at(inputs, _PRODUCTS[op][0])
        return 2.0 * result * (left[-1] if left else 1)
    if op == "Gemm":
        left = _at(inputs, 0)
        return 2.0 * result * (left[0 if attributes.get("transA") else -1] if left else 1)
    if op in _GATES:
        return _recurrent(op, attributes, inputs)
    if op == "Einsum":
        return 2.0 * max(result, math.prod(given[0]) if given else 0)
    if op == "Attention" and len(given) >= 2 and len(given[0]) >= 3:
        query, key = given[0], given[1]
        return 4.0 * math.prod(query) * key[-2]
    elements = max([result, *(math.prod(shape) for shape in given)], default=0)
    return float(elements)


def nbytes(sizes: Sequence[int], op: str) -> float:
    """Memory traffic of one instance, given the bytes of each operand and result."""
    return 0.0 if op in FREE else float(sum(sizes))


def _recurrent(op: str, attributes: Mapping[str, Any], inputs: Sequence[Shape | None]) -> float:
    data = _at(inputs, 0)
    if len(data) != 3:
        return 0.0
    hidden = int(attributes.get("hidden_size") or 0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    steps_batch = data[0] * data[1]
    return 2.0 * steps_batch * directions * _GATES[op] * hidden * (data[2] + hidden)


def _at(inputs: Sequence[Shape | None], index: int) -> Shape:
    return (inputs[index] if index < len(inputs) else None) or ()
