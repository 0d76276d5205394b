"""Host fallback: an operator without converter, evaluated at run time by ONNX's reference.

    y = op(x)       ->  y = call_dps_packed("uif.host.onnx", ("op", model bytes, x))
    y = nonzero(x)  ->  y = match_cast(call_pure_packed("uif.host.onnx.sized", ...), [2, n])

The one-node model travels as a byte tensor among the weights, so a ``.uif`` file needs nothing
beside it but the ``onnx`` package where it runs. Subgraphs go along, with the outer values that
they read. Shapes come from ONNX's own inference; what it leaves open is read from the results.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.frontends.onnx.host_model import (
    HostModel,
    NotRepresentableError,
    build,
    operand_name,
)
from uif_tvm.frontends.onnx.validate import nodes_below
from uif_tvm.frontends.onnx.values import (
    SIZE_PREFIX,
    Absent,
    Dim,
    Dynamic,
    HostSequence,
    Known,
    Poison,
    Symbolic,
    Value,
)
from uif_tvm.runtime.elements import is_stored, stored_dtype
from uif_tvm.runtime.host_control import limited
from uif_tvm.runtime.host_ops import HOST_CALL, SIZED_CALL, element_of, evaluator_of

if TYPE_CHECKING:
    from tvm import relax

    from uif_tvm.frontends.onnx.importer import GraphImporter
    from uif_tvm.frontends.onnx.scope import Scope


def distrusted(node: Any) -> bool:
    """Whether the reference is known to give other results than the operator's makers mean.

    Probabilities of a support vector classifier of more than two classes, and both scores of a
    linear classifier that has one row of coefficients (judged by ONNX Runtime and scikit-learn).
    """
    lists = {a.name: len(a.ints) or len(a.floats) or len(a.strings) for a in node.attribute}
    labels = lists.get("classlabels_ints", 0) or lists.get("classlabels_strings", 0)
    if node.op_type == "SVMClassifier":
        return labels > 2 and lists.get("prob_a", 0) > 0
    return node.op_type == "LinearClassifier" and labels == 2 and lists.get("intercepts", 1) == 1


SAMPLE_LIMIT = 1 << 16
"""Elements of operands up to which a node is tried on example data at import."""

SAMPLE_ROUNDS = 64
"""Rounds of a loop that such a trial may take."""

_UNFIT = (NotImplementedError, AttributeError, NameError, TypeError)
"""What the reference raises where it lacks an operator's mode, rather than on data that is odd."""


def host_call(
    importer: GraphImporter,
    node: Any,
    domain: str,
    inputs: Sequence[Value | None],
    scope: Scope,
) -> list[Value] | None:
    """The node as a call back to the host, or ``None`` where that cannot be done."""
    if any(isinstance(value, Poison) for value in inputs):
        return None
    if any(distrusted(inner) for inner in nodes_below([node])):
        return None
    try:
        model = build(node, inputs, scope, importer.functions, importer.folder)
        declared = [scope.types.get(name) for name in node.output if name]
        results = _results(model, declared)
    except NotRepresentableError:
        return None
    if results is None:
        return None
    name = f"{domain}::{node.op_type}" if domain else str(node.op_type)
    values = iter(_emit(importer, model, name, node, results))
    return [next(values) if output else Absent() for output in node.output]


@dataclass
class _Result:
    """What is known of one result: its ONNX type, and its dimensions as far as they are settled.

    ``dims`` is ``None`` for a tensor of unknown rank and for a sequence.
    """

    type_proto: Any
    dtype: str
    dims: list[Dim | None] | None
    is_sequence: bool

    @property
    def settled(self) -> bool:
        """Whether memory for it can be planned."""
        return self.dims is not None and all(dim is not None for dim in self.dims)


def _results(model: HostModel, declared: Sequence[Any]) -> list[_Result] | None:
    """The results' types, ``None`` where the host cannot evaluate the node.

    Args:
        declared: types that the model declares of the results, ``None`` where it does not.
    """
    try:
        evaluator = evaluator_of(model.proto)
    except Exception:
        return None  # no implementation of one of the operators
    types = _inferred(model.proto) or _sequences(declared)
    for kind, hint in zip(types or (), declared, strict=False):
        _add_rank(kind, hint)
    open_rank = types is None or any(map(_lacks_rank, types))
    sample = _sampled(model, evaluator) if open_rank or not _any_subgraph(model) else None
    if isinstance(sample, _UNFIT) or (types is None and not isinstance(sample, list)):
        return None
    if types is None:
        types = [_type_like(value) for value in sample]  # type: ignore[union-attr]
    results = []
    for place, (output, kind) in enumerate(zip(model.proto.graph.output, types, strict=True)):
        if kind.HasField("optional_type"):
            # Present whenever it is read; a run in which it is not ends in a typed error.
            kind = kind.optional_type.elem_type
        output.type.CopyFrom(kind)
        have = sample[place] if isinstance(sample, list) else None
        result = _result(model, kind, have, _branch_shapes(model, place))
        if result is None:
            return None
        results.append(result)
    return results


