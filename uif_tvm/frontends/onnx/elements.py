"""Operators on tensors whose elements flow under a stored type (texts, 4-bit and 8-bit floats).

``MOVES`` only move, repeat, choose or drop elements, or compare them for equality: they work on
stored elements as they are, and the declared type of a result follows from the operator's schema.
``AWARE`` have converters that look at declared types themselves. Every other operator must not
see stored elements; it runs on the host, which gets the declared ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from uif_tvm.frontends.converters.context import Unsupported
from uif_tvm.frontends.onnx.tensors import numpy_dtype_named
from uif_tvm.frontends.onnx.values import Dynamic, Known, SequenceValue, Value
from uif_tvm.runtime.elements import is_stored

MOVES = frozenset(
    """
    Compress Concat ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND
    Identity OneHot Pad Reshape ReverseSequence ScatterElements ScatterND Shape Size Slice
    SpaceToDepth Split Squeeze TensorScatter Tile Transpose Trilu Unsqueeze Where
    """.split()
)
AWARE = frozenset(
    """
    BitCast Cast CastLike ConcatFromSequence Constant DequantizeLinear Equal If Loop Optional
    OptionalGetElement OptionalHasElement QuantizeLinear Scan SequenceAt SequenceConstruct
    SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence
    """.split()
)
#: Those of ``AWARE`` in the domain ai.onnx.ml: look-ups of texts.
AWARE_ML = frozenset({"LabelEncoder", "CategoryMapper", "OneHotEncoder"})
#: Between a sequence and tensors of its one element type, which their schemas do not tell.
ONE_TYPE = frozenset({"ConcatFromSequence", "SplitToSequence"})
#: Modes in which operators of ``MOVES`` compute with elements after all.
_COMPUTING = {
    "reduction": ("none",),
    "mode": ("constant", "edge", "reflect", "wrap", "DCR", "CRD", "linear", "circular"),
}


def check_elements(
    op_type: str, domain: str, attrs: dict[str, Any], inputs: Sequence[Value | None]
) -> None:
    """Decline operators that would compute with stored elements.

    Raises:
        Unsupported: the operator belongs on the host.
    """
    stored = [v.dtype for v in inputs if isinstance(v, (Known, Dynamic)) and is_stored(v.dtype)]
    if not stored:
        return
    if (domain == "" and op_type in AWARE) or (domain == "ai.onnx.ml" and op_type in AWARE_ML):
        return
    moves = domain == "" and op_type in MOVES
    if moves and all(attrs.get(name) in (*modes, None) for name, modes in _COMPUTING.items()):
        return
    raise Unsupported(f"no kernel for {stored[0]} elements")


def declare_elements(
    schema: Any | None, inputs: Sequence[Value | None], results: Sequence[Value]
) -> list[Value]:
    """Results with the declared types that the schema gives them: those of inputs that it binds
    to the same type."""
    if schema is None:
        return list(results)
    if schema.name in ONE_TYPE:
        first = next(iter(_tensors(inputs)), None)
        element = None if first is None or not is_stored(first.dtype) else first.dtype
        return [_declared(value, element) for value in results]
    bound: dict[str, str] = {}
    for place, value in enumerate(inputs):
        parameter = schema.inputs[min(place, len(schema.inputs) - 1)] if schema.inputs else None
        if parameter is not None and isinstance(value, (Known, Dynamic)) and is_stored(value.dtype):
            bound.setdefault(parameter.type_str, value.dtype)
    if not bound:
        return list(results)
    last = len(schema.outputs) - 1
    return [
        _declared(value, bound.get(schema.outputs[min(place, last)].type_str))
        for place, value in enumerate(results)
    ]


def _tensors(values: Sequence[Value | None]) -> Iterator[Known | Dynamic]:
    for value in values:
        if isinstance(value, (Known, Dynamic)):
            yield value
        elif isinstance(value, SequenceValue):
            yield from _tensors(value.items)


def _declared(value: Value, element: str | None) -> Value:
    if element is None:
        return value
    if isinstance(value, SequenceValue):
        return SequenceValue(tuple(_declared(item, element) for item in value.items))
    if isinstance(value, Dynamic) and value.element is None:
        return Dynamic(value.expr, element=element)
    if isinstance(value, Known) and value.array.size == 0:
        return Known(np.empty(value.array.shape, numpy_dtype_named(element)))
    return value
