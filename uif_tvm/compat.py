"""The version guard: which versions of the packages we stand on work together.

The table below is data. ``check`` runs at ``import uif_tvm``: it reads installed versions from
package metadata, so neither TVM nor torch nor onnx is imported, and refuses combinations that are
known to crash or that lack names we call. ``uif env`` prints the same table with its verdicts.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from uif_tvm.errors import EnvironmentFault

#: ``off`` turns refusal into a warning, for people who try a combination we have not.
GUARD_VARIABLE = "UIF_VERSION_GUARD"


@dataclass(frozen=True)
class Package:
    """A package we stand on.

    Args:
        name: distribution name.
        need: version specifier outside of which it is refused.
        tested: the version that the test suite runs with.
        extra: the extra of ``uif`` that installs it; ``None`` when always required.
        why: what it is for.
    """

    name: str
    need: str
    tested: str
    extra: str | None
    why: str

    @property
    def requirement(self) -> str:
        """What to hand to pip."""
        return f"{self.name}{self.need}"


@dataclass(frozen=True)
class BadPair:
    """``package`` at ``versions`` does not work beside ``other`` at ``other_versions``."""

    package: str
    versions: str
    other: str
    other_versions: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """The verdict on one package.

    ``status`` is ``ok`` (the tested version), ``untested`` (within the needed range),
    ``broken`` (known bad pair), ``refused`` (outside the needed range) or ``missing``.
    """

    package: str
    installed: str | None
    status: str
    reason: str
    remedy: str | None = None
    extra: str | None = None

    @property
    def fatal(self) -> bool:
        """True when nothing can run with it."""
        return self.extra is None and self.status in ("broken", "refused")


PACKAGES: tuple[Package, ...] = (
    Package("apache-tvm", "==0.27.0.post1", "0.27.0.post1", None, "graph IR, code generators"),
    Package("apache-tvm-ffi", ">=0.1.14.post0,<0.1.15", "0.1.14.post1", None, "TVM's run-time ABI"),
    Package("numpy", ">=1.26", "2.4.6", None, "arrays in and out"),
    Package("onnx", ">=1.16", "1.23.2", "onnx", "exporting .onnx models"),
    Package("torch", ">=2.6", "2.13.0", "torch", "exporting PyTorch modules and .pt2 files"),
)

BAD_PAIRS: tuple[BadPair, ...] = (
    BadPair(
        "apache-tvm-ffi",
        "==0.1.15.*",
        "apache-tvm",
        "==0.27.*",
        "the process dies with a segmentation fault when an IRModule that holds a PrimFunc is "
        "serialised, which every tuning database and kernel cache does",
    ),
)


def installed_versions() -> dict[str, str | None]:
    """Distribution name -> version as its metadata says, ``None`` where it is not installed."""
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package.name] = metadata.version(package.name)
        except metadata.PackageNotFoundError:
            versions[package.name] = None
    return versions


def evaluate(versions: Mapping[str, str | None]) -> list[Finding]:
    """One finding per package of the table, in its order."""
    return [_judge(package, versions) for package in PACKAGES]


def check() -> None:
    """Refuse combinations that cannot work.

    Raises:
        EnvironmentFault: a required package is broken or out of range; the message has the
            versions found and the pip command that mends them.
    """
    fatal = [finding for finding in evaluate(installed_versions()) if finding.fatal]
    if not fatal:
        return
    fault = _fault(fatal)
    if os.environ.get(GUARD_VARIABLE, "").lower() != "off":
        raise fault
    warnings.warn(f"version guard is off: {fault.message}", RuntimeWarning, stacklevel=3)


def require(*names: str) -> None:
    """Make sure that optional packages are there and new enough, before they are imported.

    Raises:
        EnvironmentFault: one is missing or unusable; the message has the pip command.
    """
    wanted = [finding for finding in evaluate(installed_versions()) if finding.package in names]
    bad = [finding for finding in wanted if finding.status not in ("ok", "untested")]
    if bad:
        raise _fault(bad)


def pip_command(*requirements: str) -> str:
    """The command that installs ``requirements``, quoted for a shell."""
    return "pip install " + " ".join(f'"{requirement}"' for requirement in requirements)


def _fault(findings: list[Finding]) -> EnvironmentFault:
    packages = {package.name: package for package in PACKAGES}
    what = "; ".join(
        f"{finding.package} is not installed"
        if finding.installed is None
        else f"{finding.package} {finding.installed} cannot be used: {finding.reason}"
        for finding in findings
    )
    command = pip_command(*(packages[finding.package].requirement for finding in findings))
    return EnvironmentFault(what, code="UIF-ENV-VERSIONS", hint=command)


def _judge(package: Package, versions: Mapping[str, str | None]) -> Finding:
    found = versions.get(package.name)
    fix = pip_command(package.requirement)

    def finding(status: str, reason: str, remedy: str | None = None) -> Finding:
        return Finding(package.name, found, status, reason, remedy, package.extra)

    if found is None:
        return finding("missing", f"needed for {package.why}", fix)
    for pair in BAD_PAIRS:
        other = versions.get(pair.other)
        if (
            pair.package == package.name
            and other is not None
            and matches(found, pair.versions)
            and matches(other, pair.other_versions)
        ):
            return finding("broken", f"with {pair.other} {other}, {pair.reason}", fix)
    if not matches(found, package.need):
        return finding("refused", f"version {package.need} is needed", fix)
    if matches(found, f"=={package.tested}"):
        return finding("ok", "the version the test suite runs with")
    return finding("untested", f"in range; the test suite runs with {package.tested}")


def matches(version: str, specifier: str) -> bool:
    """Does ``version`` satisfy ``specifier``, e.g. ``">=0.1.14.post0,<0.1.15"``?

    A version that cannot be read satisfies nothing.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False
