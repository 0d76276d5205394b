"""Host fallback: an operator without converter, evaluated at run time by ATen.

    y = op(x)       ->  y = call_dps_packed("uif.host.aten", ("op", recipe, x))
    y = nonzero(x)  ->  y = match_cast(call_pure_packed("uif.host.aten.sized", ...), [u0, 2])

The recipe (operator, arguments, dtypes) travels as a byte tensor among the weights; see
``uif_tvm/runtime/aten_ops.py`` for its form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import ir, relax, tirx

from uif_tvm.frontends.torch.dtypes import dtype_name
from uif_tvm.frontends.torch.emitter import Dim, Emitter, is_tensor
from uif_tvm.frontends.torch.pairs import COMPLEX, PARTS, Pair
from uif_tvm.frontends.torch.registry import RefusedError, op_name
from uif_tvm.runtime.aten_ops import HOST_CALL, SIZED_CALL

#: Operators that read the memory behind their inputs rather than the inputs' values.
_STORAGE = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})


@dataclass
class _Operands:
    """Tensors that go to the host, and how the recipe writes the arguments that hold them."""

    cx: Emitter
    tensors: list[relax.Expr] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)

    def _add(self, tensor: relax.Expr, dtype: str) -> int:
        self.tensors.append(tensor)
        self.dtypes.append(dtype)
        return len(self.tensors) - 1

    def json(self, arg: Any) -> Any:
        """One argument, nodes replaced by what they were converted to, as JSON.

        Raises:
            RefusedError: it cannot be written down.
        """
        if arg is None or isinstance(arg, (bool, int, str)):
            return arg
        if isinstance(arg, float):
            return arg if math.isfinite(arg) else {"float": str(arg)}
        if isinstance(arg, complex):
            return {"complex": [str(arg.real), str(arg.imag)]}
        if isinstance(arg, (list, tuple)):
            return [self.json(item) for item in arg]
        if isinstance(arg, Pair):
            return {"tensor": self._add(arg.expr, arg.dtype)}
        if is_tensor(arg):
            return {"tensor": self._add(arg, self.cx.dtype(arg))}
        if isinstance(arg, (torch.SymInt, tirx.Expr)):
            size = relax.op.shape_to_tensor(relax.ShapeExpr([self.cx.dim(arg)]))
            return {"item": self._add(self.cx.emit(size), "int64")}
        if isinstance(arg, torch.device):
            return {"device": "cpu"}
        if isinstance(arg, torch.layout) and arg != torch.strided:
            raise RefusedError(f"tensors of layout {arg} are not supported")
        for kind in ("dtype", "layout", "memory_format"):
            if isinstance(arg, getattr(torch, kind)):
                return {kind: str(arg).removeprefix("torch.")}
        raise RefusedError(f"argument {arg!r} cannot be passed to the host")


@dataclass(frozen=True)
class _Result:
    """One result: PyTorch's dtype name, and the sizes of the tensor that holds it."""

    dtype: str
    shape: list[Dim]

    @property
    def held_as(self) -> str:
        return PARTS.get(self.dtype, self.dtype)


