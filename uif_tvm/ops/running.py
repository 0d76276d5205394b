"""Running folds along an axis: every element becomes the fold of all up to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.spec import LOOSE, NUMBERS, Array, Attribute, Case, OpSpec, Reference, TensorType

_IN_FLOAT32 = {"float16": "float32", "bfloat16": "float32"}


def _running(fold: Any, neutral: int | None) -> Reference:
    """``fold.accumulate`` in the accumulation type; from the far end with ``reverse``.

    ``exclusive`` leaves the element itself out, so that the first result is the neutral element.
    """

    def apply(x: Array, axis: int, exclusive: bool = False, reverse: bool = False) -> Array:
        wide = x.astype(_IN_FLOAT32.get(x.dtype.name, x.dtype))
        wide = np.flip(wide, axis) if reverse else wide
        result = fold.accumulate(wide, axis, dtype=wide.dtype)
        if exclusive and x.shape[axis]:
            first = np.full_like(np.take(wide, [0], axis), neutral)
            kept = np.delete(result, -1, axis)
            result = np.concatenate([first, kept], axis)
        return (np.flip(result, axis) if reverse else result).astype(x.dtype)

    return apply


def _checked(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
    infer.axis_of(attrs["axis"], types[0].rank)
    return (types[0],)


def _cases(switches: bool) -> Iterable[Case]:
    x = np.linspace(-1.5, 1.5, 2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3)
    yield Case("middle", (x,), {"axis": 1})
    yield Case("negative-axis", (x,), {"axis": -1})
    yield Case(
        "special-values", (np.array([1, np.inf, 2, np.nan, -np.inf], np.float32),), {"axis": 0}
    )
    yield Case("size-1", (x[:, :1],), {"axis": 1})
    yield Case("zero-size", (x[:, :0],), {"axis": 1})
    yield Case("integers", (np.array([[3, -1], [2**30, 7]], np.int32),), {"axis": 0})
    if switches:
        yield Case("exclusive", (x,), {"axis": 1, "exclusive": True})
        yield Case("reverse", (x,), {"axis": 1, "reverse": True})
        yield Case("both", (x,), {"axis": -1, "exclusive": True, "reverse": True})


_SWITCHES = (Attribute("exclusive", False), Attribute("reverse", False))

SPECS = tuple(
    OpSpec(
        name,
        "reduction",
        _running(fold, neutral),
        _checked,
        attributes=(Attribute("axis"), *(_SWITCHES if neutral is not None else ())),
        dtypes=NUMBERS,
        accumulation=_IN_FLOAT32,
        tolerance=LOOSE,
        cases=partial(_cases, neutral is not None),
        source="ONNX CumSum, CumProd" if neutral is not None else "PyTorch cummax, cummin",
    )
    for name, fold, neutral in (
        ("cumsum", np.add, 0),
        ("cumprod", np.multiply, 1),
        ("cummax", np.maximum, None),
        ("cummin", np.minimum, None),
    )
)
