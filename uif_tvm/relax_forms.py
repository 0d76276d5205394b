"""Relax operators whose attributes or lists of tensors travel as operands.

``MAKERS[name](operands, attrs)`` makes a call from what an OpSpec declares, and
``READERS[name](spec, call, found)`` reads one back as ``(spec, operands, attrs)``, or ``None``
where the call does more than the spec describes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

Attrs = Mapping[str, Any]


def dims(expr: Any) -> tuple[Any, ...] | None:
    """Extents that a shape or tuple operand lists: ints, or expressions of sizes."""
    if isinstance(expr, relax.ShapeExpr):
        return tuple(plain(value) for value in expr.values)
    if isinstance(expr, relax.Tuple):
        return tuple(plain(getattr(field, "value", field)) for field in expr.fields)
    return None


def plain(value: Any) -> Any:
    """An immediate as a Python number; anything else as it is."""
    return value.value if isinstance(value, (tirx.IntImm, tirx.FloatImm)) else value


def _clip(operands: Sequence[Any], attrs: Attrs) -> Any:
    whole = "int" in str(operands[0].ty.dtype)
    dtype = "int64" if whole else "float64"
    bounds = []
    for name, least in (("min", -math.inf), ("max", math.inf)):
        bound = attrs[name]
        if bound is None and whole:
            make = tirx.min_value if name == "min" else tirx.max_value
            bounds.append(make("int64"))
        else:
            bounds.append(tirx.const(least if bound is None else bound, dtype))
    return relax.op.clip(operands[0], *bounds)


def _read_clip(spec: Any, call: Any, found: dict[str, Any]) -> Any:
    limits = [plain(getattr(arg, "value", arg)) for arg in call.args[1:]]
    if not all(isinstance(limit, (int, float)) for limit in limits):
        return None
    names = zip(("min", "max"), limits, strict=True)
    attrs = {name: limit for name, limit in names if math.isfinite(limit)}
    return spec, [call.args[0]], spec.resolve(attrs)


def _reshape(operands: Sequence[Any], attrs: Attrs) -> Any:
    """Relax takes an extent of 0 for one to copy: without elements, there is nothing to move."""
    x, shape = operands[0], list(attrs["shape"])
    if any(plain(extent) == 0 for extent in x.ty.shape):
        empty = [0 if isinstance(extent, int) and extent < 0 else extent for extent in shape]
        return relax.op.zeros(relax.ShapeExpr(empty), str(x.ty.dtype))
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        return relax.op.reshape(x, shape)
    return relax.op.reshape(x, relax.ShapeExpr(shape))


def _broadcast_to(operands: Sequence[Any], attrs: Attrs) -> Any:
    return relax.op.broadcast_to(operands[0], relax.ShapeExpr(list(attrs["shape"])))


def _read_shaped(spec: Any, call: Any, found: dict[str, Any]) -> Any:
    shape = dims(call.args[1])
    return None if shape is None else (spec, [call.args[0]], spec.resolve({"shape": shape}))


def _listed(function: Any) -> Any:
    """Operators of a list of tensors: ``function([x, ...], axis)``."""

    def make(operands: Sequence[Any], attrs: Attrs) -> Any:
        return function(list(operands), attrs["axis"])

    return make


def _read_listed(spec: Any, call: Any, found: dict[str, Any]) -> Any:
    if not isinstance(call.args[0], relax.Tuple):
        return None
    axis = found.get("axis")
    attrs = {} if axis is None else {"axis": int(axis)}
    return spec, list(call.args[0].fields), spec.resolve(attrs)


def _split(operands: Sequence[Any], attrs: Attrs) -> Any:
    parts = attrs["indices_or_sections"]
    return relax.op.split(
        operands[0], parts if isinstance(parts, int) else list(parts), attrs["axis"]
    )


def _strided_slice(operands: Sequence[Any], attrs: Attrs) -> Any:
    """Bounds as positions inside; a negative step reads the flipped axis forwards."""
    x = operands[0]
    extents = [plain(extent) for extent in x.ty.shape]
    rank = len(extents)
    axes = [axis % rank for axis in attrs["axes"]]
    steps = list(attrs["strides"] or [1] * len(axes))
    bounds: list[tuple[Any, Any]] = []
    for number, (axis, begin, end) in enumerate(
        zip(axes, attrs["begin"], attrs["end"], strict=True)
    ):
        extent = extents[axis]
        if not all(isinstance(item, int) for item in (extent, begin, end)):
            bounds.append((begin, end))
            continue
        visited = range(extent)[slice(begin, end, steps[number])]
        first, count = (visited[0] if visited else 0), len(visited)
        if steps[number] < 0:
            x = relax.op.flip(x, axis)
            first, steps[number] = (extent - 1 - first if visited else 0), -steps[number]
        bounds.append((first, first + (count - 1) * steps[number] + 1 if count else first))
    begins, ends = zip(*bounds, strict=True) if bounds else ((), ())
    return relax.op.strided_slice(x, axes, list(begins), list(ends), steps)


def _read_strided_slice(spec: Any, call: Any, found: dict[str, Any]) -> Any:
    lists = [dims(arg) for arg in call.args[1:]]
    if len(lists) < 3 or any(item is None for item in lists):
        return None
    attrs = dict(zip(("axes", "begin", "end", "strides"), lists, strict=False))
    return spec, [call.args[0]], spec.resolve(attrs)


def _read_full(spec: Any, call: Any, found: dict[str, Any]) -> Any:
    shape = dims(call.args[0])
    if shape is None or str(call.ty.dtype) != str(call.args[1].ty.dtype):
        return None
    return spec, [call.args[1]], spec.resolve({"shape": shape})


MAKERS: dict[str, Any] = {
    "relax.broadcast_to": _broadcast_to,
    "relax.clip": _clip,
    "relax.concat": _listed(relax.op.concat),
    "relax.einsum": lambda operands, attrs: relax.op.einsum(list(operands), attrs["subscripts"]),
    "relax.full": lambda operands, attrs: relax.op.full(
        relax.ShapeExpr(list(attrs["shape"])), operands[0], str(operands[0].ty.dtype)
    ),
    "relax.reshape": _reshape,
    "relax.split": _split,
    "relax.stack": _listed(relax.op.stack),
    "relax.strided_slice": _strided_slice,
}
READERS: dict[str, Any] = {
    "relax.broadcast_to": _read_shaped,
    "relax.clip": _read_clip,
    "relax.concat": _read_listed,
    "relax.full": _read_full,
    "relax.reshape": _read_shaped,
    "relax.stack": _read_listed,
    "relax.strided_slice": _read_strided_slice,
}
