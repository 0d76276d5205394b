"""Small helpers over Relax that TVM lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Op

#: Relax operators that are not computations: they survive legalisation.
STRUCTURAL = frozenset(
    {
        "relax.call_tir",
        "relax.call_tir_inplace",
        "relax.call_dps_packed",
        "relax.call_pure_packed",
        "relax.call_builtin_with_ctx",
        "relax.null_value",
        "relax.shape_of",
        "relax.tensor_to_shape",
        "relax.shape_to_tensor",
        "relax.memory.view",
        "relax.memory.ensure_zero_offset",
        "relax.assert_op",
        "relax.print",
        "relax.invoke_pure_closure",
        "relax.builtin.alloc_tensor",
    }
)


#: How the names of standard operators begin that Relax lacks (see ``standard_ops``).
STANDARD = "uif."

#: Element types that NumPy takes through DLPack; others are copied.
_DLPACK_DTYPES = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (16, 32, 64)
) | {"int8", "uint8"}


def bindings(func: relax.Function) -> Iterator[Any]:
    """Every binding of ``func``, those inside ``If`` branches included, in order."""

    def walk(seq: Any) -> Iterator[Any]:
        for block in seq.blocks:
            for binding in block.bindings:
                yield binding
                value = getattr(binding, "value", None)
                if isinstance(value, relax.If):
                    yield from walk(value.true_branch)
                    yield from walk(value.false_branch)

    yield from walk(func.body)


def calls(mod: tvm.IRModule) -> Iterator[tuple[Any, Call]]:
    """(variable, call) for each call bound in any Relax function of ``mod``."""
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            for binding in bindings(func):
                value = getattr(binding, "value", None)
                if isinstance(value, Call):
                    yield binding.var, value


def attributes(call: Call) -> dict[str, Any]:
    """The attributes of a call by name."""
    if isinstance(call.attrs, tvm.ir.DictAttrs):
        return dict(call.attrs)
    info = getattr(type(call.attrs), "__tvm_ffi_type_info__", None)
    return {item.name: getattr(call.attrs, item.name) for item in info.fields} if info else {}


def op_name(call: Call) -> str | None:
    """Registered name of the operator a call applies, ``None`` for calls of functions."""
    return call.op.name if isinstance(call.op, Op) else None


#: How the names of functions begin that evaluate an operator on the host.
HOST_FUNCTIONS = "uif.host."


def host_function(call: Call) -> str | None:
    """The function on the host that ``call`` calls back, ``None`` for every other call.

    ``call_dps_packed`` fills tensors of known shapes, ``call_pure_packed`` returns tensors whose
    shapes depend on the data.
    """
    name = op_name(call)
    if name == "relax.call_dps_packed":
        return str(call.args[0].global_symbol)
    if name == "relax.call_pure_packed":
        function = getattr(call.args[0], "global_symbol", "")
        return str(function) if str(function).startswith(HOST_FUNCTIONS) else None
    return None


def host_op(call: Call) -> str:
    """The operator that a call back to the host evaluates, else the host function's own name.

    Frontends pass the operator's name as the first argument of ``uif.host.*`` functions.
    """
    function, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], relax.Tuple):
        operands = list(operands[0].fields)
    name = getattr(operands[0], "value", None) if operands else None
    return name if isinstance(name, str) else str(function.global_symbol)


def high_level_ops(mod: tvm.IRModule) -> Counter[str]:
    """Operators that still need a kernel, with their counts."""
    found: Counter[str] = Counter()
    for _, call in calls(mod):
        name = op_name(call)
        if name and name.startswith(("relax.", STANDARD)) and name not in STRUCTURAL:
            found[name] += 1
    return found


def constant_array(expr: Any) -> np.ndarray[Any, Any] | None:
    """The value of a tensor constant as a read-only view, ``None`` for anything else."""
    if not isinstance(expr, GenericConst) or not isinstance(expr.value, tvm.runtime.Tensor):
        return None
    array: np.ndarray[Any, Any]
    if str(expr.ty.dtype.dtype) in _DLPACK_DTYPES and expr.value.numel() > 0:
        array = np.from_dlpack(expr.value)
    else:
        array = expr.value.numpy()
    array.flags.writeable = False
    return array


def make_constant(array: np.ndarray[Any, Any]) -> GenericConst:
    """A Relax constant holding exactly ``array`` (``relax.const`` would narrow 64-bit types)."""
    return relax.const(tvm.runtime.tensor(np.asarray(array, order="C")))


def static_shape(expr: Any) -> tuple[int, ...] | None:
    """Shape of a tensor expression when every extent is known, else ``None``."""
    shape = getattr(expr.ty, "shape", None)
    values = getattr(shape, "values", None)
    if values is None:
        return None
    out = []
    for extent in values:
        if not isinstance(extent, tvm.tirx.IntImm):
            return None
        out.append(int(extent.value))
    return tuple(out)