def _lacks_rank(kind: Any) -> bool:
    return kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape")


def _add_rank(kind: Any, hint: Any) -> None:
    """Take the rank of a tensor from the model's declaration where inference has none.

    Extents are left to the run: declarations are not always kept up to date.
    """
    if not _lacks_rank(kind) or hint is None or _lacks_rank(hint):
        return
    if hint.HasField("tensor_type"):
        kind.tensor_type.shape.SetInParent()
        for _ in hint.tensor_type.shape.dim:
            kind.tensor_type.shape.dim.add()


def _inferred(proto: Any) -> list[Any] | None:
    """Types of the outputs by ONNX's inference; ``None`` unless all are found."""
    from onnx import shape_inference

    try:
        graph = shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True).graph
    except Exception:
        return None  # not inferable is not an error: the result on example data decides
    types = [output.type for output in graph.output]
    known = all(kind.WhichOneof("value") and _element_code(kind) for kind in types)
    return types if known else None


def _sequences(declared: Sequence[Any]) -> list[Any] | None:
    """What the model declares, where that settles everything: sequences have no rank to be wrong
    about."""
    types = []
    for kind in declared:
        if kind is not None and kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        if kind is None or not kind.HasField("sequence_type") or not _element_code(kind):
            return None
        types.append(type(kind).FromString(kind.SerializeToString()))
    return types or None


def _element_code(kind: Any) -> int:
    while not kind.HasField("tensor_type"):
        which = kind.WhichOneof("value")
        if which not in ("sequence_type", "optional_type"):
            return 0
        kind = getattr(kind, which).elem_type
    return int(kind.tensor_type.elem_type)


def _any_subgraph(model: HostModel) -> bool:
    return any(a.HasField("g") or a.graphs for a in model.proto.graph.node[0].attribute)


def _branch_shapes(model: HostModel, place: int) -> list[list[Dim | None]]:
    """The shapes that the branches of an ``If`` yield, as far as inference has them."""
    from onnx import shape_inference

    if model.proto.graph.node[0].op_type != "If":
        return []
    try:
        graph = shape_inference.infer_shapes(model.proto, data_prop=True).graph
    except Exception:
        return []  # no more is known then
    yields = [a.g.output[place].type for a in graph.node[0].attribute if a.HasField("g")]
    return [
        [_dim(model, dim) for dim in kind.tensor_type.shape.dim]
        for kind in yields
        if kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
    ]


def _result(
    model: HostModel, kind: Any, sample: Any, branches: list[list[Dim | None]]
) -> _Result | None:
    """What is known of a result.

    Args:
        sample: it on example data, which tells the rank where inference does not.
        branches: shapes of which it has one; those of that rank tell the extents.
    """
    dtype = element_of(kind)
    if kind.HasField("sequence_type"):
        return _Result(kind, dtype, None, True)
    dims: list[Dim | None] | None = None
    if kind.tensor_type.HasField("shape"):
        dims = [_dim(model, dim) for dim in kind.tensor_type.shape.dim]
    elif sample is not None:
        rank = np.ndim(sample)
        same = [shape for shape in branches if len(shape) == rank]
        dims = list(same[0]) if len(same) == 1 else [None] * rank
    if sample is not None and not _agrees(sample, dtype, dims):
        return None
    return _Result(kind, dtype, dims, False)


def _dim(model: HostModel, dim: Any) -> Dim | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return model.dims.get(dim.dim_param) if dim.dim_param else None


def _agrees(sample: Any, dtype: str, dims: Sequence[Dim | None] | None) -> bool:
    """Whether the evaluator's result on example data is what inference says."""
    array = np.asarray(sample)
    if dims is not None and array.ndim != len(dims):
        return False
    if is_stored(dtype) or array.dtype.kind not in "fiub" or array.size == 0:
        return True
    return array.dtype == dtype or np.can_cast(array.dtype, np.dtype(dtype), "same_kind")


