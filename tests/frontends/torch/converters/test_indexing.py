"""Gather, scatter, advanced indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.frontends.torch.running import Function, check, run
from uif_tvm.errors import UnsupportedError
from uif_tvm.frontends.torch import import_torch

X = torch.arange(60.0).reshape(3, 4, 5)


def test_advanced_indexing() -> None:
    check(
        lambda x, i, j: (
            x[i],
            x[:, i],
            x[i, j],
            x[:, i, j],
            x[i, :, j],
            x[i[:, None], j[None]],
            x[..., i],
            x[i, 1:, j],
            torch.take(x, j),
        ),
        X,
        torch.tensor([0, -1, 2]),
        torch.tensor([3, -2, 0]),
    )


def test_gather_with_a_smaller_index() -> None:
    check(
        lambda x, i: (torch.gather(x, 1, i), torch.take_along_dim(x, i, 1)),
        X[:, :, :3],
        torch.tensor([[[3, 0, 1]], [[2, 2, 0]], [[1, 0, 3]]]),
    )


def test_embedding_clamps_what_pytorch_refuses() -> None:
    table = torch.nn.Embedding(5, 3)
    imported = import_torch(table, torch.tensor([0, 4]))
    assert imported.signature.inputs[0].name == "input"
    want = table.weight.detach().numpy()
    np.testing.assert_array_equal(run(imported.mod, [np.array([4, 0])])[0], want[[4, 0]])


def test_constant_index_outside_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="outside size 3"):
        import_torch(Function(lambda x: x[torch.tensor([0, 3])]), X.clone()).mod  # noqa: B018


def test_scatter() -> None:
    index = torch.tensor([[[0, 1, 2, 0]], [[2, 2, 1, 0]]])
    source = torch.arange(48.0).reshape(2, 4, 6)[:, :, :5]
    check(
        lambda x, i, s: (
            x.scatter(1, i, s),
            x.scatter(1, i, 9.5),
            x.scatter_add(1, i, s),
            x.scatter_reduce(1, i, s, "amax"),
            x.scatter_reduce(1, i, s, "prod"),
            x.scatter(1, i, s, reduce="multiply"),
            x.scatter_reduce(1, i, s, "sum", include_self=False),
            x.scatter_reduce(1, i, s, "amin", include_self=False),
            x.scatter_reduce(1, i, s, "mean"),
            x.scatter_reduce(1, i, s, "mean", include_self=False),
            x.index_reduce(0, i[0, 0, :3].clamp(max=2), x, "amax"),
            x.long().scatter_add(1, i, s.long()),
        ),
        X,
        index,
        source,
    )


def test_index_put() -> None:
    def put(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c, d, e = (x.clone() for _ in range(5))
        a[i] = 1.5
        b[:, j] = x[:, :3] * 2
        c[i, j] += 1
        d[:, i, j] = x[:, :3, 0]
        e[x > 30] = -1
        return a, b, c, d, e

    check(put, X, torch.tensor([0, 2, -1]), torch.tensor([1, 0, 3]))


def test_index_put_accumulates_repeats() -> None:
    check(
        lambda x, i, v: (
            x.index_put((i,), v, accumulate=True),
            x.index_add(0, i, v),
            x.index_add(0, i, v, alpha=2),
            x.index_copy(0, torch.tensor([2, 0, 1]), v[:3]),
            x.index_fill(0, i, 3.0),
        ),
        torch.randn(4, 2),
        torch.tensor([1, 1, 0, 1]),
        torch.randn(4, 2),
    )


def test_sizes_that_data_decides_are_refused_together() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            positive = torch.nonzero(x > 0, as_tuple=False)
            return positive.sum() + torch.unique(x).sum() + torch.rand(3).sum()

    with pytest.raises(UnsupportedError) as caught:
        import_torch(Model(), torch.randn(5))
    refused = {op.op: op for op in caught.value.ops}
    assert "aten.nonzero.default" in refused
    assert any("unique" in name for name in refused)
    assert any("rand" in name for name in refused)
    assert "test_indexing.py" in refused["aten.nonzero.default"].locations[0]
    assert caught.value.hint
