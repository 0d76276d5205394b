"""Max pooling and division through the public flow, on the values that tell rules apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import uif_tvm

INF = float("inf")


class Pools(torch.nn.Module):
    def forward(self, x):
        return (
            functional.max_pool2d(x, 2),
            functional.max_pool2d(x, 3, 2, 1),
            functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            functional.max_pool2d(x, 2, 1, dilation=2),
            functional.max_pool1d(x[0], 3, padding=1),
        )


class Quotients(torch.nn.Module):
    def forward(self, x):
        return x / 0.0, x[0] / 0.0, torch.remainder(x, 2.0)


def outputs(model: torch.nn.Module, x: torch.Tensor, level: int, folder: Path) -> list[np.ndarray]:
    path = folder / "m.uif"
    uif_tvm.export(model.eval(), x, path, optimize_level=level, cache_dir=None)
    return uif_tvm.load(path).run(x)


@pytest.mark.parametrize("level", [0, 2, 3])
def test_minus_infinity_is_a_value_and_nan_wins(level, tmp_path):
    x = torch.full((1, 3, 9, 9), -INF)
    x[0, 1] = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    x[0, 2, 3, 3] = float("nan")
    for ours, theirs in zip(outputs(Pools(), x, level, tmp_path), Pools()(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("level", [0, 2])
def test_division_by_a_constant_zero(level, tmp_path):
    x = torch.tensor([-1.0, 0.0, 2.5, INF])
    for ours, theirs in zip(outputs(Quotients(), x, level, tmp_path), Quotients()(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
