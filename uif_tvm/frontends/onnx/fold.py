"""Evaluation at import: nodes whose inputs are all known, and arithmetic on symbolic dimensions.

Known inputs go through ONNX's own reference implementations. Two guards keep that cheap: kinds
of operator whose reference is slow, and results much larger than their inputs, are left to the
compiler.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from uif_tvm.frontends.onnx.values import Array, Known, Symbolic, Value, decide, simplify

SLOW_REFERENCE = frozenset(
    [
        "Conv",
        "ConvTranspose",
        "ConvInteger",
        "QLinearConv",
        "DeformConv",
        "LSTM",
        "GRU",
        "RNN",
        "MaxPool",
        "AveragePool",
        "LpPool",
        "Resize",
        "Upsample",
        "GridSample",
        "RoiAlign",
        "NonMaxSuppression",
        "STFT",
        "DFT",
        "MelWeightMatrix",
        "LRN",
        "Attention",
        "Unique",
        "MaxUnpool",
        "MaxRoiPool",
        "Col2Im",
    ]
)
"""Left to the compiler above ``SLOW_LIMIT`` input elements."""
SLOW_LIMIT = 4096

NEVER_FOLDED = frozenset(
    [
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "If",
        "Loop",
        "Scan",
        "SequenceMap",
        "Dropout",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceAt",
        "SequenceInsert",
        "SequenceErase",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "ReverseSequence",
        "RotaryEmbedding",
        "ImageDecoder",
        "StringConcat",
        "StringSplit",
        "StringNormalizer",
        "RegexFullMatch",
        "TfIdfVectorizer",
        "LinearAttention",
        "CausalConvWithState",
    ]
)
"""Random, control flow, sequences, text."""

GROWTH_LIMIT = 1 << 22
"""Elements that folding may create from nothing (Expand, ConstantOfShape, Tile)."""

GROWING = frozenset(["Expand", "ConstantOfShape", "Tile", "Range", "EyeLike", "OneHot"])


def can_fold(op_type: str, domain: str, inputs: Sequence[Value | None]) -> bool:
    """Whether a node may be evaluated now."""
    if domain or op_type in NEVER_FOLDED:
        return False
    if not all(value is None or isinstance(value, Known) for value in inputs):
        return False
    size = sum(value.array.size for value in inputs if isinstance(value, Known))
    if op_type in GROWING:
        return _grown_size(op_type, inputs) <= GROWTH_LIMIT
    return size <= SLOW_LIMIT or op_type not in SLOW_REFERENCE


def _grown_size(op_type: str, inputs: Sequence[Value | None]) -> float:
    arrays = [value.array for value in inputs if isinstance(value, Known)]
    if op_type == "ConstantOfShape":
        return float(np.prod(arrays[0].astype(float)))
    if op_type == "Expand":
        shape = np.maximum(arrays[1].astype(float), 1)
        return float(np.prod(shape)) * max(arrays[0].size, 1)
    if op_type == "Tile":
        return float(np.prod(arrays[1].astype(float))) * arrays[0].size
    if op_type == "Range":
        start, stop, step = (float(array.reshape(-1)[0]) for array in arrays)
        return abs((stop - start) / step) if step else np.inf
    return float(sum(array.size for array in arrays)) * 1024


def fold(node: Any, version: int, arrays: Sequence[Array | None]) -> list[Array]:
    """Results of one node of the default domain, by ONNX's reference implementation.

    Raises:
        NotImplementedError: the reference has none.
        Exception: whatever the reference raises on inputs that do not fit.
    """
    from onnx.reference.ops._op_list import load_op

    op = load_op("", node.op_type, version)
    params = {
        "log": lambda *_: None,
        "opsets": {"": version},
        "verbose": 0,
        "new_ops": None,
        "existing_functions": {},
        "evaluator_cls": None,
    }
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = op(node, params).run(*arrays)
    return [np.asarray(result) for result in results]


def _broadcast(fn: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def apply(_: dict[str, Any], left: Array, right: Array) -> Array:
        left, right = np.broadcast_arrays(left, right)
        out = np.empty(left.shape, dtype=object)
        for index in np.ndindex(*left.shape):
            out[index] = fn(left[index], right[index])
        return out

    return apply


def _min(left: Any, right: Any) -> Any:
    from tvm import tirx

    return min(left, right) if _ints(left, right) else tirx.min(_expr(left), _expr(right))


def _max(left: Any, right: Any) -> Any:
    from tvm import tirx

    return max(left, right) if _ints(left, right) else tirx.max(_expr(left), _expr(right))


def _div(left: Any, right: Any) -> Any:
    """Quotient towards zero; dimensions are never negative, so floor and trunc agree for them."""
    from tvm import tirx

    if _ints(left, right):
        return int(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))
    return tirx.truncdiv(_expr(left), _expr(right))


def _mod(left: Any, right: Any) -> Any:
    from tvm import tirx

    return left % right if _ints(left, right) else tirx.floormod(_expr(left), _expr(right))


def _ints(*items: Any) -> bool:
    return all(isinstance(item, (int, np.integer)) for item in items)


def _expr(item: Any) -> Any:
    from tvm import tirx

    return tirx.const(int(item), "int64") if _ints(item) else item


def _compare(fn: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def decided(left: Any, right: Any) -> bool:
        truth = decide(fn(left, right) if _ints(left, right) else fn(_expr(left), _expr(right)))
        if truth is None:
            raise NotImplementedError
        return truth

    return _broadcast(decided)


def _equal(left: Any, right: Any) -> Any:
    from tvm import tirx

    return left == right if _ints(left, right) else tirx.EQ(_expr(left), _expr(right))


def _where(_: dict[str, Any], condition: Array, left: Array, right: Array) -> Array:
    return np.where(condition.astype(bool), left, right)


def _gather(attrs: dict[str, Any], data: Array, indices: Array) -> Array:
    return np.take(data, indices.astype(np.int64), axis=int(attrs.get("axis", 0)))


def _concat(attrs: dict[str, Any], *parts: Array) -> Array:
    return np.concatenate(parts, axis=int(attrs["axis"]))


def _axes(attrs: dict[str, Any], given: Array | None) -> list[int] | None:
    if given is not None:
        return [int(axis) for axis in given.reshape(-1)]
    return list(attrs["axes"]) if "axes" in attrs else None


def _unsqueeze(attrs: dict[str, Any], data: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(data, tuple(_axes(attrs, axes) or ()))


def _squeeze(attrs: dict[str, Any], data: Array, axes: Array | None = None) -> Array:
    chosen = _axes(attrs, axes)
    return np.squeeze(data, None if chosen is None else tuple(chosen))


def _reshape(_: dict[str, Any], data: Array, shape: Array) -> Array:
    return data.reshape([int(dim) for dim in shape])


def _slice(
    attrs: dict[str, Any],
    data: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first = attrs["starts"] if starts is None else [int(v) for v in starts]
    last = attrs["ends"] if ends is None else [int(v) for v in ends]
    along = _axes(attrs, axes) or list(range(len(first)))
    stride = [1] * len(first) if steps is None else [int(v) for v in steps]
    index: list[slice] = [slice(None)] * data.ndim
    for axis, begin, end, step in zip(along, first, last, stride, strict=True):
        index[axis] = slice(begin, end if step > 0 or end >= -data.shape[axis] else None, step)
    return data[tuple(index)]


def _reduce_prod(attrs: dict[str, Any], data: Array, axes: Array | None = None) -> Array:
    if data.ndim != 1:
        raise NotImplementedError
    total: Any = 1
    for item in data:
        total = total * item
    return np.array([total] if attrs.get("keepdims", 1) else total, dtype=object)


SYMBOLIC_OPS: dict[str, Callable[..., Array]] = {
    "Add": _broadcast(lambda a, b: a + b),
    "Sub": _broadcast(lambda a, b: a - b),
    "Mul": _broadcast(lambda a, b: a * b),
    "Div": _broadcast(_div),
    "Mod": _broadcast(_mod),
    "Min": _broadcast(_min),
    "Max": _broadcast(_max),
    "Equal": _compare(_equal),
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Where": _where,
    "Identity": lambda _, data: data,
    "Cast": lambda _, data: data,
    "Gather": _gather,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Slice": _slice,
    "ReduceProd": _reduce_prod,
}


COMPARISONS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])


def fold_symbolic(
    op_type: str, attrs: dict[str, Any], inputs: Sequence[Value | None]
) -> Known | Symbolic | None:
    """Result of integer shape arithmetic on symbolic dimensions, ``None`` where it is not that."""
    rule = SYMBOLIC_OPS.get(op_type)
    dtypes = {value.dtype for value in inputs if isinstance(value, (Known, Symbolic))}
    if rule is None or not dtypes <= {"int64", "int32", "bool"}:
        return None
    if op_type == "Cast" and attrs.get("to") not in (6, 7):
        return None
    dtype = {6: "int32", 7: "int64"}[attrs["to"]] if op_type == "Cast" else None
    if op_type in COMPARISONS:
        dtype = "bool"
    first = next(value for value in inputs if isinstance(value, Symbolic))
    operands: list[Array | None] = []
    for value in inputs:
        if isinstance(value, Known):
            operands.append(value.array.astype(object))
        elif isinstance(value, Symbolic):
            operands.append(value.elements)
        elif value is None:
            operands.append(None)
        else:
            return None
    try:
        result = rule(attrs, *operands)
    except (NotImplementedError, TypeError, ValueError):
        return None
    return settle(np.asarray(result, dtype=object), dtype or first.dtype)


def settle(elements: Array, dtype: str) -> Known | Symbolic:
    """Simplify each element; known when all of them are integers (or truth values)."""
    if dtype == "bool":
        return Known(elements.astype(bool))
    out = np.empty(elements.shape, dtype=object)
    for index in np.ndindex(*elements.shape):
        out[index] = simplify(elements[index])
    if all(isinstance(item, int) for item in out.flat):
        return Known(out.astype(dtype))
    return Symbolic(out, dtype)
