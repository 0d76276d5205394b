"""Element-wise operators against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.harness import check, single

RNG = np.random.default_rng(0)
F = np.float32
NAN = np.nan


@pytest.mark.parametrize(
    ("op", "left", "right"),
    [
        ("Add", RNG.standard_normal((3, 1)).astype(F), RNG.standard_normal((1, 4)).astype(F)),
        ("Less", RNG.standard_normal((3, 1)).astype(F), RNG.standard_normal((2, 1, 4)).astype(F)),
        ("Div", np.array([7, -7, 9, -9], np.int64), np.array([2, 2, -4, -4], np.int64)),
        ("Mod", np.array([7, -7, 9, -9], np.int32), np.array([2, 2, -4, -4], np.int32)),
        ("Pow", np.array([1, 2, 3, -2], np.int32), np.array([2, 0, 3, 3], np.int32)),
        ("Max", np.array([NAN, 3, 4, NAN], F), np.array([7, NAN, 9, NAN], F)),
        ("Min", np.array([NAN, 3, 4, NAN], F), np.array([7, NAN, 9, NAN], F)),
        ("And", np.array([True, False]), np.array([True, True])),
        ("PRelu", RNG.standard_normal((1, 4, 3)).astype(F), np.array([[0.1], [-0.5], [2], [0]], F)),
    ],
)
def test_binary(op: str, left: Any, right: Any) -> None:
    check(*single(op, [left, right]))


def test_float_remainder_follows_the_dividend() -> None:
    left, right = np.array([5.3, -5.3, 5.3], F), np.array([2, 2, -2], F)
    check(*single("Mod", [left, right], fmod=1), expected=[np.fmod(left, right)])


def test_integer_division_by_zero_does_not_trap() -> None:
    model, inputs = single("Div", [np.array([4, -4], np.int32), np.array([0, 2], np.int32)])
    check(model, inputs, expected=[np.array([0, -2], np.int32)])


def test_power_keeps_the_base_dtype() -> None:
    model, inputs = single("Pow", [np.array([1, 2, 3], np.int32), np.array([2, 2, 3], F)])
    check(model, inputs, expected=[np.array([1, 4, 27], np.int32)])


@pytest.mark.parametrize("bounds", [(None, 1.0), (-1.0, None), (-1.0, 1.0), (2.0, -2.0)])
def test_clip(bounds: tuple[float | None, float | None]) -> None:
    low, high = (None if b is None else np.array(b, F) for b in bounds)
    x = np.array([-3, -0.5, 0.5, 3, NAN], F)
    expected = x
    expected = expected if low is None else np.where(expected < low, low, expected)
    expected = expected if high is None else np.where(expected > high, high, expected)
    given = [v for v in (1, 2) if (low, high)[v - 1] is not None]
    check(*single("Clip", [x, low, high], constants=given), expected=[expected.astype(F)])


def test_shift_by_the_width_or_more() -> None:
    x, by = np.array([16, 16, 1], np.uint8), np.array([1, 9, 8], np.uint8)
    model, inputs = single("BitShift", [x, by], direction="RIGHT")
    check(model, inputs, expected=[np.array([8, 0, 0], np.uint8)])


def test_variadic_and_dropout() -> None:
    xs = [RNG.standard_normal(4).astype(F) for _ in range(3)]
    check(*single("Mean", xs))
    model, inputs = single("Dropout", [xs[0]], 2)
    check(model, inputs, expected=[xs[0], np.ones(4, bool)])


def test_where_broadcasts_all_three() -> None:
    condition = np.array([[True], [False]])
    check(*single("Where", [condition, np.ones((1, 3), F), np.zeros((2, 1), F)]))
