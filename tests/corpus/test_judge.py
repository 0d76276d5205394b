"""The judge lets nothing wrong through and nothing right down."""

from __future__ import annotations

import numpy as np
import pytest

from tests.corpus.judge import faults

REFERENCE = np.linspace(-1, 1, 40, dtype=np.float32).reshape(4, 10)


def test_right_answers():
    assert faults([REFERENCE], [REFERENCE]) == []
    assert faults([REFERENCE + np.float32(5e-5)], [REFERENCE]) == []
    assert faults([np.zeros((0, 3), np.float32)], [np.zeros((0, 3), np.float32)]) == []
    nan = np.array([np.nan, 1], np.float32)
    assert faults([nan], [nan]) == []


def one_off(value):
    changed = REFERENCE.copy()
    changed[2, 3] += value
    return changed


@pytest.mark.parametrize(
    ("ours", "word"),
    [
        (REFERENCE.T, "shape"),
        (REFERENCE.astype(np.float64), "dtype"),
        (one_off(2e-3), "off by up to 0.002"),
        (one_off(np.nan), "off"),
        (np.full_like(REFERENCE, np.nan), "off"),
        (one_off(np.inf), "off"),
    ],
    ids=["shape", "dtype", "value", "nan", "all-nan", "inf"],
)
def test_wrong_answers(ours, word):
    (fault,) = faults([ours], [REFERENCE])
    assert word in fault


def test_noise_of_the_reference_is_allowed_for():
    assert faults([one_off(2e-3)], [REFERENCE], noise=2e-3) == []


def test_integers_and_booleans_are_exact():
    ids = np.arange(5)
    assert faults([ids], [ids]) == []
    assert "1 of 5" in faults([np.where(ids == 3, 9, ids)], [ids])[0]
    assert faults([ids > 2], [ids > 3])


def test_quantised_models_are_judged_by_distance_and_argmax():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((50, 20)).astype(np.float32)
    near = logits + rng.standard_normal(logits.shape).astype(np.float32) * 0.01
    assert faults([near], [logits], quantised=True) == []
    assert "L2" in faults([logits * 1.2], [logits], quantised=True)[0]
    assert "L2" in faults([np.full_like(logits, np.nan)], [logits], quantised=True)[0]
    # Small steps that change what the output says.
    flat = np.tile(np.float32([1, 1.01]), (50, 1))
    assert "argmax" in faults([flat[:, ::-1]], [flat], quantised=True)[0]


def test_number_of_outputs():
    assert faults([], [REFERENCE]) == ["0 outputs, expected 1"]


def test_an_infinity_in_the_reference_excuses_nothing():
    theirs = np.array([-np.inf, 1.0, 2.0, 3.0], np.float32)
    ours = np.array([-np.inf, 100.0, -50.0, 7.0], np.float32)
    assert faults([ours], [theirs])
    assert not faults([theirs], [theirs])
