"""Views, slices, joins, padding: negative positions, uneven parts, nothing at all."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.frontends.torch.running import check

X = torch.arange(60.0).reshape(3, 4, 5)


def test_negative_positions() -> None:
    check(
        lambda x: (
            x[-1],
            x[:, -2],
            x[..., -1],
            x.select(1, -4),
            x.narrow(2, -3, 2),
            x[-2:],
            x[:, :-1],
            x[:, -3:-1:2],
            x[0, 1:100],
            x[5:],
            x[::2, 1::3],
            x.index_select(0, torch.tensor([2, 0])),
            x[[-1, 0]],
        ),
        X,
    )


def test_parts_may_be_uneven() -> None:
    check(
        lambda x: (
            *x.chunk(2, 2),
            *x.split(3, 1),
            *x.split([1, 0, 4], -1),
            *x.unbind(0),
            *torch.tensor_split(x, 3, 1),
        ),
        X,
    )


def test_views() -> None:
    check(
        lambda x: (
            x.view(-1, 10),
            x.flatten(1),
            x.unsqueeze(-1),
            x[:, :1].squeeze(1),
            x.squeeze(1),
            x.transpose(0, -1),
            x.permute(2, 0, 1),
            x[:, :1].expand(-1, 6, -1),
            x.unflatten(1, (2, 2)),
            x.mT,
            x.movedim(0, -1),
            x.unfold(2, 3, 2),
            torch.diagonal(x, 1, 1, 2),
            x.swapaxes(0, 1),
        ),
        X,
    )


def test_joins_and_repeats() -> None:
    check(
        lambda x, i: (
            torch.cat([x, x[:1]]),
            torch.cat([x, i], -1),
            torch.stack([x, x], 1),
            torch.stack([x, x], -1),
            torch.cat([torch.empty(0), x[0, 0]]),
            x.repeat(2, 1, 3),
            x.repeat(2, 1, 1, 1),
            x.tile((2,)),
            x.repeat_interleave(2, dim=1),
            torch.hstack([x, x]),
        ),
        X,
        torch.ones(3, 4, 1, dtype=torch.int64),
    )


def test_flip_and_roll() -> None:
    check(
        lambda x: (
            x.flip(0),
            x.flip([0, -1]),
            x.roll(1),
            x.roll(-2, 1),
            x.roll([1, -7], [0, 2]),
            x.rot90(1, [0, 1]),
            torch.fliplr(x),
        ),
        X,
    )


def test_padding_modes() -> None:
    image = torch.randn(2, 3, 5, 6)
    check(
        lambda x: (
            F.pad(x, (1, 2)),
            F.pad(x, (1, -2, -1, 0), value=3.0),
            F.pad(x, (1, 2, 2, 1), mode="reflect"),
            F.pad(x, (3, 2, 0, 1), mode="replicate"),
            F.pad(x, (2, 1, 1, 3), mode="circular"),
        ),
        image,
    )


def test_pixel_shuffle_both_ways() -> None:
    check(
        lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2)),
        torch.randn(1, 8, 3, 2),
    )


def test_nothing_at_all() -> None:
    check(
        lambda x: (
            x[:0],
            x[:0].reshape(-1, 10) + 1,
            x[:0].sum(),
            x[:0].sum(0),
            x[:0].mean(),
            x[:0].prod(0),
            torch.cat([x[:0], x]),
            x[:0].any(),
            x[:0].all(),
            x[:0].cumsum(0),
            x[:, :0] @ x[0, :0].T.reshape(0, 4)[:0].reshape(0, 4).new_zeros(5, 4),
        ),
        X,
    )


def test_zero_dimensions() -> None:
    check(
        lambda x: (
            x.sum(),
            x.max(),
            x.softmax(0),
            x.sort()[0],
            x.cumsum(0),
            x.reshape(1),
            x.unsqueeze(0),
            x.expand(3),
            x * 2,
            x.argmax(),
            x.flip([]),
        ),
        torch.tensor(2.5),
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float64])
def test_views_of_other_dtypes(dtype: torch.dtype) -> None:
    x = (torch.arange(12).reshape(3, 4) % 2).to(dtype)
    check(
        lambda v: (v[-1], v.T, v.flip(0), torch.cat([v, v]), v.reshape(2, 6), F.pad(v, (1, 1))), x
    )


def test_slices_written_back() -> None:
    def assign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:3] = y
        x[-1] = 7.0
        x[:, :, ::2] += 1
        x[0, 0, 0] = -1
        return x

    check(
        lambda x, y: (
            assign(x, y),
            torch.slice_scatter(x, y, 1, 0, 2),
            torch.select_scatter(x, x[0], 0, -1),
            torch.diagonal_scatter(x[0], x[0, 0, :4], 0),
        ),
        X,
        torch.zeros(3, 2, 5),
    )
