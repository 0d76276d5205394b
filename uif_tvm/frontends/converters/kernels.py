"""Loops that TE cannot express: scatter and compaction; as whole TIR functions.

They are opaque to fusion and to schedules (``tirx.is_scheduled``), serial, and never touch an
element outside their buffers: indices are clamped, or marked -1, before they get here.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from uif_tvm.frontends.converters.context import NodeContext
from uif_tvm.frontends.onnx.values import Dim

OPAQUE = 8
"""Relax's op_pattern value of functions that do not fuse."""


def call_kernel(
    ctx: NodeContext,
    function: Any,
    args: Sequence[relax.Expr],
    shapes: Sequence[Sequence[Dim]],
    dtypes: Sequence[str],
    name: str,
) -> list[relax.Expr]:
    """Call a TIR function; returns one expression per output."""
    function = function.with_attrs(
        {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": OPAQUE}
    )
    var = ctx.bb.add_func(function, name)
    types = [
        relax.TensorType(list(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    result = ctx.emit(
        relax.call_tir(var, list(args), out_ty=types[0] if len(types) == 1 else types)
    )
    if len(types) == 1:
        return [result]
    return [ctx.emit(relax.TupleGetItem(result, i)) for i in range(len(types))]


def dim(value: Dim, name: str) -> Any:
    """An extent for a kernel: the integer, or a fresh variable bound by the buffer's shape."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else tirx.Var(name, "int64")


def scatter_rows(
    outer: Any, inner: Any, count: Any, dtype: str, combine: Callable[[Any, Any], Any]
) -> Any:
    """out = data; out[index[m], :] = combine(out[index[m], :], updates[m, :]) in order of m.

    Rows whose index is negative are dropped.
    """

    @T.prim_func(private=True, s_tir=True)
    def scatter(
        data: T.Buffer((outer, inner), dtype),
        index: T.Buffer((count,), "int64"),
        updates: T.Buffer((count, inner), dtype),
        out: T.Buffer((outer, inner), dtype),
    ):
        with T.sblock("root"), T.sblock("loops"):
            for i in range(outer):
                for j in range(inner):
                    out[i, j] = data[i, j]
            for m in range(count):
                if index[m] >= T.int64(0):
                    for j in range(inner):
                        out[index[m], j] = combine(out[index[m], j], updates[m, j])

    return scatter


def count_true(count: Any) -> Any:
    """Number of ``True`` in a flat mask."""

    @T.prim_func(private=True, s_tir=True)
    def count_nonzero(mask: T.Buffer((count,), "bool"), out: T.Buffer((1,), "int64")):
        with T.sblock("root"), T.sblock("loops"):
            out[0] = T.int64(0)
            for i in range(count):
                out[0] = out[0] + T.Select(mask[i], T.int64(1), T.int64(0))

    return count_nonzero


def positions_true(count: Any, found: Any) -> Any:
    """Flat positions of ``True``, in order; ``found`` of them."""

    @T.prim_func(private=True, s_tir=True)
    def positions(mask: T.Buffer((count,), "bool"), out: T.Buffer((found,), "int64")):
        with T.sblock("root"):
            at = T.alloc_buffer((1,), "int64")
            with T.sblock("loops"):
                at[0] = T.int64(0)
                for i in range(count):
                    if mask[i]:
                        if at[0] < found:
                            out[at[0]] = i
                            at[0] = at[0] + T.int64(1)

    return positions
