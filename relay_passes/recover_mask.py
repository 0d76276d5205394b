"""Attention's masks: what is added to scores, or chosen between them and a least value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from uif_tvm.relay_passes.recover_graph import Graph, Near

from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import make_constant, op_name

if TYPE_CHECKING:
    from tvm.ir import Call

#: Added to any score that float32 attention has, this is all that is left of the sum.
_ABSORBS = -1e30
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.broadcast_to", "relax.permute_dims",
          "relax.squeeze", "relax.strided_slice")  # fmt: skip
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mask:
    """What hides keys.

    Args:
        value: the operand as the operator takes it: booleans (seen) or what is added.
        source: the graph's own mask.
        inverted: True where ``source`` tells what is hidden.
        array: the value where it is constant, as booleans or numbers.
        nodes: variables that were taken apart.
    """

    value: Any
    source: Any
    inverted: bool = False
    array: Array | None = None
    nodes: frozenset[Any] = frozenset()

    def shown(self, queries: Any, keys: Any) -> tuple[Any, dict[str, Any]]:
        """(operand or ``None``, attributes): hiding what comes later needs no operand."""
        if self.array is None or not (isinstance(queries, int) and isinstance(keys, int)):
            return self.value, {}
        offset = keys - queries
        seen = self.array if self.array.dtype == bool else self.array == 0
        whole = self.array.dtype == bool or bool(np.all(seen | (self.array <= _ABSORBS)))
        if not whole or offset < 0 or self.array.size != queries * keys:
            return self.value, {}
        plane = seen.reshape(queries, keys) if seen.shape[-1] == keys else None
        if plane is None or not np.array_equal(plane, np.tri(queries, keys, offset, dtype=bool)):
            return self.value, {}
        return None, {"causal": True, "offset": offset}


def added(graph: Graph, expr: Any) -> Mask | Near:
    """The mask ``m`` of ``scores + m``."""
    array = graph.constant(expr)
    wide = None if array is None else array.astype(np.float64)
    return Mask(expr, graph.resolve(expr), array=wide)


def chosen(graph: Graph, call: Call, seen_first: bool) -> Mask | Near:
    """The mask of ``where(m, scores, low)`` or ``where(m, low, scores)``."""
    test, low = call.args[0], graph.scalar(call.args[2 if seen_first else 1])
    if low is None:
        return Near("what takes the place of hidden scores is not one constant")
    array = graph.constant(test)
    source = graph.resolve(test)
    if low == -math.inf:
        if array is not None:
            seen = array if seen_first else ~array
            return Mask(make_constant(seen), source, not seen_first, seen)
        return Mask(test if seen_first else relax.op.logical_not(test), source, not seen_first)
    if low > _ABSORBS:
        return Near(f"hidden scores become {low:g}, which is not far below any score")
    dtype = numpy_dtype(str(call.ty.dtype))
    zero, least = make_constant(np.zeros((), dtype)), make_constant(np.asarray(low, dtype))
    if array is not None:
        bias = np.where(array if seen_first else ~array, 0, low)
        return Mask(make_constant(bias.astype(dtype)), source, array=bias)
    order = (zero, least) if seen_first else (least, zero)
    return Mask(relax.op.where(test, *order), source, array=None)


def blind(graph: Graph, mask: Mask) -> str:
    """Why a query may see no key at all, or nothing."""
    if mask.array is not None:
        seen = mask.array if mask.array.dtype == bool else mask.array > -math.inf
        if seen.any(-1).all():
            return ""
        return "the mask hides every key of a query: the graph gives NaN there, attention 0"
    if isinstance(mask.value, relax.Var) and str(mask.value.ty.dtype) != "bool":
        if bounds(graph, mask.value)[0] > -math.inf:
            return ""
    elif isinstance(mask.value, relax.Call) and op_name(mask.value) == "relax.where":
        return ""  # made by ``chosen`` of finite numbers
    return "the mask may hide every key of a query: the graph gives NaN there, attention 0"


def bounds(graph: Graph, expr: Any, depth: int = 16) -> tuple[float, float]:
    """(least, greatest) value; infinite where nothing is known, NaN included."""
    unknown = (-math.inf, math.inf)
    array = graph.constant(expr)
    if array is not None:
        wide = array.astype(np.float64)
        fine = wide.size and not np.isnan(wide).any()
        return (float(wide.min()), float(wide.max())) if fine else unknown
    dtype = str(expr.ty.dtype)
    if dtype == "bool":
        return 0.0, 1.0
    if "int" in dtype:
        info = np.iinfo(dtype)
        return float(info.min), float(info.max)
    call = graph.call(expr)
    if call is None or not depth:
        return unknown
    name = op_name(call)
    operands = call.args[1:] if name == "relax.where" else call.args
    if name == "relax.astype" or name in _VIEWS:
        operands = call.args[:1]
    elif name not in ("relax.where", "relax.add", "relax.subtract", "relax.multiply",
                      "relax.maximum", "relax.minimum"):  # fmt: skip
        return unknown
    ends = [bounds(graph, operand, depth - 1) for operand in operands]
    low, high = _combined(name or "", ends)
    most = float(np.finfo(numpy_dtype(dtype)).max) if dtype != "bfloat16" else 3.38e38
    return (low, high) if -most <= low <= high <= most else unknown


def _combined(name: str, ends: list[tuple[float, float]]) -> tuple[float, float]:
    if len(ends) == 1:
        return ends[0]
    (a, b), (c, d) = ends
    if name == "relax.add":
        return a + c, b + d
    if name == "relax.subtract":
        return a - d, b - c
    if name == "relax.multiply":
        if math.inf in (abs(a), abs(b), abs(c), abs(d)):
            return -math.inf, math.inf
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    if name == "relax.maximum":
        return max(a, c), max(b, d)
    if name == "relax.minimum":
        return min(a, c), min(b, d)
    return min(a, c), max(b, d)


def tells_blind(graph: Graph, test: Any, mask: Mask) -> bool:
    """Whether ``test`` says which queries see no key of ``mask``."""
    constant = graph.constant(test)
    if constant is not None:
        if mask.array is None:
            return False
        seen = mask.array if mask.array.dtype == bool else mask.array > -math.inf
        return np.array_equal(constant, ~seen.any(-1, keepdims=True))
    equal = graph.call(test, "relax.equal")
    most = graph.call(equal.args[0], "relax.max") if equal is not None else None
    if equal is None or most is None or not bool(most.attrs.keepdims) or mask.inverted:
        return False
    rank, axes = most.args[0].ty.ndim, most.attrs.axis
    if axes is None or [int(axis) % rank for axis in axes] != [rank - 1]:
        return False
    cast = graph.call(most.args[0], "relax.astype")
    inside = graph.resolve(most.args[0] if cast is None else cast.args[0])
    least = 0.0 if str(inside.ty.dtype) == "bool" else -math.inf
    return inside == mask.source and graph.scalar(equal.args[1]) == least
