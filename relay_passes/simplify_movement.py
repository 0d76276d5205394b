"""Data movement that moves nothing: a table of small rules, tried in order at every call.

    concat(x)                                 ->  x
    slice(x) of all of x, by 1                ->  x
    concat(slices or split parts of x, side by side, all of it)  ->  x
    cast(cast(x, wide), type of x)            ->  x            every value of x is one of ``wide``
    cast(x, type of x)                        ->  x
    f(broadcast(x), y)                        ->  f(x, y)      f element-wise, the same result shape
    broadcast(x) to the shape of x            ->  x
    tile(x), repeat(x) by 1                   ->  x
    take(x, [0, 1, ..., n - 1], axis)         ->  x            n the extent of the axis
    flip(flip(x, axis), axis)                 ->  x

All of it is exact: elements are read where they were copied from. Casts are dropped only from a
type to a wider one and back, where no value is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from uif_tvm.relay_passes.local_rewrite import LocalRewrite, operator

from uif_tvm.compiler.gain import Gain
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.kernels.legalize.rules import dtype_of
from uif_tvm.relax_util import calls, op_name, static_shape
from uif_tvm.standard_ops import read

if TYPE_CHECKING:
    from uif_tvm.compiler.context import CompileContext

#: Type -> the wider ones that hold each of its values exactly.
_EXACT_IN = {
    "bool": ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    "uint8": ("int16", "int32", "int64", "float16", "float32", "float64"),
    "int8": ("int16", "int32", "int64", "float16", "float32", "float64"),
    "uint16": ("int32", "int64", "float32", "float64"),
    "int16": ("int32", "int64", "float32", "float64"),
    "int32": ("int64", "float64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}
_FAMILIES = ("binary", "elementwise", "activation")


@mutator
class _Simplify(LocalRewrite):
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        found = read(call) if call.args else None
        if found is None:
            return call
        spec, operands, attrs = found
        rule = _RULES.get(spec.name)
        if rule is not None:
            answer = rule(self, call, operands, attrs)
            if answer is not None:
                source, what = answer
                self.fired(what, _saved(source, call))
                return source
        return self._without_broadcasts(call) if spec.family in _FAMILIES else call

    def _without_broadcasts(self, call: Call) -> Any:
        """``f(broadcast(x), y) -> f(x, y)`` where ``y`` alone makes the result's shape."""
        shape = static_shape(call)
        args = list(call.args)
        for at, arg in enumerate(args):
            made = self.made_by(arg) if isinstance(arg, relax.Var) else None
            if made is None or operator(made) != "relax.broadcast_to" or shape is None:
                continue
            narrow = [*args[:at], made.args[0], *args[at + 1 :]]
            shapes = [
                static_shape(a)
                for a in narrow
                if isinstance(getattr(a, "ty", None), relax.TensorType)
            ]
            known = [found for found in shapes if found is not None]
            if len(known) < len(shapes) or np.broadcast_shapes(*known) != shape:
                self.declined("the broadcast gives the result its shape")
                continue
            args = narrow
            self.fired("the operator broadcasts by itself", _saved(made.args[0], made))
        return Call(call.op, args, call.attrs, call.ty_args)


