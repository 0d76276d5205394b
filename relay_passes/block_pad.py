"""Recognises kernels that do nothing but pad a plane with zeros, so that convolutions absorb them.

out[n,c,y,x] = if t <= y < t + H and l <= x < l + W then data[n, c, y - t, x - l] else 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

Pads = tuple[int, int, int, int]


def zero_padding(func: PrimFunc) -> Pads | None:
    """(top, left, bottom, right) when ``func`` is such a kernel over four axes, else ``None``."""
    import tvm
    from tvm import s_tir, tirx

    if not isinstance(func.body, s_tir.SBlockRealize) or len(func.params) != 2:
        return None
    nest = func.body.block.body
    while isinstance(nest, tirx.For):
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize):
        return None
    block = nest.block
    store, variables = block.body, [v.var for v in block.iter_vars]
    if not isinstance(store, tirx.BufferStore) or block.init is not None or len(variables) != 4:
        return None
    if not all(index.same_as(v) for index, v in zip(store.indices, variables, strict=True)):
        return None
    choice = store.value
    if not isinstance(choice, tvm.ir.Call) or choice.op.name != "prim.if_then_else":
        return None
    condition, value, fill = choice.args
    is_zero = isinstance(fill, tirx.FloatImm) and float(fill.value) == 0.0
    if not is_zero or not isinstance(value, tvm.ir.TensorLoad):
        return None
    bounds = _bounds(condition, variables)
    offsets = [_offset(i, v) for i, v in zip(value.indices, variables, strict=True)]
    if bounds is None or any(offset is None for offset in offsets):
        return None
    return _pads(value.source, store.buffer, bounds, offsets)


def _bounds(condition: Any, variables: list[Any]) -> list[tuple[int | None, int | None]] | None:
    """Per axis, the first index inside and the first past it, from a conjunction of tests."""
    from tvm import tirx

    lows: list[int | None] = [None] * len(variables)
    highs: list[int | None] = [None] * len(variables)
    pending = [condition]
    while pending:
        term = pending.pop()
        if isinstance(term, tirx.And):
            pending += [term.a, term.b]
            continue
        axis = next((k for k, v in enumerate(variables) if v.same_as(_variable(term))), None)
        if axis is None:
            return None
        if isinstance(term, tirx.LE) and isinstance(term.a, tirx.IntImm) and lows[axis] is None:
            lows[axis] = int(term.a.value)
        elif isinstance(term, tirx.LT) and isinstance(term.b, tirx.IntImm) and highs[axis] is None:
            highs[axis] = int(term.b.value)
        else:
            return None
    return list(zip(lows, highs, strict=True))


def _variable(term: Any) -> Any:
    """The side of a comparison that is not a constant."""
    from tvm import tirx

    if isinstance(term, tirx.LE):
        return term.b
    return getattr(term, "a", term)


def _offset(index: Any, variable: Any) -> int | None:
    """``k`` for an index ``variable - k``, ``None`` for any other."""
    from tvm import tirx

    if index.same_as(variable):
        return 0
    if isinstance(index, tirx.Sub) and isinstance(index.b, tirx.IntImm):
        return int(index.b.value) if index.a.same_as(variable) else None
    return None


def _pads(
    source: Any,
    result: Any,
    bounds: list[tuple[int | None, int | None]],
    offsets: list[int | None],
) -> Pads | None:
    """Pads of the plane, when the tests say exactly that the read is inside ``source``."""
    from tvm import tirx

    pads = []
    for axis, ((low, high), offset) in enumerate(zip(bounds, offsets, strict=True)):
        extents = source.shape[axis], result.shape[axis]
        if offset is None or any(not isinstance(extent, tirx.IntImm) for extent in extents):
            return None
        inner, outer = (int(extent) for extent in extents)
        if (0 if low is None else low) != offset or offset < 0:
            return None
        if (outer if high is None else high) != offset + inner:
            return None
        pads.append((offset, outer - inner - offset))
    if pads[0] != (0, 0) or pads[1] != (0, 0) or min(map(min, pads)) < 0:
        return None
    return pads[2][0], pads[3][0], pads[2][1], pads[3][1]
