"""Reductions over axes, and running ones along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels import arithmetic, norm, reduce
from uif_tvm.kernels.legalize.rules import (
    FLOATS,
    REDUCTION,
    Legalizer,
    default,
    dtype_of,
    shape_of,
    standard,
)

if TYPE_CHECKING:
    from tvm import te
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr

Axes = int | Sequence[int] | None


def axes_of(axes: Axes, rank: int) -> list[int]:
    """Sorted non-negative axes; all of them for ``None``."""
    if axes is None:
        return list(range(rank))
    listed = [axes] if isinstance(axes, int) else axes
    return sorted({int(axis) % rank for axis in listed}) if rank else []


def _reduction(
    name: str, build: Callable[[Any, list[int], bool], Any], dtypes: Sequence[str] = FLOATS
) -> Legalizer:
    """Legalisation of a reduction of Relax to ``build(x, axes, keepdims)``."""

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        shape = shape_of(call.args[0])
        if shape is None or dtype_of(call.args[0]) not in dtypes:
            return default(bb, call)
        axes = axes_of(call.attrs.axis, len(shape))
        keepdims = bool(call.attrs.keepdims)
        return bb.call_te(
            lambda x: build(x, axes, keepdims),
            call.args[0],
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": REDUCTION},
        )

    return legalize


def _fold(reducer: norm.Reducer, mean: bool = False) -> Callable[[Any, list[int], bool], Any]:
    return lambda x, axes, keepdims: reduce.reduce_rows(x, axes, keepdims, reducer, mean)


def _extreme(larger: bool) -> Callable[[Any, list[int], bool], Any]:
    def build(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
        from tvm import tirx

        reducer = norm.MAXIMUM if larger else norm.MINIMUM
        if "float" not in str(x.dtype):
            limit = tirx.min_value if larger else tirx.max_value
            pick = tirx.max if larger else tirx.min
            reducer = norm.Reducer(lambda a, b: pick(a, b), lambda dtype: limit(dtype))
        return reduce.reduce_rows(x, axes, keepdims, reducer)

    return build


def _over_axes(kernel: Callable[..., Any]) -> Legalizer:
    """``kernel(x, axes, keepdims, **more)`` of a standard operator that Relax lacks."""

    def build(x: te.Tensor, axis: Axes, keepdims: bool, **more: Any) -> te.Tensor:
        return kernel(x, axes_of(axis, len(x.shape)), keepdims, **more)

    return standard(build, pattern=REDUCTION)


def _norm(
    before: Callable[[Any], Any] | None, after: str | None = None
) -> Callable[[Any, list[int], bool], Any]:
    """A sum of ``before(x)``; where a root or logarithm ends it, integers go through float64."""

    def build(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
        from tvm import tirx

        through = None if after is None or "float" in str(x.dtype) else "float64"
        finish = None if after is None else getattr(tirx, after)
        return reduce.reduce_rows(
            x, axes, keepdims, norm.SUM, before=before, after=finish, wide=through
        )

    return build


def _absolute(v: Any) -> Any:
    from tvm import tirx

    return tirx.abs(v)


def _position(larger: bool) -> Callable[..., Any]:
    def build(x: te.Tensor, axes: list[int], keepdims: bool, select_last_index: bool) -> te.Tensor:
        return reduce.arg_extreme(x, axes, keepdims, larger, select_last_index)

    return build


def _running(combine: Callable[[Any, Any], Any], neutral: int | None = None) -> Legalizer:
    def build(x: te.Tensor, axis: int, **switches: bool) -> te.Tensor:
        from uif_tvm.kernels.scan import scan

        return scan(x, axis % len(x.shape), combine, neutral, **switches)

    return standard(build)


_NUMBERS = (*FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))

#: Operator name -> legalisation.
LEGALIZE: dict[str, Legalizer] = {
    "relax.sum": _reduction("sum", _fold(norm.SUM), _NUMBERS),
    "relax.mean": _reduction("mean", _fold(norm.SUM, mean=True)),
    "relax.max": _reduction("max", _extreme(True), _NUMBERS),
    "relax.min": _reduction("min", _extreme(False), _NUMBERS),
    "relax.prod": _reduction("prod", _fold(norm.PRODUCT), _NUMBERS),
    "relax.variance": _reduction("variance", reduce.variance),
    "relax.std": _reduction("std", lambda x, axes, keep: reduce.variance(x, axes, keep, root=True)),
    "uif.all": _over_axes(lambda x, axes, keep: reduce.truth(x, axes, keep, every=True)),
    "uif.any": _over_axes(lambda x, axes, keep: reduce.truth(x, axes, keep, every=False)),
    "uif.l1_norm": _over_axes(_norm(_absolute)),
    "uif.l2_norm": _over_axes(_norm(lambda v: v * v, "sqrt")),
    "uif.sum_square": _over_axes(_norm(lambda v: v * v)),
    "uif.log_sum": _over_axes(_norm(None, "log")),
    "uif.log_sum_exp": _over_axes(reduce.log_sum_exp),
    "uif.argmax": _over_axes(_position(True)),
    "uif.argmin": _over_axes(_position(False)),
    "uif.cumsum": _running(lambda a, b: a + b, 0),
    "uif.cumprod": _running(lambda a, b: a * b, 1),
    "uif.cummax": _running(arithmetic.maximum),
    "uif.cummin": _running(arithmetic.minimum),
}
