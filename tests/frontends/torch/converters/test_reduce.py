"""Reductions, scans, sorting: result dtypes, NaN, ties."""

from __future__ import annotations

import pytest
import torch

from tests.frontends.torch.running import check
from uif_tvm.errors import ImportModelError, UnsupportedError
from uif_tvm.frontends.torch import import_torch

NAN = float("nan")
X = torch.tensor([[1.0, NAN, 3.0, 3.0], [-1.0, 2.0, 2.0, -5.0]])
I = torch.tensor([[3, -1, 3, 0], [7, 7, -2, 5]])  # noqa: E741


def test_sums_and_means() -> None:
    check(
        lambda x, i, b: (
            x.sum(),
            x.sum(1),
            x.sum((0, 1), keepdim=True),
            i.sum(1),
            b.sum(),
            i.to(torch.int32).sum(),
            i.sum(dtype=torch.float64),
            x.mean(1, dtype=torch.float64),
            x.mean((0, -1)),
            i.prod(1),
            b.prod(0),
            i.float().std(),
            i.float().var(1, unbiased=False),
            i.float().var(1, correction=0, keepdim=True),
            *torch.var_mean(i.float(), 1),
            torch.logsumexp(x, 1),
            i.float().norm(),
            torch.count_nonzero(i, 1),
        ),
        X,
        I,
        I > 0,
    )


def test_any_all_on_numbers() -> None:
    check(
        lambda x, i, b: (
            x.any(),
            x.all(1),
            i.any(1),
            i.all(),
            b.all(0, keepdim=True),
            i.to(torch.uint8).any(),
        ),
        X,
        I,
        I > 0,
    )


def test_extremes() -> None:
    check(
        lambda x, i, b: (
            x.max(),
            x.min(),
            x.amax(1),
            x.amin(0, keepdim=True),
            x.max(1),
            x.min(1),
            i.max(1),
            i.min(0, keepdim=True),
            x.argmax(),
            x.argmax(1),
            x.argmin(1, keepdim=True),
            i.argmax(1),
            i.argmin(1),
            b.max(1)[0],
            b.amin(),
            torch.aminmax(i),
        ),
        X,
        I,
        I > 0,
    )


def test_infinities_are_found() -> None:
    x = torch.full((2, 3), -float("inf"))
    check(lambda v: (v.argmax(1), v.max(1), (-v).argmin(1), (-v).min(1)), x)


def test_scans() -> None:
    check(
        lambda x, i, b: (
            x.cumsum(1),
            i.cumsum(0),
            b.cumsum(1),
            i.to(torch.int8).cumsum(1),
            i.cumprod(1),
            x.cumsum(0, dtype=torch.float64),
            x.cummax(1)[0],
            x.cummin(1)[0],
            torch.logcumsumexp(i.float(), 1),
        ),
        X,
        I,
        I > 0,
    )


def test_order() -> None:
    long = torch.randint(0, 50, (3, 77), generator=torch.Generator().manual_seed(0))
    check(
        lambda x, i, n: (
            x.sort(dim=1, stable=True),
            x.sort(dim=1, descending=True, stable=True),
            x.sort(dim=0, stable=True),
            i.sort(dim=1, stable=True),
            torch.argsort(i, dim=1, stable=True),
            x.topk(2, 1)[0],
            i.topk(3, 0 if i.shape[0] > 2 else 1, largest=False)[0],
            i.kthvalue(2, 1)[0],
            i.float().median(1)[0],
            x.median(1),
            i.median(),
            n.sort(dim=1, stable=True),
            n.sort(dim=1, descending=True, stable=True),
            n.sort(dim=0, stable=True)[0],
        ),
        X,
        I,
        long,
    )


def test_searching() -> None:
    edges = torch.tensor([1.0, 2.0, 2.0, 5.0])
    check(
        lambda e, x: (
            torch.bucketize(x, e),
            torch.bucketize(x, e, right=True),
            torch.searchsorted(e, x, out_int32=True),
        ),
        edges,
        torch.tensor([0.0, 2.0, 3.0, 9.0, NAN]),
    )


def test_mean_of_integers_is_refused() -> None:
    with pytest.raises((ImportModelError, UnsupportedError)):
        import_torch(_Mean(), I.clone())


class _Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()
