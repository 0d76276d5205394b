"""From a PyTorch module to a compiled file, and the proof that it computes the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import uif


class SmallNet(nn.Module):
    """Two convolutions, a residual connection and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images float32[1, 3, 32, 32] to class scores float32[1, 10]."""
        x = self.stem(x)
        x = torch.relu(x + self.block(x))
        return self.head(x.mean(dim=(2, 3)))


def main() -> None:
    """Export, run, compare."""
    torch.manual_seed(0)
    module = SmallNet().eval()
    x = torch.randn(1, 3, 32, 32)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "small.uif"))
        uif.export(module, x, output_path=path, optimize_level=3)

        engine = uif.load(path)
        print("inputs: ", *engine.inputs)
        print("outputs:", *engine.outputs)
        (ours,) = engine.run(x)  # torch tensors, NumPy arrays, anything with __dlpack__

    with torch.no_grad():
        reference = module(x).numpy()
    print(f"largest difference from PyTorch: {np.abs(ours - reference).max():.1e}")
    np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
