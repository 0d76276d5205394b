"""The check of architectures on a registry of its own, and one model of the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.architectures.check import HERE, _fault, check_one, isolated, load_registry, summarise

REGISTRY = """
import os, torch

class Entry:
    def __init__(self, forward):
        self.forward = forward
    def inputs(self, seed=0):
        return (torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)),)
    def variants(self):
        return [("default", {})]
    def build(self):
        module = torch.nn.Linear(3, 3)
        module.forward = self.forward
        return module.eval(), self.inputs()

REGISTRY = {
    "right": Entry(lambda x: torch.relu(x) + 1),
    "random": Entry(lambda x: x + torch.rand_like(x)),
    "dies": Entry(lambda x: os._exit(3)),
}
"""


def test_each_architecture_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "archs.py"
    path.write_text(REGISTRY)
    rows = [isolated(path, name, [0], 1) for name in ("right", "random", "dies")]
    assert [row["status"] for row in rows] == ["right", "unsupported", "crash"]
    summary = summarise(rows)
    assert (summary["right"], summary["total"]) == (1, 3)


def test_unknown_names_are_a_usage_error() -> None:
    command = [sys.executable, "-m", "tests.architectures.check", "no_such_model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no_such_model" in done.stderr


def test_departures_are_told() -> None:
    reference = np.ones((2, 2), np.float32)
    assert _fault([reference], [reference]) == ""
    other = np.array([[2, 1], [1, 1]], np.float32)
    assert "1 of 4 values differ, by 1" in _fault([other], [reference])
    assert _fault([reference[0]], [reference])


def test_a_decoder_of_the_registry_is_right() -> None:
    arch = load_registry(HERE / "hf_archs.py")["gpt2"]
    (row,) = (row for row in check_one(arch, [3]) if row["variant"] == "sdpa")
    assert row["status"] == "right", row["message"]
