"""Layers with weights: convolutions, normalisations, pooling, attention, recurrent networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.frontends.torch.running import check

IMAGE = torch.randn(2, 6, 9, 8, generator=torch.Generator().manual_seed(1))


class Parallel(nn.Module):
    """All layers on one input, so that one compilation serves many checks."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


def randomised(module: nn.Module) -> nn.Module:
    """Running statistics and affine parameters away from their neutral values."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.25)
    return module


def test_convolutions() -> None:
    model = Parallel(
        nn.Conv2d(6, 4, 3),
        nn.Conv2d(6, 4, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(6, 12, 3, groups=6, padding="same"),
        nn.Conv2d(6, 4, (3, 1), dilation=(2, 1), padding=(2, 0), groups=2),
        nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"),
    )
    check(model, IMAGE, rtol=1e-4, atol=1e-5)


def test_transposed_convolutions() -> None:
    model = Parallel(
        nn.ConvTranspose2d(6, 4, 3),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(6, 4, 3, groups=2, dilation=2, padding=3),
        nn.ConvTranspose2d(6, 6, 2, stride=(3, 2), groups=6, bias=False),
    )
    check(model, IMAGE, rtol=1e-4, atol=1e-5)


def test_convolutions_in_one_and_three_dimensions() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.one_t = nn.Conv1d(6, 4, 3, 2, 1), nn.ConvTranspose1d(6, 4, 3, 2)
            self.three = nn.Conv3d(2, 3, 2, padding=1)
            self.three_t = nn.ConvTranspose3d(2, 3, 2, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.one(a), self.one_t(a), self.three(b), self.three_t(b), self.one(a[0])

    check(Model(), torch.randn(2, 6, 9), torch.randn(1, 2, 3, 4, 5), rtol=1e-4, atol=1e-5)


def test_normalisations() -> None:
    model = randomised(
        Parallel(
            nn.BatchNorm2d(6),
            nn.BatchNorm2d(6, affine=False),
            nn.BatchNorm2d(6, track_running_stats=False),
            nn.GroupNorm(3, 6),
            nn.GroupNorm(1, 6, affine=False),
            nn.InstanceNorm2d(6),
            nn.InstanceNorm2d(6, affine=True),
            nn.InstanceNorm2d(6, track_running_stats=True),
            nn.LayerNorm(8),
            nn.LayerNorm((9, 8), elementwise_affine=False),
            nn.RMSNorm(8),
            nn.LocalResponseNorm(3),
        )
    )
    imported = check(model, IMAGE, rtol=1e-4, atol=1e-5)
    text = imported.mod.script(show_meta=False)
    for op in ("nn.group_norm", "nn.instance_norm", "nn.layer_norm"):
        assert op in text
    assert "nn.batch_norm" not in text


def test_pooling() -> None:
    model = Parallel(
        nn.MaxPool2d(3, 2),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.AvgPool2d(3, 2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((3, 4)),
        nn.AdaptiveAvgPool2d((5, None)),
        nn.AdaptiveMaxPool2d((2, 3)),
        nn.LPPool2d(2, 3, 2),
    )
    check(model, IMAGE)


def test_pooling_positions() -> None:
    check(
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        IMAGE,
    )


@pytest.mark.parametrize(
    ("mode", "align"),
    [("nearest", None), ("nearest-exact", None), ("bilinear", False), ("bilinear", True),
     ("bicubic", False), ("bicubic", True)],
)  # fmt: skip
def test_interpolation(mode: str, align: bool | None) -> None:
    check(
        lambda x: tuple(
            F.interpolate(x, size=size, scale_factor=scale, mode=mode, align_corners=align)
            for size, scale in (
                (None, 2), (None, 1.5), (None, (0.7, 2.3)), ((5, 13), None), ((1, 1), None)
            )
        ),
        IMAGE[:, :2],
        atol=1e-5,
    )  # fmt: skip


def test_interpolation_in_other_ranks_and_antialiased() -> None:
    check(
        lambda x: (
            F.interpolate(x[0], scale_factor=1.7, mode="linear"),
            F.interpolate(x[0], scale_factor=1.7, mode="nearest"),
            F.interpolate(x[None], size=(3, 5, 11), mode="trilinear"),
            F.interpolate(x[None], size=(3, 5, 11), mode="nearest"),
            F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True),
            F.interpolate(x, size=(4, 13), mode="bicubic", antialias=True),
            F.interpolate(x, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True),
        ),
        IMAGE[:, :2],
        atol=1e-5,
    )


def test_grid_sample() -> None:
    grid = torch.rand(2, 4, 3, 2, generator=torch.Generator().manual_seed(3)) * 3 - 1.5
    check(
        lambda x, g: tuple(
            F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=align)
            for mode, padding, align in (
                ("bilinear", "zeros", False),
                ("bilinear", "border", True),
                ("nearest", "reflection", False),
            )
        ),
        IMAGE,
        grid,
        atol=1e-5,
    )


def test_linear_algebra() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    check(
        lambda x, y: (
            x @ y,
            torch.baddbmm(torch.ones(5), x, y, beta=0.5, alpha=2),
            torch.addmm(torch.full((5,), float("nan")), x[0], y[0], beta=0, alpha=3),
            torch.einsum("bij,bjk->ki", x, y),
            torch.einsum("bij,bij->b", x, x),
            torch.matmul(x, y[0]),
            torch.mv(x[0], y[0, :, 0]),
            torch.dot(x[0, 0], y[0, :, 0]),
            torch.outer(x[0, 0], x[0, 1]),
            F.linear(x, x[0]),
            x.long() @ y.long(),
            torch.tensordot(x, y, dims=([2], [1])),
            torch.kron(x[0], x[1]),
            torch.bilinear(x[0], x[1], torch.ones(2, 4, 4), None),
            torch.cdist(x, x + 1),
        ),
        a,
        b,
        rtol=1e-4,
        atol=1e-5,
    )


def test_attention_masks() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(2, 4, 5, 8, generator=generator) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5, generator=generator) > 0.5
    mask[0, 0, 2] = False
    check(
        lambda q, k, v, m: (
            F.scaled_dot_product_attention(q, k, v),
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.scaled_dot_product_attention(q, k, v, attn_mask=m),
            F.scaled_dot_product_attention(q, k, v, torch.where(m, 0.5, -float("inf"))),
            F.scaled_dot_product_attention(q, k, v, scale=0.3),
            F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
            F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True),
        ),
        q,
        k,
        v,
        mask,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True),
        nn.GRU(4, 5, bidirectional=True),
        nn.RNN(4, 5, nonlinearity="relu"),
        nn.LSTM(4, 5, proj_size=3),
        nn.MultiheadAttention(4, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_recurrent_and_attention_modules(layer: nn.Module) -> None:
    x = torch.randn(3, 2, 4)
    if isinstance(layer, nn.MultiheadAttention):
        check(lambda q: layer(q, q, q), x, rtol=1e-4, atol=1e-5)
    else:
        check(layer, x, rtol=1e-4, atol=1e-5)


def test_transformer_layer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    check(layer, torch.randn(2, 5, 8), rtol=1e-4, atol=1e-5)


def test_tokens_are_counted_and_multiplied_per_expert() -> None:
    pytest.importorskip("transformers.integrations.moe")
    weight = torch.randn(3, 4, 5)
    check(
        lambda x, e: (
            torch.histc(e.float(), 3, 0, 2),
            torch.histc(x, 7, -1, 1.5),
            torch.ops.transformers.grouped_mm_fallback(
                x, weight, torch.histc(e.float(), 3, 0, 2).cumsum(0, dtype=torch.int32)
            ),
        ),
        torch.randn(6, 4),
        torch.tensor([0, 0, 2, 2, 2, 7]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_constant_views_fold_whatever_their_strides() -> None:
    check(
        lambda x: x + torch.arange(6.0).reshape(2, 3).T.repeat_interleave(2, -1).view(-1, 6)[:2],
        torch.ones(2, 6),
    )
