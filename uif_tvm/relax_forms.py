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


MAKERS: dict[str, Any] = {
    "relax.clip": _clip,
    "relax.einsum": lambda operands, attrs: relax.op.einsum(list(operands), attrs["subscripts"]),
}
READERS: dict[str, Any] = {
    "relax.clip": _read_clip,
}
