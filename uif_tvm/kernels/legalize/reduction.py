"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import norm
from uif_tvm.kernels.legalize.rules import (
    FLOATS,
    REDUCTION,
    Legalizer,
    default,
    dtype_of,
    shape_of,
)

if TYPE_CHECKING:
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr


def _axes(call: Call, rank: int) -> list[int]:
    axes: Sequence[Any] | None = call.attrs.axis
    return list(range(rank)) if axes is None else sorted({int(axis) % rank for axis in axes})


def _reduction(name: str, build: Callable[[Any, list[int], bool], Any]) -> Legalizer:
    """Legalisation of a reduction to ``build(x, axes, keepdims)``, for floating-point types."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from tvm import tirx

        shape = shape_of(call.args[0])
        if not shape or dtype_of(call.args[0]) not in FLOATS:
            return default(bb, call)
        axes = _axes(call, len(shape))
        if not axes or any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in shape):
            return default(bb, call)
        keepdims = bool(call.attrs.keepdims)
        return bb.call_te(
            lambda x: build(x, axes, keepdims),
            call.args[0],
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": REDUCTION},
        )

    return legalize


def _fold(reducer: norm.Reducer, mean: bool = False) -> Callable[[Any, list[int], bool], Any]:
    return lambda x, axes, keepdims: norm.reduce_rows(x, axes, keepdims, reducer, mean)


#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.sum": _reduction("sum", _fold(norm.SUM)),
    "relax.mean": _reduction("mean", _fold(norm.SUM, mean=True)),
    "relax.max": _reduction("max", _fold(norm.MAXIMUM)),
    "relax.min": _reduction("min", _fold(norm.MINIMUM)),
    "relax.prod": _reduction("prod", _fold(norm.PRODUCT)),
    "relax.variance": _reduction("variance", norm.variance),
    "relax.std": _reduction("std", lambda x, axes, keep: norm.variance(x, axes, keep, root=True)),
}