def _type_like(value: Any) -> Any:
    """ONNX type of a result on example data, of its rank."""
    import onnx
    from onnx import helper

    if isinstance(value, list):
        item = _type_like(value[0]) if value else onnx.TypeProto()
        return helper.make_sequence_type_proto(item)
    array = np.asarray(value)
    text = array.dtype.kind in "OUS"
    code = onnx.TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(code, [None] * array.ndim)


def _sampled(model: HostModel, evaluator: Any) -> list[Any] | Exception | None:
    """Results on example data, the exception they end in, or ``None`` where that costs too much."""
    feeds: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    total = 0
    for declared in model.proto.graph.input:
        if not declared.type.HasField("tensor_type"):
            return None
        tensor = declared.type.tensor_type
        if not tensor.HasField("shape"):
            return None
        shape = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in tensor.shape.dim]
        total += int(np.prod(shape, dtype=np.float64))
        if total > SAMPLE_LIMIT:
            return None
        feeds[declared.name] = _example(element_of(declared.type), shape, rng)
        if model.proto.graph.node[0].op_type == "Loop" and declared.name == operand_name(0):
            feeds[declared.name] += 2  # no rounds, no items to tell the rank of
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(), limited(SAMPLE_ROUNDS):
            warnings.simplefilter("ignore")
            return list(evaluator.run(None, feeds))
    except Exception as error:
        return error


def _example(dtype: str, shape: list[int], rng: np.random.Generator) -> Any:
    from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

    if dtype == "string":
        return np.full(shape, "a", object)
    if "float" in dtype:
        return rng.standard_normal(shape).astype(numpy_dtype_named(dtype))
    return np.zeros(shape, numpy_dtype_named(dtype))


# --- emission ---------------------------------------------------------------------------------


def _emit(
    importer: GraphImporter, model: HostModel, name: str, node: Any, results: list[_Result]
) -> list[Value]:
    from tvm import ir, relax

    payload = relax.const(np.frombuffer(model.proto.SerializeToString(), np.uint8).copy(), "uint8")
    args = [ir.StringImm(name), payload, *[_expr(importer, value) for value in model.operands]]
    hint = node.name or next(output for output in node.output if output)
    if all(result.settled for result in results):
        types = [_tensor_type(result) for result in results]
        call = relax.op.call_dps_packed(HOST_CALL, relax.Tuple(args), types)
    else:
        types = [_open_type(result) for result in results]
        made = types[0] if len(types) == 1 else relax.TupleType(types)
        call = relax.op.call_pure_packed(SIZED_CALL, *args, ty_args=made)
    out = importer.bb.emit(call, name_hint=hint)
    items = [out]
    if len(results) > 1:
        items = [
            importer.bb.emit(relax.TupleGetItem(out, place), name_hint=f"{hint}_{place}")
            for place in range(len(results))
        ]
    return [_value(importer, item, r, hint) for item, r in zip(items, results, strict=True)]


def _tensor_type(result: _Result) -> relax.TensorType:
    from tvm import relax

    return relax.TensorType(result.dims, stored_dtype(result.dtype))


def _open_type(result: _Result) -> Any:
    """The type that the call itself vouches for."""
    from tvm import relax

    if result.is_sequence:
        return relax.ObjectType()
    rank = -1 if result.dims is None else len(result.dims)
    return relax.TensorType(dtype=stored_dtype(result.dtype), ndim=rank)


def _value(importer: GraphImporter, item: relax.Expr, result: _Result, hint: str) -> Value:
    """One result, its open dimensions read from the tensor."""
    from tvm import relax, tirx

    if result.is_sequence:
        return HostSequence(item, result.type_proto)
    element = result.dtype if is_stored(result.dtype) else None
    if result.dims is not None and item.ty.shape is None:
        stem = "".join(c if c.isalnum() else "_" for c in hint)[-24:].strip("_")
        dims = [
            tirx.Var(f"{SIZE_PREFIX}{stem}_{axis}", "int64") if dim is None else dim
            for axis, dim in enumerate(result.dims)
        ]
        shaped = relax.TensorType(dims, stored_dtype(result.dtype))
        item = importer.bb.match_cast(item, shaped)
    return Dynamic(item, element=element)


def _expr(importer: GraphImporter, value: Known | Symbolic | Dynamic | HostSequence) -> relax.Expr:
    if isinstance(value, (Dynamic, HostSequence)):
        return value.expr
    if isinstance(value, Symbolic):
        return importer.materialise(value, "dims")
    return importer.constant(value.array)
