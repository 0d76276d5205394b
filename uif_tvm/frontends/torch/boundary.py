"""What crosses the border of a program: its inputs, its outputs, its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from tvm import relax, tirx

from uif_tvm.errors import UnsupportedError, UnsupportedOp
from uif_tvm.frontends.torch.dtypes import dtype_name
from uif_tvm.frontends.torch.emitter import Emitter
from uif_tvm.frontends.torch.pairs import COMPLEX, Pair
from uif_tvm.frontends.torch.registry import RefusedError
from uif_tvm.signature import DimRange, TensorSpec

#: What to tell whose model was exported in training mode.
CALL_EVAL = "call model.eval() before torch.export.export"
_USER = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


def check_state_changes(program: ExportedProgram, removed: Counter[str]) -> None:
    """Note changes that nobody outside sees in ``removed``.

    Raises:
        UnsupportedError: the model changes its own buffers.
    """
    for spec in program.graph_signature.output_specs:
        if spec.kind in (*_USER, OutputKind.TOKEN):
            continue
        if spec.kind != OutputKind.BUFFER_MUTATION:
            removed["in-place change of an input"] += 1
        elif str(spec.target).endswith("num_batches_tracked"):
            removed["num_batches_tracked update"] += 1
        else:
            reason = (
                "the model writes to its own buffer between calls, and a compiled model keeps "
                "no state"
            )
            raise UnsupportedError(
                [UnsupportedOp("buffer mutation", 1, reason, (str(spec.target),))],
                hint=CALL_EVAL
                if str(spec.target).endswith(("running_mean", "running_var"))
                else "pass the state as an input and return it as an output",
            )


def user_outputs(program: ExportedProgram, output: fx.Node) -> list[Any]:
    """The arguments of the output node that the caller sees."""
    specs = program.graph_signature.output_specs
    results: Any = output.args[0]
    return [result for result, spec in zip(results, specs, strict=True) if spec.kind in _USER]


def declare_sizes(cx: Emitter, value: torch.Tensor) -> None:
    """Make the size symbols of an input known to the emitter."""
    for size in value.shape:
        if isinstance(size, torch.SymInt):
            for symbol in sorted(size.node.expr.free_symbols, key=str):
                cx.symbols.setdefault(str(symbol), tirx.Var(str(symbol), "int64"))


def parameter(cx: Emitter, name: str, value: torch.Tensor) -> relax.Var | Pair:
    """A parameter of ``main`` for an input.

    Raises:
        RefusedError: TVM has no such dtype.
    """
    shape = cx.dims(value.shape)
    if value.dtype in COMPLEX:
        dtype, part = COMPLEX[value.dtype]
        return Pair(relax.Var(name, relax.TensorType([*shape, 2], part)), dtype)
    return relax.Var(name, relax.TensorType(shape, dtype_name(value.dtype)))


def held(value: Any) -> relax.Expr:
    """The Relax tensor that holds ``value``."""
    return value.expr if isinstance(value, Pair) else value


def tensor_spec(
    name: str, value: Any, ranges: Mapping[str, DimRange] = MappingProxyType({})
) -> TensorSpec:
    """How the signature describes an input (with the ranges of its sizes) or an output."""
    shape = tuple(d if isinstance(d, int) else str(d) for d in Emitter.shape(held(value)))
    dtype = value.dtype if isinstance(value, Pair) else Emitter.dtype(value)
    shape = shape[:-1] if isinstance(value, Pair) else shape
    names = dict.fromkeys(size for size in shape if isinstance(size, str))
    return TensorSpec(name, shape, dtype, tuple(ranges[n] for n in names if n in ranges))


def check_result(cx: Emitter, node: fx.Node, result: Any) -> None:
    """Every converted tensor must have the dtype and the shape that PyTorch computed.

    Raises:
        RefusedError: it has not.
    """
    metas = node.meta["val"]
    pairs = (
        zip(result, metas, strict=True) if isinstance(metas, (tuple, list)) else [(result, metas)]
    )
    for value, meta in pairs:
        if value is None or not isinstance(meta, torch.Tensor):
            continue
        shape = cx.dims(meta.shape)
        if meta.dtype in COMPLEX:
            dtype, shape = COMPLEX[meta.dtype][1], [*shape, 2]
        else:
            dtype = dtype_name(meta.dtype)
        have, sizes = cx.dtype(held(value)), cx.shape(held(value))
        if have != dtype or not cx.same_shape(sizes, shape):
            raise RefusedError(f"converted to {have}{sizes}, but PyTorch gives {dtype}{shape}")
