"""What a graph should give, and how far rounding may take it: node by node in ONNX Runtime.

Every node runs alone, unoptimised, in float32; float16 and bfloat16 values are rounded after each
node, and float64 is stood in for by float32. Run again with noise of a few roundings on what goes
into and comes out of each rounding operator, the graph shows its own conditioning: where noise of
``n`` roundings moves a result by ``d``, so may any honest reordering of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]

#: Spacing of the numbers above one.
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Bounds of what float16 can hold; other types are kept far from theirs by the generator.
HALF_MAX = 65504.0
OPSET = 23
IR_VERSION = 11

#: Operators that only choose, move or compare: their results carry no rounding.
EXACT = frozenset(
    """
    Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Clip Concat
    DepthToSpace Equal Expand Flatten Floor Gather GatherElements GatherND GlobalMaxPool Greater
    GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max MaxPool Min Neg NonZero Not OneHot Or
    Pad ReduceMax ReduceMin Relu Reshape ReverseSequence Round ScatterElements ScatterND Shape Sign
    Size Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where Xor
    """.split()
)
#: Operators that add up many terms, or are made of several roundings.
LONG = frozenset(
    """
    Attention AveragePool BatchNormalization Conv ConvTranspose CumSum Einsum Gemm GlobalAveragePool
    GroupNormalization InstanceNormalization LayerNormalization LogSoftmax LpNormalization MatMul
    Mean RMSNormalization ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd
    ReduceSum ReduceSumSquare Resize Softmax Sum
    """.split()
)
#: Operands whose slightest change is another operation: the scales that make extents, and the
#: exponent, which is not a whole number any more.
_UNTOUCHED = {"Resize": (1, 2), "Pow": (1,)}

_FLOAT = onnx.TensorProto.FLOAT
_STANDS_IN = {
    onnx.TensorProto.FLOAT16: _FLOAT,
    onnx.TensorProto.BFLOAT16: _FLOAT,
    onnx.TensorProto.DOUBLE: _FLOAT,
}


class Refused(Exception):
    """A node that cannot be, or whose value is of no use here."""


def simulated(array: Array) -> Array:
    """``array`` as the evaluator holds it: floats of every width as float32."""
    return array.astype(np.float32) if array.dtype.name in EPS else array


def rounded(array: Array, dtype: str) -> Array:
    """float32 values as the nearest ones of ``dtype``, still float32."""
    if array.dtype != np.float32 or dtype not in ("float16", "bfloat16"):
        return array
    narrow = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        return array.astype(narrow).astype(np.float32)


class Node:
    """One node, ready to run many times on values of fixed types."""

    def __init__(self, proto: onnx.NodeProto, operands: Sequence[Array | None]) -> None:
        proto = _single(proto)
        #: An operand's position -> the name it is fed by.
        self._names = {i: f"i{i}" for i, array in enumerate(operands) if array is not None}
        del proto.input[:]
        proto.input.extend(self._names.get(i, "") for i in range(len(operands)))
        self._outputs = [name for name in proto.output if name]
        values = [
            helper.make_tensor_value_info(
                self._names[i], helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for i, array in enumerate(operands)
            if array is not None
        ]
        empty = [onnx.ValueInfoProto(name=name) for name in self._outputs]
        graph = helper.make_graph([proto], "one", values, empty)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = None
        self._fallback: Any = None
        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error):
                raise Refused(str(error)) from error
            self._fallback = ReferenceEvaluator(model)

    def __call__(self, operands: Sequence[Array | None]) -> list[Array]:
        """The results; :class:`Refused` where the operator has none for these operands."""
        feed = {name: operands[i] for i, name in self._names.items()}
        try:
            if self._session is not None:
                return [np.asarray(result) for result in self._session.run(self._outputs, feed)]
            with np.errstate(all="ignore"):
                return [np.asarray(result) for result in self._fallback.run(self._outputs, feed)]
        except Exception as error:
            raise Refused(str(error)) from error


def _single(proto: onnx.NodeProto) -> onnx.NodeProto:
    """A copy in which float32 stands in for the other floats."""
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    for attribute in copy.attribute:
        if attribute.name in ("to", "dtype", "stash_type", "softmax_precision"):
            attribute.i = _STANDS_IN.get(attribute.i, attribute.i)
    return copy


class Noise:
    """Roundings as random relative errors; ``Noise(None)`` makes none.

    Args:
        seed: of the errors; ``None`` for none at all.
    """

    def __init__(self, seed: int | None) -> None:
        self._rng = None if seed is None else np.random.default_rng(seed)

    def __call__(self, array: Array, dtype: str, roundings: float) -> Array:
        """``array`` of ``dtype``, off by about so many roundings."""
        if self._rng is None or not roundings or dtype not in EPS or not array.size:
            return array
        # float64 is simulated by float32: its noise must be seen there, and is scaled later.
        unit = max(EPS[dtype], EPS["float32"])
        error = self._rng.standard_normal(array.shape).astype(np.float32) * (unit * roundings)
        with np.errstate(all="ignore"):
            moved = array + array * error
        return np.where(np.isfinite(array), moved, array).astype(np.float32)


def roundings(op: str) -> float:
    """How many roundings the result of an operator carries."""
    if op in EXACT:
        return 0.0
    return 3.0 if op in LONG else 1.5


def terms(proto: onnx.NodeProto, operands: Sequence[Array | None]) -> int:
    """How many terms each element of a result adds up, roughly.

    Added one after another, ``k`` terms of random sign are off by ``0.2 sqrt(k)`` roundings of
    the sum's typical size (each partial sum is rounded): as much as terms off by so many each.
    """
    op, first = proto.op_type, operands[0]
    second = operands[1] if len(operands) > 1 else None
    if op not in LONG or first is None or not first.ndim:
        return 1
    if op in ("MatMul", "Gemm", "Einsum"):
        return int(max(first.shape[-2:]) if op == "Gemm" else first.shape[-1])
    if op == "Conv" and second is not None:
        return int(np.prod(second.shape[1:]))
    if op == "ConvTranspose" and second is not None:
        return int(second.shape[0] * np.prod(second.shape[2:]))
    if op.startswith(("Reduce", "Global")) or op == "InstanceNormalization":
        return int(first.size)
    return int(max(first.shape[-1], 16 if op == "Attention" else 1))


class Evaluator:
    """Runs graphs of one generator; sessions of nodes are kept by the node's first output."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def run(
        self,
        proto: onnx.NodeProto,
        values: Mapping[str, Array],
        dtypes: Mapping[str, str],
        noise: Noise,
    ) -> dict[str, Array]:
        """Results of a node by name.

        Args:
            values: what is known so far, by name.
            dtypes: element types that the model declares, of results too.
            noise: the roundings to simulate.
        """
        if proto.op_type == "If":
            return self._branch(proto, values, dtypes, noise)
        operands = [values[name] if name else None for name in proto.input]
        key = (proto.output[0], *(None if a is None else (a.shape, a.dtype) for a in operands))
        if key not in self._nodes:
            self._nodes[key] = Node(proto, operands)
        steps = roundings(proto.op_type)
        if steps:
            kept = _UNTOUCHED.get(proto.op_type, ())
            spread = max(0.5, 0.2 * terms(proto, operands) ** 0.5)
            operands = [
                array if array is None or i in kept else noise(array, dtypes[name], spread)
                for i, (name, array) in enumerate(zip(proto.input, operands, strict=True))
            ]
        if proto.op_type == "Cast" and dtypes[proto.input[0]] == dtypes.get(proto.output[0]):
            steps = 0.0
        results = self._nodes[key](operands)
        names = [name for name in proto.output if name]
        found = {}
        for name, array in zip(names, results, strict=True):
            dtype = dtypes.get(name, array.dtype.name)
            found[name] = rounded(noise(array, dtype, steps), dtype)
        return found

    def _branch(
        self,
        proto: onnx.NodeProto,
        values: Mapping[str, Array],
        dtypes: Mapping[str, str],
        noise: Noise,
    ) -> dict[str, Array]:
        taken = bool(values[proto.input[0]])
        name = "then_branch" if taken else "else_branch"
        graph = next(a.g for a in proto.attribute if a.name == name)
        inner = dict(values)
        for node in graph.node:
            inner |= self.run(node, inner, dtypes, noise)
        return {
            out: inner[result.name] for out, result in zip(proto.output, graph.output, strict=True)
        }

    def graph(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: Mapping[str, Array],
        dtypes: Mapping[str, str],
        seed: int | None = None,
    ) -> dict[str, Array]:
        """Every value of a graph from its (simulated) inputs and weights; noise of ``seed``."""
        values, noise = dict(given), Noise(seed)
        for node in nodes:
            values |= self.run(node, values, dtypes, noise)
        return values
