"""Standard operators in Relax graphs.

An operator that Relax has under the same meaning is Relax's own; every other :class:`OpSpec` is
registered with TVM as ``uif.<name>``, its types inferred by the spec, its attributes a dictionary:

    y = uif.hard_swish(x)        z = uif.rope(x, cos, sin, interleaved=False)

So all passes, placement and reports see operators by their standard names, and the kernel map
(``uif_tvm.kernels.legalize``) has one entry for each.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.ir import Call, Op

from uif_tvm import ops
from uif_tvm.errors import UsageError
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.ops.spec import OpSpec, TensorType
from uif_tvm.relax_forms import MAKERS, READERS
from uif_tvm.relax_util import attributes, make_constant, op_name

_SPATIAL = ("NCW", "NCHW", "NCDHW")
#: Attributes of Relax operators that specs leave out -> the values under which they may.
_MEANT: Mapping[str, Sequence[str]] = {
    "data_layout": _SPATIAL,
    "layout": _SPATIAL,
    "out_layout": _SPATIAL,
    "kernel_layout": ("OIW", "OIHW", "OIDHW"),
    "ceil_mode": ("False", "0"),
}
#: Attribute that lists the operands present, for operators with optional ones.
GIVEN = "operands"

_lock = threading.Lock()
_registered: set[str] = set()


def call(name: str, *operands: Any, **attrs: Any) -> Call:
    """The application of a standard operator, not yet bound to a variable.

    Args:
        name: standard name, see ``uif_tvm.ops``.
        operands: Relax tensors; ``None`` for optional ones left out.
        attrs: attributes; defaults are filled in.

    Raises:
        UsageError: unknown operator or attribute, or operands that do not fit.
    """
    spec = ops.find(name)
    values = spec.resolve(attrs)
    while operands and operands[-1] is None:
        operands = operands[:-1]
    if spec.relax is not None:
        return _relax_call(spec, operands, values)
    types = [None if operand is None else type_of(operand) for operand in operands]
    spec.result_types(types, values)  # its error is typed; TVM's inference would lose that
    register(spec)
    stored = {key: _storable(value) for key, value in values.items() if value is not None}
    if any(operand.optional for operand in spec.operands):
        names = [operand.name for operand in spec.operands]
        stored[GIVEN] = [n for n, given in zip(names, operands, strict=False) if given is not None]
    present = [operand for operand in operands if operand is not None]
    return relax.Call(Op.get(spec.graph_name), present, ir.make_node("ir.DictAttrs", **stored))


def read(node: Any) -> tuple[OpSpec, list[Any], dict[str, Any]] | None:
    """(spec, operands with ``None`` for those left out, attributes) of a call.

    ``None`` where no spec describes the operator, or the call uses more of the Relax operator
    than the spec describes.
    """
    name = op_name(node) if isinstance(node, Call) else None
    spec = ops.find_graph_op(name) if name else None
    if spec is None:
        return None
    found = attributes(node)
    if spec.relax is None:
        given = found.pop(GIVEN, None)
        attrs = {key: _plain(value) for key, value in found.items()}
        return spec, _aligned(spec, list(node.args), given), spec.resolve(attrs)
    if name in READERS:
        custom: tuple[OpSpec, list[Any], dict[str, Any]] | None = READERS[name](spec, node, found)
        return custom
    attrs = {item.name: _plain(found[item.name]) for item in spec.attributes if item.name in found}
    if not all(_described(node, key, found[key]) for key in found.keys() - attrs.keys()):
        return None
    operands = list(node.args)
    if len(operands) == 1 and isinstance(operands[0], relax.Tuple):
        operands = list(operands[0].fields)
    return spec, operands, spec.resolve(attrs)


def type_of(expr: Any) -> TensorType:
    """Extents and element type of a Relax tensor.

    Raises:
        UsageError: it is no tensor, or not even its rank is known.
    """
    return tensor_type(expr.ty)


def tensor_type(ty: relax.Type) -> TensorType:
    """The same of a Relax type; errors as in :func:`type_of`."""
    shape = getattr(getattr(ty, "shape", None), "values", None)
    if shape is None:
        raise UsageError(f"a tensor of known rank is needed, got {ty}", code="UIF-OP-MISUSE")
    dims = tuple(int(n) if isinstance(n, (int, tirx.IntImm)) else n for n in shape)
    return TensorType(dims, str(ty.dtype))


def register(spec: OpSpec) -> None:
    """Make ``uif.<name>`` known to TVM, once per process."""
    with _lock:
        if spec.graph_name in _registered:
            return
        ir._ffi_api.RegisterOp(spec.graph_name, spec.source or spec.family)
        op = Op.get(spec.graph_name)
        for operand in spec.operands:
            op.add_argument(operand.name, "Tensor", "")
        op.set_attr("FInferType", _infer)
        op.set_attr("FPurity", True)
        _registered.add(spec.graph_name)


class RelaxBuilder:
    """Emits a decomposition into a function under construction (see ``ops.build.Builder``).

    Args:
        bb: the builder; every operator is bound to a variable.
        name: name hint of the variables: the source node's name.
    """

    def __init__(self, bb: relax.BlockBuilder, name: str = "") -> None:
        self.bb = bb
        self.name = name

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        """See ``Builder.op``."""
        value = self.bb.emit(call(name, *operands, **attrs), self.name)
        if not isinstance(value.ty, relax.TupleType):
            return value
        return tuple(
            self.bb.emit(relax.TupleGetItem(value, index), self.name)
            for index in range(len(value.ty.fields))
        )

    def const(self, value: Any, dtype: str) -> Any:
        """See ``Builder.const``."""
        return make_constant(np.asarray(value, numpy_dtype(dtype)))

    def shape(self, value: Any) -> tuple[Any, ...]:
        """See ``Builder.shape``."""
        return type_of(value).shape

    def dtype(self, value: Any) -> str:
        """See ``Builder.dtype``."""
        return str(value.ty.dtype)


def _infer(node: Call, bb: Any) -> relax.Type:
    """TVM's type inference of a ``uif.`` operator: the spec's."""
    found = read(node)
    if found is None:
        raise ValueError(f"{node.op} is not registered")
    spec, operands, attrs = found
    types = [None if operand is None else type_of(operand) for operand in operands]
    results = [
        relax.TensorType(relax.ShapeExpr(list(item.shape)), item.dtype)
        for item in spec.result_types(types, attrs)
    ]
    return results[0] if spec.results == 1 and len(results) == 1 else relax.TupleType(results)


def _relax_call(spec: OpSpec, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Call:
    """The Relax operator's own constructor, ``relax.op.<path>(*operands, **attrs)``."""
    assert spec.relax is not None
    if spec.relax in MAKERS:
        return MAKERS[spec.relax](operands, attrs)
    function: Any = relax.op
    for part in spec.relax.removeprefix("relax.").split("."):
        function = getattr(function, part)
    return function(*operands, **attrs)


def _described(node: Call, name: str, value: Any) -> bool:
    """Whether an attribute that a spec does not declare has the one value that the spec means."""
    if name in _MEANT:
        return str(value) in _MEANT[name]
    if name == "out_dtype":
        return str(value) in ("None", "", "void", str(getattr(node.args[0].ty, "dtype", "")))
    return name != "dilation" or all(int(item) == 1 for item in value)


def _aligned(spec: OpSpec, given: list[Any], names: Any) -> list[Any]:
    """Operands in declared order, ``None`` where left out."""
    if names is None:
        return given
    by_name = dict(zip(map(str, names), given, strict=True))
    return [by_name.get(operand.name) for operand in spec.operands]


def _storable(value: Any) -> Any:
    """An attribute as TVM stores it in a dictionary."""
    if isinstance(value, (list, tuple)):
        return [_storable(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> Any:
    """An attribute as plain Python."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if str(value.ty.dtype) == "bool" else int(value.value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if isinstance(value, (list, tuple, tvm.ir.Array)):
        return tuple(_plain(item) for item in value)
    return str(value)
