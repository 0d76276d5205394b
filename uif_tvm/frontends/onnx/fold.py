"""Evaluation at import of nodes whose inputs are all known.

Known inputs go through ONNX's own reference implementations. Two guards keep that cheap: kinds
of operator whose reference is slow, and results much larger than their inputs, are left to the
compiler.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from uif_tvm.frontends.onnx.values import Array, Known, Value

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
