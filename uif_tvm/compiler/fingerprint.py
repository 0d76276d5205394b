"""What compiled code depends on besides the kernel: our own sources and the tools' versions.

Hand-kept version numbers are forgotten; a digest of the sources that schedule and lower kernels
is not.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from uif_tvm.target.spec import TargetSpec

_OURS = ("uif_tvm.compiler", "uif_tvm.kernels")
_TOOLS = ("apache-tvm", "apache-tvm-ffi")


def toolchain(target: TargetSpec) -> str:
    """Digest of everything that turns a kernel of ``target`` into object code."""
    rules = {type(rule).__module__.rpartition(".")[0] for rule in target.schedules}
    return _digest((*_OURS, *sorted(rules)))


@cache
def _digest(packages: tuple[str, ...]) -> str:
    digest = blake3()
    for tool in _TOOLS:
        digest.update(f"{tool} {metadata.version(tool)}\n".encode())
    for package in packages:
        for path in _sources(package):
            digest.update(f"{package} {path.name}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources(package: str) -> list[Path]:
    """Python files of a package; those of a module outside any package: its own file."""
    where = importlib.import_module(package).__file__ if package else None
    return sorted(Path(where).parent.rglob("*.py")) if where else []
