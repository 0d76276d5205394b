"""What did the compiler do? Where each op runs, how each kernel was made, and why."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import uif


def main() -> None:
    """Export a small network at two levels and compare the reports."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
    ).eval()
    x = torch.randn(1, 3, 32, 32)
    for level in (0, 3):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "model.uif"))
            uif.export(module, x, output_path=path, optimize_level=level)
            engine = uif.load(path)
            report = engine.report
        print(f"level {level}: {len(report['kernels'])} kernels")
        for kernel in report["kernels"]:
            print(f"  {kernel['kernel']}: {kernel['kind']}, rule {kernel['rule']}")
        print("  placement:", *engine.placement())
        done = Counter(d["pass_name"] for d in report["decisions"] if d["fired"])
        for name, count in done.items():
            print(f"  pass {name}: {count} rewrites")
        for decision in [d for d in report["decisions"] if not d["fired"]][:5]:
            print(f"  {decision['pass_name']} declined {decision['subject']}: {decision['reason']}")


if __name__ == "__main__":
    main()