def host_call(cx: Emitter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The emitter's node as a call back to the host.

    Args:
        cx: the emitter, at the node.
        args: the node's positional arguments, nodes replaced by what they were converted to.
        kwargs: the keyword arguments, likewise.

    Returns:
        As converters do: one tensor, or a list of them; a complex one as :class:`Pair`.

    Raises:
        RefusedError: the host cannot be relied on to compute what PyTorch does.
    """
    _check_operator(cx.node)
    metas = cx.node.meta["val"]
    many = isinstance(metas, (tuple, list))
    operands = _Operands(cx)
    name = op_name(cx.node.target)
    recipe: dict[str, Any] = {
        "op": name,
        "args": operands.json(list(args)),
        "kwargs": {key: operands.json(value) for key, value in kwargs.items()},
        "inputs": operands.dtypes,
    }
    before = set(cx.symbols)
    results = [_result(cx, meta) for meta in (metas if many else [metas])]
    made = [result for result in results if result is not None]
    if not made:
        raise RefusedError("no result is a tensor")
    recipe["results"] = [result and result.dtype for result in results]
    text = np.frombuffer(json.dumps(recipe).encode(), np.uint8).copy()
    arguments = [ir.StringImm(name), cx.const(text, "uint8"), *operands.tensors]
    call = _planned if before == set(cx.symbols) else _sized
    values = iter(call(cx, arguments, made))
    converted = [result and _as_converted(result, next(values)) for result in results]
    return converted if many else converted[0]


def _as_converted(result: _Result, value: relax.Expr) -> Any:
    return Pair(value, result.dtype) if result.dtype in PARTS else value


def _planned(cx: Emitter, arguments: list[Any], results: list[_Result]) -> list[relax.Expr]:
    """Results of sizes that are known before the call, written into planned memory."""
    types = [relax.TensorType(result.shape, result.held_as) for result in results]
    call = cx.emit(relax.op.call_dps_packed(HOST_CALL, relax.Tuple(arguments), types))
    if len(types) == 1:
        return [call]
    return [cx.emit(relax.TupleGetItem(call, index)) for index in range(len(types))]


def _sized(cx: Emitter, arguments: list[Any], results: list[_Result]) -> list[relax.Expr]:
    """Results whose sizes come with them; the sizes are new symbols of the model."""
    types = [relax.TensorType(dtype=r.held_as, ndim=len(r.shape)) for r in results]
    returned = types[0] if len(types) == 1 else relax.TupleType(types)
    call = cx.emit(relax.op.call_pure_packed(SIZED_CALL, *arguments, ty_args=[returned]))
    parts = [call]
    if len(types) > 1:
        parts = [cx.emit(relax.TupleGetItem(call, index)) for index in range(len(types))]
    return [
        cx.builder.match_cast(part, relax.TensorType(result.shape, result.held_as), cx.name)
        for part, result in zip(parts, results, strict=True)
    ]


def _result(cx: Emitter, meta: Any) -> _Result | None:
    """What one result will be; sizes that the data decides become symbols of the emitter's."""
    if meta is None:
        return None
    if not isinstance(meta, torch.Tensor):
        raise RefusedError(f"a result is a {type(meta).__name__}, not a tensor")
    if meta.layout != torch.strided:
        raise RefusedError(f"tensors of layout {meta.layout} are not supported")
    for size in meta.shape:
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            name = str(size.node.expr)
            cx.symbols.setdefault(name, tirx.Var(name, "int64"))
    shape = cx.dims(meta.shape)
    if meta.dtype in COMPLEX:
        return _Result(COMPLEX[meta.dtype][0], [*shape, 2])
    return _Result(dtype_name(meta.dtype), shape)


def _check_operator(node: fx.Node) -> None:
    """Refuse what is more than a function of its inputs' values."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise RefusedError("it is no operator of PyTorch's that a call could name")
    if target._schema.is_mutable:
        raise RefusedError("it writes to its arguments")
    steady = target._schema.name == "aten::scaled_dot_product_attention" and not any(node.args[4:5])
    if torch.Tag.nondeterministic_seeded in target.tags and not steady:
        raise RefusedError("its results are random")
    if op_name(target) in _STORAGE and not _covers_its_memory(node):
        raise RefusedError("it reads the memory behind a tensor that is a view of a larger one")


def _covers_its_memory(node: fx.Node) -> bool:
    """Whether the first input, laid out densely, holds all that strided access can reach."""
    source, sizes, strides = node.args[:3]
    offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    meta = source.meta["val"] if isinstance(source, fx.Node) else None
    numbers = [*sizes, *strides, offset or 0]  # type: ignore[misc, list-item]
    if not isinstance(meta, torch.Tensor) or not all(isinstance(n, int) for n in numbers):
        return False
    if offset is None and meta.storage_offset() != 0:
        return False
    last = sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))  # type: ignore
    return bool(meta.is_contiguous() and (offset or 0) + last < meta.numel())
