"""A package with a target of its own, found in worker processes as a user's would be."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''
from dataclasses import replace

from uif_tvm.targets.cpu.target import create as host
from uif_tvm.target.spec import Refusal


def create():
    """This host, but without Softmax."""
    base = host()

    def capability(op, attrs, dtypes):
        if op.rpartition(".")[2] == "softmax":
            return Refusal("no-exp", "the chip has no exponential unit")
        return base.capability(op, attrs, dtypes)

    return replace(base, id="picky", capability=capability)
'''


def install(folder: Path) -> Path:
    """Write the package; its folder goes on ``PYTHONPATH``."""
    folder.mkdir(parents=True)
    (folder / "picky_target.py").write_text(_MODULE)
    about = folder / "picky_target-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: picky-target\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[uif.targets]\npicky = picky_target:create\n")
    return folder
