"""TensorScatter (a cache written at places known at run time) and BitCast."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.registry import converter
from uif_tvm.frontends.onnx.values import Dynamic
from uif_tvm.runtime.elements import is_stored, stored_dtype

BITS_ALIKE = ("4", "2")


@converter("TensorScatter")
def tensor_scatter(ctx: NodeContext) -> relax.Expr:
    """The cache with ``update`` written at each sample's index along the sequence axis."""
    rank = ctx.rank(0)
    axis = ctx.axis(int(ctx.attrs.get("axis", -2)), rank)
    mode = ctx.attrs.get("mode", "linear")
    if axis == 0 or ctx.rank(1) != rank or mode not in ("linear", "circular"):
        raise ctx.invalid(f"mode {mode!r} along axis {axis} of a cache of rank {rank}")
    wanted = [ctx.shape(1)[a] if a == axis else dim for a, dim in enumerate(ctx.shape(0))]
    update = ctx.with_shape(ctx.expr(1), wanted)
    args = [ctx.expr(0), update]
    if ctx.has(2):
        args.append(ctx.with_shape(ctx.cast(ctx.expr(2), "int64"), [ctx.shape(0)[0]]))

    def compute(past: te.Tensor, new: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        length = past.shape[axis]

        def at(*index: Any) -> Any:
            start = starts[0](index[0]) if starts else tirx.const(0, "int64")
            place = index[axis].astype("int64") - start
            if mode == "circular":
                place = tirx.floormod(place, length)
            written = tirx.all(place >= 0, place < new.shape[axis])
            source = new(*index[:axis], place, *index[axis + 1 :])
            return tirx.if_then_else(written, source, past(*index))

        return te.compute(past.shape, at, name="tensor_scatter")

    return ctx.te(compute, *args, name="tensor_scatter")


@converter("BitCast")
def bit_cast(ctx: NodeContext) -> Any:
    """The same bits under another type of the same width."""
    from uif_tvm.frontends.onnx.tensors import numpy_dtype

    target = str(numpy_dtype(int(ctx.attrs["to"]), "BitCast"))
    source = ctx.dtype(0)
    if any(is_stored(name) and name.endswith(BITS_ALIKE) for name in (source, target)):
        raise Unsupported(f"bits of {source} as {target}")
    old, new = stored_dtype(source), stored_dtype(target)
    x = ctx.expr(0)
    if old == "bool" or new == "bool":
        old, new = "uint8" if old == "bool" else old, new
    if _width(old) != _width(new):
        raise ctx.invalid(f"{source} and {target} differ in width")
    if str(x.ty.dtype) != new:
        x = ctx.te(
            lambda a: te.compute(
                a.shape, lambda *i: _bits(a(*i), str(a.dtype), new), name="bit_cast"
            ),
            x,
            name="bit_cast",
        )
    return Dynamic(x, element=target if is_stored(target) else None)


def _bits(value: Any, old: str, new: str) -> Any:
    if old == "bool":
        value, old = value.astype("uint8"), "uint8"
    if new == "bool":
        return tirx.reinterpret("uint8", value) != tirx.const(0, "uint8")
    return tirx.reinterpret(new, value) if old != new else value


def _width(dtype: str) -> int:
    return 8 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit()))
