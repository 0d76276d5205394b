"""ONNX's own node tests, as its test runner sees them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np


@cache
def load_cases() -> dict[str, Any]:
    """Name -> case, for all node tests of the installed onnx; they are built in memory."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def data_sets(case: Any) -> list[tuple[list[Any], list[Any]]]:
    """(inputs, expected outputs) of each data set; protos become arrays as upstream does it."""
    from onnx.backend.test.runner import _normalize_tensor

    return [
        ([_normalize_tensor(x) for x in inputs], [_normalize_tensor(y) for y in outputs])
        for inputs, outputs in case.data_sets
    ]


def compare(case: Any, expected: list[Any], have: list[Any]) -> None:
    """Upstream's own comparison: number, kinds, shapes, dtypes, the case's tolerances.

    Raises:
        AssertionError: they differ.
    """
    from onnx.backend.test.runner import Runner

    with np.errstate(all="ignore"):
        Runner.assert_similar_outputs(expected, have, case.rtol, case.atol)
