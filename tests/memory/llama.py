"""One decoder block in the style of Llama, as PyTorch and as ONNX.

RMS norm, grouped-query attention with rotary positions and a causal mask, RMS norm, gated
feed-forward; written as exporters see it, every norm and rotation from simple operators.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

WIDTH, HEADS, SHARED, DEPTH, INNER, LENGTH = 512, 8, 2, 64, 1376, 128
#: Raise it when the block changes, so that a saved file is made anew.
VERSION = 1


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width)."""
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-5))


class Block(nn.Module):
    """One decoder block."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(), RMSNorm()
        self.q = nn.Linear(WIDTH, HEADS * DEPTH, bias=False)
        self.k = nn.Linear(WIDTH, SHARED * DEPTH, bias=False)
        self.v = nn.Linear(WIDTH, SHARED * DEPTH, bias=False)
        self.o = nn.Linear(HEADS * DEPTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        angle = torch.outer(torch.arange(LENGTH), 1e4 ** (-torch.arange(0, DEPTH, 2) / DEPTH))
        table = torch.cat([angle, angle], -1)
        self.register_buffer("cos", table.cos())
        self.register_buffer("sin", table.sin())
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e9).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, length, width)."""
        y = self.before(x)
        batch = x.shape[0]
        q = self._rotate(self.q(y).view(batch, LENGTH, HEADS, DEPTH).transpose(1, 2))
        k = self._rotate(self.k(y).view(batch, LENGTH, SHARED, DEPTH).transpose(1, 2))
        v = self.v(y).view(batch, LENGTH, SHARED, DEPTH).transpose(1, 2)
        k, v = self._repeat(k, batch), self._repeat(v, batch)
        scores = torch.matmul(q, k.transpose(2, 3)) / DEPTH**0.5 + self.mask
        mixed = torch.matmul(torch.softmax(scores, -1), v)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, LENGTH, HEADS * DEPTH))
        y = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = DEPTH // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos + turned * self.sin

    @staticmethod
    def _repeat(x: torch.Tensor, batch: int) -> torch.Tensor:
        wide = x[:, :, None].expand(batch, SHARED, HEADS // SHARED, LENGTH, DEPTH)
        return wide.reshape(batch, HEADS, LENGTH, DEPTH)


def onnx_file(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The block as ONNX in ``folder``, made on first use, and its input."""
    path = folder / f"llama_block-v{VERSION}.onnx"
    feed = np.random.default_rng(0).standard_normal((1, LENGTH, WIDTH)).astype(np.float32)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Block().eval(),
                (torch.from_numpy(feed),),
                str(path.with_suffix(".tmp")),
                dynamo=False,
                input_names=["x"],
                output_names=["y"],
                opset_version=17,
            )
        path.with_suffix(".tmp").replace(path)
    return path, {"x": feed}
