"""Whole models whose kernels take a workspace, at every level."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.compiler.test_lower import LEVELS
from tests.models import engine, imported, weights

SIDE = 1000


@pytest.mark.parametrize("level", LEVELS)
def test_workspace_is_passed(tmp_path, level):
    inputs = [("x", (SIDE, SIDE), "float32"), ("y", (SIDE, SIDE), "float32")]
    model = imported(inputs, lambda x, y: [relax.op.matmul(x, relax.op.matmul(x, y))])
    made = engine(tmp_path, model, level=level)
    x, y = weights(SIDE, SIDE), weights(SIDE, SIDE, seed=1)
    np.testing.assert_allclose(made.run(x, y)[0], x @ (x @ y), rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize("level", LEVELS)
def test_workspace_comes_before_symbolic_sizes(tmp_path, level):
    inputs = [("x", ("n", SIDE), "float32"), ("y", (SIDE, SIDE), "float32")]
    model = imported(inputs, lambda x, y: [relax.op.matmul(relax.op.matmul(x, y), y)])
    made = engine(tmp_path, model, level=level)
    y = weights(SIDE, SIDE, seed=1)
    for rows in (1, 7, 300):
        x = weights(rows, SIDE)
        np.testing.assert_allclose(made.run(x, y)[0], (x @ y) @ y, rtol=1e-3, atol=1e-1)
