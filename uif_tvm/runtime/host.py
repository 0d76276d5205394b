"""What this machine is: architecture, CPU feature flags, cores, installed versions.

Everything comes from the operating system and package metadata; nothing heavy is imported. The
features of other systems than Linux are unknown rather than guessed: code that needs any is
refused there, with the reason.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uif_tvm.target.spec import Requirement

_CPUINFO = Path("/proc/cpuinfo")
# /proc/cpuinfo names the same fact differently on each architecture.
_FEATURE_KEYS = ("flags", "features")
_MODEL_KEYS = ("model name", "hardware", "uarch", "cpu model")


@dataclass(frozen=True)
class Host:
    """The facts that decide whether compiled code may run here.

    Args:
        arch: as ``platform.machine()`` prints it.
        features: CPU feature flags by the operating system's names.
        cores: logical cores this process may use (its affinity, not the machine's total).
        model: the CPU's name, or the architecture where the system does not tell.
        features_unknown: why ``features`` is empty where it could not be read, else "".
        firmware: component -> version, for boards that report one.
    """

    arch: str
    features: frozenset[str]
    cores: int
    model: str
    features_unknown: str = ""
    firmware: Mapping[str, str] = field(default_factory=dict)

    def missing(self, requirement: Requirement) -> list[str]:
        """What ``requirement`` asks for and this host lacks, one sentence each; empty: it fits."""
        if requirement.arch != self.arch:
            # Feature names of another architecture mean nothing here.
            return [f"architecture {requirement.arch} (this host is {self.arch})"]
        lacks = []
        absent = [flag for flag in requirement.features if flag not in self.features]
        if absent and self.features_unknown:
            lacks.append(f"CPU features {', '.join(absent)}: {self.features_unknown}")
        else:
            lacks += [f"CPU feature {flag}" for flag in absent]
        for package, wanted in requirement.runtime.items():
            lacks += _version_fault("package", package, wanted, installed_version(package))
        for component, wanted in requirement.firmware.items():
            found = self.firmware.get(component)
            lacks += _version_fault("firmware", component, wanted, found)
        return lacks


@cache
def host() -> Host:
    """This machine; read once per process."""
    info = _cpuinfo()
    features = _features(info)
    system = platform.system() or "this system"
    return Host(
        arch=platform.machine(),
        features=features,
        cores=available_cores(),
        model=_first(info, _MODEL_KEYS) or platform.processor() or platform.machine(),
        features_unknown="" if features else f"{system} lists no CPU features in {_CPUINFO}",
    )


def available_cores() -> int:
    """Logical cores this process may be scheduled on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, without importing it; ``None`` when it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpuinfo() -> dict[str, str]:
    """First processor block of /proc/cpuinfo, keys in lower case; empty where there is none."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    return fields


def _features(info: Mapping[str, str]) -> frozenset[str]:
    flags = _first(info, _FEATURE_KEYS)
    # Where the kernel prints an ISA string instead, its extensions are joined by underscores.
    return frozenset(flags.split() if flags else info.get("isa", "").split("_")) - {""}


def _first(info: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((info[key] for key in keys if key in info), "")


def _version_fault(kind: str, name: str, wanted: str, found: str | None) -> list[str]:
    """Why ``found`` does not meet the PEP 440 specifier ``wanted``: no entry or one."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    if found is None:
        return [f"{kind} {name}{wanted} (none is installed)"]
    try:
        fits = SpecifierSet(wanted, prereleases=True).contains(found)
    except (InvalidSpecifier, InvalidVersion) as error:
        return [f"{kind} {name}{wanted} (found {found}; cannot compare: {error})"]
    return [] if fits else [f"{kind} {name}{wanted} (found {found})"]