def _saved(source: Any, result: Any) -> Gain:
    """One copy of ``result`` made from ``source``."""
    bits = int(result.ty.dtype.dtype.bits)
    elements = prod(static_shape(result) or (0,)) + prod(static_shape(source) or (0,))
    return Gain(bytes=elements * max(1, bits // 8), launches=1)


Answer = tuple[Any, str] | None
Rule = Callable[[_Simplify, Call, list[Any], Any], Answer]


def _concat(rewrite: _Simplify, call: Call, operands: list[Any], attrs: Any) -> Answer:
    if len(operands) == 1:
        return operands[0], "a concat of one"
    rank = len(static_shape(call) or ())
    axis = int(attrs["axis"]) % rank if rank else 0
    parts = [_piece(rewrite, operand, axis) for operand in operands]
    if any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    source = found[0][0]
    shape = static_shape(source)
    if shape is None or not all(part[0].same_as(source) for part in found):
        return None
    joined = all(left[2] == right[1] for left, right in pairwise(found))
    if joined and found[0][1] == 0 and found[-1][2] == shape[axis] and shape == static_shape(call):
        return source, f"{len(found)} pieces of one tensor side by side are that tensor"
    return None


def _piece(rewrite: _Simplify, expr: Any, axis: int) -> tuple[Any, int, int] | None:
    """(tensor, first, end) when ``expr`` is part of one along ``axis`` alone."""
    value = rewrite.bound(expr)
    if isinstance(value, relax.TupleGetItem):
        return _split_part(rewrite, value, axis)
    made = rewrite.made_by(expr)
    found = read(made) if made is not None and operator(made) == "relax.strided_slice" else None
    if found is None:
        return None
    _, (source, *_), attrs = found
    shape = static_shape(source)
    steps = attrs["strides"] or [1] * len(attrs["axes"])
    if shape is None or any(not isinstance(n, int) for n in (*attrs["begin"], *attrs["end"])):
        return None
    part = (0, shape[axis])
    for at, begin, end, step in zip(
        attrs["axes"], attrs["begin"], attrs["end"], steps, strict=True
    ):
        first, last, stride = slice(begin, end, step).indices(shape[at % len(shape)])
        if stride != 1 or (
            at % len(shape) != axis and (first, last) != (0, shape[at % len(shape)])
        ):
            return None
        if at % len(shape) == axis:
            part = (first, last)
    return source, *part


def _split_part(
    rewrite: _Simplify, item: relax.TupleGetItem, axis: int
) -> tuple[Any, int, int] | None:
    made = rewrite.made_by(item.tuple_value)
    found = read(made) if made is not None and operator(made) == "relax.split" else None
    if made is None or found is None:
        return None
    _, (source, *_), attrs = found
    shape = static_shape(source)
    if shape is None or attrs["axis"] % len(shape) != axis:
        return None
    extents = [int(field.shape.values[axis].value) for field in made.ty.fields]
    first = sum(extents[: item.index])
    return source, first, first + extents[item.index]


def _slice(rewrite: _Simplify, call: Call, operands: list[Any], attrs: Any) -> Answer:
    shape = static_shape(operands[0])
    forward = all(isinstance(step, int) and step > 0 for step in attrs["strides"] or ())
    if shape is not None and forward and shape == static_shape(call):
        return operands[0], "a slice of everything"
    return None


def _cast(rewrite: _Simplify, call: Call, operands: list[Any], attrs: Any) -> Answer:
    source, dtype = operands[0], dtype_of(call)
    if dtype_of(source) == dtype:
        return source, f"a cast to the type it has, {dtype}"
    made = rewrite.made_by(source)
    if made is None or operator(made) != "relax.astype" or dtype_of(made.args[0]) != dtype:
        return None
    if dtype_of(source) in _EXACT_IN.get(dtype, ()):
        return made.args[0], f"{dtype} through {dtype_of(source)} is exact"
    rewrite.declined(f"{dtype_of(source)} does not hold every {dtype}")
    return None


def _same_shape(rewrite: _Simplify, call: Call, operands: list[Any], attrs: Any) -> Answer:
    shape = static_shape(call)
    if shape is not None and shape == static_shape(operands[0]):
        return operands[0], "every element once"
    return None


def _take(rewrite: _Simplify, call: Call, operands: list[Any], attrs: Any) -> Answer:
    data, indices = operands[0], rewrite.constant(operands[1])
    shape, axis = static_shape(data), attrs["axis"]
    if indices is None or shape is None or axis is None or shape != static_shape(call):
        return None
    if indices.ndim == 1 and np.array_equal(indices, np.arange(shape[axis])):
        return data, f"all {shape[axis]} positions of axis {axis} in order"
    return None


def _flip(rewrite: _Simplify, call: Call, operands: list[Any], attrs: Any) -> Answer:
    made = rewrite.made_by(operands[0])
    if made is None or operator(made) != "relax.flip":
        return None
    rank = len(static_shape(call) or ())
    if rank and int(made.attrs.axis) % rank == int(attrs["axis"]) % rank:
        return made.args[0], f"flipped twice along axis {attrs['axis']}"
    return None


_RULES: dict[str, Rule] = {
    "concat": _concat,
    "strided_slice": _slice,
    "astype": _cast,
    "broadcast_to": _same_shape,
    "tile": _same_shape,
    "repeat": _same_shape,
    "take": _take,
    "flip": _flip,
}
_MOVERS = frozenset(
    "relax.concat relax.strided_slice relax.astype relax.broadcast_to uif.tile uif.repeat "
    "relax.take relax.flip".split()
)


class SimplifyMovement(GraphPass):
    """Drop operators that copy a tensor as it is."""

    name = "simplify-movement"

    def apply(self, mod: tvm.IRModule, ctx: CompileContext) -> tvm.IRModule:
        """See the module text."""
        if not any(op_name(call) in _MOVERS for _, call in calls(mod)):
            return mod
        return _Simplify(mod, ctx, self.name).run()


PASS = SimplifyMovement()
