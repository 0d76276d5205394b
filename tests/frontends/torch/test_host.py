"""Operators that run on the host through ATen, and complex numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import uif_tvm
from tests.frontends.torch.running import Function
from uif_tvm.errors import HostFallbackWarning, UnsupportedError


def deploy(
    function: Callable[..., Any], path: Path, *args: torch.Tensor
) -> tuple[dict[str, Any], dict[str, int]]:
    """Export, run and compare with eager PyTorch; stats and host operators."""
    module = Function(function).eval()
    want = pytree.tree_leaves(module(*args))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        report = uif_tvm.export(module, args, path, cache_dir=None).report
    engine = uif_tvm.load(path, threads=1)
    have = engine.run(*(x.numpy() for x in args))
    for ours, reference in zip(have, want, strict=True):
        assert ours.dtype == reference.numpy().dtype
        np.testing.assert_allclose(ours, reference.numpy(), 1e-4, 1e-5)
    places = report["placement"]
    return engine.get_stats(), {p["op"]: p["count"] for p in places if p["where"] == "host"}


def test_an_exotic_operator_runs_counted_and_priced(tmp_path: Path) -> None:
    stats, host = deploy(
        lambda x: torch.linalg.svdvals(x) * 2, tmp_path / "m.uif", torch.randn(3, 4)
    )
    assert host == {"aten._linalg_svd.default": 1}
    assert stats["host_fallbacks"] == 1
    assert stats["host_ms"]["aten._linalg_svd.default"] > 0


def test_sizes_that_the_data_decides(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, -1.0, 2.0], [0.0, 3.0, -2.0]])
    _, host = deploy(
        lambda x: (torch.nonzero(x > 0) + 1, x[x > 0] * 3, torch.unique(x)), tmp_path / "m.uif", x
    )
    assert set(host) == {"aten.nonzero.default", "aten.index.Tensor", "aten._unique2.default"}
    engine = uif_tvm.load(tmp_path / "m.uif")
    assert engine.run(np.zeros((2, 3), np.float32))[0].shape == (0, 2)


def test_rotary_embedding_of_complex_numbers_needs_no_host(tmp_path: Path) -> None:
    def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turned = z * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).flatten(-2)

    _, host = deploy(rotate, tmp_path / "m.uif", torch.randn(2, 5, 8), torch.randn(5, 4))
    assert not host


def test_complex_inputs_and_outputs(tmp_path: Path) -> None:
    z = torch.complex(torch.randn(3, 8), torch.randn(3, 8))
    deploy(lambda z: (torch.fft.ifft(z), z * z, z.real), tmp_path / "m.uif", z)


@pytest.mark.parametrize("mode", ["error", "compose"])
def test_without_the_host_all_are_named(tmp_path: Path, mode: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        uif_tvm.export(
            Function(lambda x: torch.linalg.svdvals(x).sum() + torch.unique(x).sum()),
            torch.randn(3, 4),
            tmp_path / "m.uif",
            fallback_mode=mode,
        )
    assert {"aten._linalg_svd.default", "aten._unique2.default"} <= {
        op.op for op in caught.value.ops
    }


def test_random_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="results are random"):
        uif_tvm.export(
            Function(lambda x: x + torch.rand_like(x)), torch.randn(3), tmp_path / "m.uif"
        )
