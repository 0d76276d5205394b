"""Operators that fold axes: sums, extremes, norms, positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.spec import (
    ALL,
    FLOATS,
    INTS,
    LOOSE,
    NUMBERS,
    Array,
    Attribute,
    Attrs,
    Case,
    OpSpec,
    Reference,
    TensorType,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

Axes = int | Sequence[int] | None
_FOLDED = (Attribute("axis", None), Attribute("keepdims", False))
_IN_FLOAT32 = {"float16": "float32", "bfloat16": "float32"}


def _axes(axis: Axes) -> tuple[int, ...] | None:
    return axis if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def _folded(function: Callable[..., Array], through_float: bool = False) -> Reference:
    """``function(x, axis=, keepdims=)`` in the accumulation type, rounded once.

    Args:
        through_float: integers compute in float64; what is no number in the end is cut to one.
    """

    def apply(x: Array, axis: Axes, keepdims: bool) -> Array:
        wide = x
        if x.dtype.name in _IN_FLOAT32:
            wide = x.astype(np.float32)
        elif through_float and x.dtype.kind in "iu":
            wide = x.astype(np.float64)
        return np.asarray(function(wide, axis=_axes(axis), keepdims=keepdims)).astype(x.dtype)

    return apply


def extreme(larger: bool) -> Callable[..., Array]:
    """Maximum or minimum; of nothing, what every element would beat."""

    def apply(x: Array, axis: Axes, keepdims: bool) -> Array:
        info: Any = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
        limit = np.inf if x.dtype.kind == "f" else info.max
        least = (-limit if x.dtype.kind == "f" else info.min) if larger else limit
        fold = np.max if larger else np.min
        return np.asarray(fold(x, axis=axis, keepdims=keepdims, initial=least))

    return apply


def log_sum_exp(x: Array, axis: Axes, keepdims: bool) -> Array:
    """log(sum(e^x)) without overflow; minus infinity of nothing."""
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, infer.axes_of(axis, x.ndim))


def arg_extreme(larger: bool) -> Reference:
    """Position of the first (or last) extreme element; NaN counts as extreme."""

    def apply(x: Array, axis: int | None, keepdims: bool, select_last_index: bool) -> Array:
        pick = np.argmax if larger else np.argmin
        if not select_last_index:
            return np.asarray(pick(x, axis=axis, keepdims=keepdims)).astype(np.int64)
        count = x.size if axis is None else x.shape[axis]
        return count - 1 - np.asarray(pick(np.flip(x, axis), axis=axis, keepdims=keepdims))

    return apply


def _reduced(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    axes = infer.axes_of(attrs["axis"], types[0].rank)
    return (TensorType(infer.reduced(types[0].shape, axes, attrs["keepdims"]), types[0].dtype),)


def _position(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(_reduced(types, attrs)[0].shape, "int64"),)


def _terms(types: Sequence[TensorType], results: Sequence[TensorType], attrs: Attrs) -> float:
    return elements(types[0])


# -- cases -------------------------------------------------------------------------------------


def _float_cases() -> Iterable[Case]:
    x = np.linspace(-2, 2, 3 * 5 * 7, dtype=np.float32).reshape(3, 5, 7)
    yield Case("all-axes", (x,))
    yield Case("negative-axis", (x,), {"axis": (-1,), "keepdims": True})
    yield Case("first-and-last", (x,), {"axis": (0, 2)})
    yield Case("middle", (x,), {"axis": (1,)})
    yield Case("no-axes", (x,), {"axis": ()})
    special = np.array(
        [[np.nan, 1, 2], [np.inf, 3, -np.inf], [-np.inf] * 3, [1e30, 1e-40, 0]], np.float32
    )
    yield Case("special-values", (special,), {"axis": (1,)})
    yield Case("size-1", (x[:, :1],), {"axis": (1,)})
    yield Case("scalar", (np.float32(-1.5),))


def _long_cases() -> Iterable[Case]:
    yield from _float_cases()
    rows = np.random.default_rng(0).standard_normal((3, 1031)).astype(np.float32)
    yield Case("long-rows", (rows,), {"axis": (-1,)})
    yield Case("nothing-to-fold", (np.empty((2, 0, 3), np.float32),), {"axis": (1,)})
    yield Case("zero-size", (np.empty((0, 3), np.float32),), {"axis": (1,), "keepdims": True})


def _with_integers() -> Iterable[Case]:
    yield from _long_cases()
    x = np.array([[3, -4, 0], [2**30, 2, -1]], np.int32)
    yield Case("integers", (x,), {"axis": (1,)})
    yield Case("integers-of-nothing", (np.empty((2, 0), np.int32),), {"axis": (1,)})


def _positive_cases() -> Iterable[Case]:
    yield Case(
        "rows", (np.array([[1, 2, 3], [0, 0, 0], [np.inf, 1, 2]], np.float32),), {"axis": (1,)}
    )
    yield Case(
        "negative-sum", (np.array([[-1, -2]], np.float32),), {"axis": (-1,), "keepdims": True}
    )
    yield Case("nothing-to-fold", (np.empty((2, 0), np.float32),), {"axis": (1,)})
    yield Case("integers", (np.array([[7, 9]], np.int64),), {"axis": (1,)})


def _truth_cases() -> Iterable[Case]:
    x = np.array([[True, False, True], [True, True, True], [False, False, False]])
    yield Case("rows", (x,), {"axis": (1,)})
    yield Case("all-axes", (x,), {"keepdims": True})
    yield Case("no-axes", (x,), {"axis": ()})
    yield Case("nothing-to-fold", (x[:, :0],), {"axis": (-1,)})


def _position_cases() -> Iterable[Case]:
    x = np.array([[3, 1, 3], [np.nan, 5, np.nan], [-np.inf, np.inf, np.inf]], np.float32)
    for last in (False, True):
        more = {"select_last_index": last}
        yield Case(f"ties-{last}", (x,), {"axis": 1, **more})
        yield Case(f"negative-axis-{last}", (x[:1],), {"axis": -2, "keepdims": True, **more})
        yield Case(f"flattened-{last}", (x[:, 1:],), more)
        yield Case(f"integers-{last}", (np.array([[2, -5, 2, -5]], np.int32),), {"axis": 1, **more})


# -- decompositions ----------------------------------------------------------------------------


def _sum(b: Builder, x: Any, attrs: Attrs) -> Any:
    return b.op("sum", x, axis=attrs["axis"], keepdims=attrs["keepdims"])


def _in_float(
    rule: Callable[[Builder, Any, Attrs], Any],
) -> Callable[[Builder, Sequence[Any], Attrs], Any]:
    """``rule`` applied to floats; integers go through float64."""

    def apply(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
        x = operands[0]
        dtype = b.dtype(x)
        if dtype in FLOATS:
            return rule(b, x, attrs)
        wide = b.op("astype", x, dtype="float64")
        return b.op("astype", rule(b, wide, attrs), dtype=dtype)

    return apply


def _log_sum_exp(b: Builder, x: Any, attrs: Attrs) -> Any:
    top = b.op("max", x, axis=attrs["axis"], keepdims=True)
    zero = b.const(0, b.dtype(x))
    top = b.op("where", b.op("isfinite", top), top, zero)
    total = b.op("sum", b.op("exp", b.op("subtract", x, top)), axis=attrs["axis"], keepdims=True)
    result = b.op("add", b.op("log", total), top)
    if attrs["keepdims"]:
        return result
    axes = infer.axes_of(attrs["axis"], len(b.shape(x)))
    return b.op("squeeze", result, axis=axes) if axes else result


def _variance(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    x = operands[0]
    centred = b.op("subtract", x, b.op("mean", x, axis=attrs["axis"], keepdims=True))
    square = b.op("multiply", centred, centred)
    return b.op("mean", square, axis=attrs["axis"], keepdims=attrs["keepdims"])


def _fold(name: str, function: Callable[..., Array], **more: Any) -> OpSpec:
    settings: dict[str, Any] = {
        "attributes": _FOLDED,
        "relax": f"relax.{name}",
        "accumulation": _IN_FLOAT32,
        "tolerance": LOOSE,
        "flops": _terms,
        "cases": _long_cases,
    }
    settings |= more
    through_float = bool(settings.pop("through_float", False))
    return OpSpec(name, "reduction", _folded(function, through_float), _reduced, **settings)


SPECS = (
    _fold("sum", np.sum, dtypes=NUMBERS, cases=_with_integers),
    _fold("prod", np.prod, dtypes=NUMBERS, cases=_with_integers),
    _fold("max", extreme(True), dtypes=NUMBERS, cases=_with_integers),
    _fold("min", extreme(False), dtypes=NUMBERS, cases=_with_integers),
    _fold("mean", np.mean),
    _fold("variance", np.var, flops=lambda *about: 4 * _terms(*about), decompose=_variance),
    _fold(
        "std",
        np.std,
        flops=lambda *about: 4 * _terms(*about),
        decompose=lambda b, operands, attrs: b.op("sqrt", _variance(b, operands, attrs)),
    ),
    _fold(
        "l1_norm",
        lambda x, **where: np.sum(np.abs(x), **where),
        relax=None,
        dtypes=NUMBERS,
        cases=_with_integers,
        decompose=lambda b, operands, attrs: _sum(b, b.op("abs", operands[0]), attrs),
        source="ONNX ReduceL1",
    ),
    _fold(
        "sum_square",
        lambda x, **where: np.sum(x * x, **where),
        relax=None,
        dtypes=NUMBERS,
        cases=_with_integers,
        decompose=lambda b, operands, attrs: _sum(
            b, b.op("multiply", operands[0], operands[0]), attrs
        ),
        source="ONNX ReduceSumSquare",
    ),
    _fold(
        "l2_norm",
        lambda x, **where: np.sqrt(np.sum(x * x, **where)),
        relax=None,
        dtypes=NUMBERS,
        through_float=True,
        cases=_long_cases,
        decompose=_in_float(
            lambda b, x, attrs: b.op("sqrt", _sum(b, b.op("multiply", x, x), attrs))
        ),
        source="ONNX ReduceL2",
    ),
    _fold(
        "log_sum",
        lambda x, **where: np.log(np.sum(x, **where)),
        relax=None,
        dtypes=NUMBERS,
        through_float=True,
        cases=_positive_cases,
        decompose=_in_float(lambda b, x, attrs: b.op("log", _sum(b, x, attrs))),
        source="ONNX ReduceLogSum",
    ),
    _fold(
        "log_sum_exp",
        log_sum_exp,
        relax=None,
        dtypes=NUMBERS,
        through_float=True,
        decompose=_in_float(_log_sum_exp),
        flops=lambda *about: 12 * _terms(*about),
        source="ONNX ReduceLogSumExp",
    ),
    *(
        _fold(name, function, relax=None, dtypes=("bool",), tolerance={}, cases=_truth_cases)
        for name, function in (("all", np.all), ("any", np.any))
    ),
    *(
        OpSpec(
            name,
            "reduction",
            arg_extreme(larger),
            _position,
            attributes=(*_FOLDED, Attribute("select_last_index", False)),
            dtypes=(*FLOATS, *INTS),
            flops=_terms,
            cases=_position_cases,
            source="ONNX ArgMax, ArgMin",
        )
        for name, larger in (("argmax", True), ("argmin", False))
    ),
)

__all__ = ["ALL", "SPECS"]
