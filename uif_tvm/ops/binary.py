"""Elementwise operators of several operands, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.ops.elementwise import in_float32
from uif_tvm.ops.spec import (
    ALL,
    FLOATS,
    INTS,
    LOOSE,
    NUMBERS,
    Array,
    Attribute,
    Case,
    Operand,
    OpSpec,
    Reference,
    ShapeError,
    TensorType,
)

_PAIR = (Operand("x"), Operand("y"))


def divide(x: Array, y: Array) -> Array:
    """Quotient; that of integers is rounded toward zero, as hardware does. x / 0 of integers: 0."""
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    zero = y == 0
    quotient = np.abs(x.astype(object)) // np.where(zero, 1, np.abs(y.astype(object)))
    signed = np.where(zero, 0, np.sign(x) * np.sign(y) * quotient)
    return (signed.astype(object) & _mask(x.dtype)).astype(np.uint64).astype(x.dtype)


def _mask(dtype: np.dtype[np.generic]) -> int:
    """All bits of an integer type: results wrap around as in the machine."""
    return (1 << (8 * dtype.itemsize)) - 1


def shift_left(x: Array, y: Array) -> Array:
    """x 2^y; bits that leave the type are lost, also for shifts by its width or more."""
    width = 8 * x.dtype.itemsize
    return np.where(y >= width, 0, np.left_shift(x, np.minimum(y, width - 1))).astype(x.dtype)


def shift_right(x: Array, y: Array) -> Array:
    """x / 2^y rounded down; the sign fills up for shifts by the type's width or more."""
    return np.right_shift(x, np.minimum(y, 8 * x.dtype.itemsize - 1))


def where(condition: Array, x: Array, y: Array) -> Array:
    """x where the condition holds, else y."""
    return np.where(condition, x, y).astype(x.dtype)


def astype(x: Array, dtype: str) -> Array:
    """``x`` in another type; floats are cut toward zero on the way to integers."""
    return x.astype(numpy_dtype(dtype))


def _where_type(types: Sequence[TensorType], attrs: object) -> tuple[TensorType, ...]:
    if types[0].dtype != "bool":
        raise ShapeError(f"the condition must be bool, got {types[0].dtype}")
    return (TensorType(infer.broadcast(*(item.shape for item in types)), types[1].dtype),)


def float_pairs() -> Iterable[Case]:
    """Special values against each other, and the forms of broadcasting."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -2.5, 1e-40], np.float32)
    yield Case("special-values", (special[:, None], special[None, :]))
    yield Case("broadcast-scalar", (np.linspace(-2, 2, 15, dtype=np.float32), np.float32(0.75)))
    rows, columns = np.ones((3, 1, 5), np.float32), np.full((2, 1), 0.5, np.float32)
    yield Case("broadcast-rank", (rows, columns))
    yield Case("zero-size", (np.empty((0, 4), np.float32), np.ones((1, 4), np.float32)))


def integer_pairs() -> Iterable[Case]:
    """Signs and extremes; no divisor is 0."""
    x = np.array([-7, 7, -8, 8, 0, 2**31 - 1], np.int32)
    yield Case("signs", (x[:, None], np.array([-3, 3, -2, 1], np.int32)[None, :]))


def shift_pairs() -> Iterable[Case]:
    """By nothing, by all bits but one."""
    x = np.array([1, -1, 12345, -(2**31)], np.int32)
    yield Case("widths", (x[:, None], np.array([0, 1, 5, 31], np.int32)[None, :]))


def boolean_pairs() -> Iterable[Case]:
    """The truth table."""
    yield Case("truth-table", (np.array([[False], [True]]), np.array([False, True])))


def _both() -> Iterable[Case]:
    yield from float_pairs()
    yield from integer_pairs()


def _binary(name: str, reference: Reference, **more: object) -> OpSpec:
    settings: dict[str, object] = {
        "infer": infer.broadcasting,
        "operands": _PAIR,
        "relax": f"relax.{name}",
        "dtypes": NUMBERS,
        "cases": _both,
    }
    return OpSpec(name, "binary", reference, **(settings | more))  # type: ignore[arg-type]


SPECS = (
    *(
        _binary(name, meaning)
        for name, meaning in (
            ("add", np.add),
            ("divide", divide),
            ("maximum", np.maximum),
            ("minimum", np.minimum),
            ("multiply", np.multiply),
            ("subtract", np.subtract),
        )
    ),
    _binary(
        "power", in_float32(np.power), flops=20, tolerance=LOOSE, dtypes=FLOATS, cases=float_pairs
    ),
    _binary(
        "atan2", in_float32(np.arctan2), flops=15, tolerance=LOOSE, dtypes=FLOATS, cases=float_pairs
    ),
    _binary("floor_divide", np.floor_divide, cases=integer_pairs, dtypes=INTS),
    _binary("mod", np.fmod, cases=integer_pairs, dtypes=INTS),
    _binary("floor_mod", np.mod, cases=integer_pairs, dtypes=INTS),
    *(
        _binary(name, meaning, infer=infer.comparing, dtypes=ALL)
        for name, meaning in (
            ("equal", np.equal),
            ("greater", np.greater),
            ("greater_equal", np.greater_equal),
            ("less", np.less),
            ("less_equal", np.less_equal),
            ("not_equal", np.not_equal),
        )
    ),
    *(
        _binary(name, meaning, dtypes=("bool",), cases=boolean_pairs)
        for name, meaning in (
            ("logical_and", np.logical_and),
            ("logical_or", np.logical_or),
            ("logical_xor", np.logical_xor),
        )
    ),
    *(
        _binary(name, meaning, dtypes=(*INTS, "bool"), cases=integer_pairs)
        for name, meaning in (
            ("bitwise_and", np.bitwise_and),
            ("bitwise_or", np.bitwise_or),
            ("bitwise_xor", np.bitwise_xor),
        )
    ),
    _binary("left_shift", shift_left, dtypes=INTS, cases=shift_pairs),
    _binary("right_shift", shift_right, dtypes=INTS, cases=shift_pairs),
    OpSpec(
        "where",
        "binary",
        where,
        _where_type,
        operands=(Operand("condition"), *_PAIR),
        relax="relax.where",
        dtypes=("bool",),
        cases=lambda: (
            Case(
                "nan",
                (
                    np.array([True, False]),
                    np.array([np.nan, 1], np.float32),
                    np.array([2, np.nan], np.float32),
                ),
            ),
            Case(
                "broadcast",
                (np.array([[True], [False]]), np.array([1, 2, 3], np.float32), np.float32(9)),
            ),
        ),
    ),
    OpSpec(
        "astype",
        "binary",
        astype,
        lambda types, attrs: (TensorType(types[0].shape, attrs["dtype"]),),
        attributes=(Attribute("dtype"),),
        relax="relax.astype",
        dtypes=ALL,
        cases=lambda: (
            Case(
                "float-to-int", (np.array([-1.9, 1.9, 0.0, 100.5], np.float32),), {"dtype": "int32"}
            ),
            Case("int-to-bool", (np.array([0, 2, -1], np.int32),), {"dtype": "bool"}),
            Case(
                "narrow", (np.array([1e-8, 65504, 1e6, np.nan], np.float32),), {"dtype": "float16"}
            ),
        ),
    ),
)
