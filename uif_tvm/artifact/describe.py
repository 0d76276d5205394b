"""A ``.uif`` file as plain data, for people and scripts; the host need not fit."""

from __future__ import annotations

from typing import Any

from uif_tvm.artifact.files import PathLike
from uif_tvm.artifact.manifest import SCHEMA, WEIGHTS, Section, requirement_json
from uif_tvm.artifact.reader import Artifact, HostCheck, open_artifact


def describe(
    path: PathLike, *, verify: bool = True, missing: HostCheck | None = None
) -> dict[str, Any]:
    """What ``uif inspect`` shows of a file.

    Args:
        verify: check every member's digest too; else the layout and the manifest only.
        missing: what a host lacks; default: this machine.

    Raises:
        ArtifactError, ArtifactIOError: as :func:`open_artifact`.
    """
    if missing is None:
        from uif_tvm.runtime.host import host

        missing = host().missing
    with open_artifact(path) as artifact:
        manifest = artifact.manifest
        if verify:
            for section in manifest.sections:
                artifact.verify(section)
        return {
            "path": str(path),
            "bytes": artifact.nbytes,
            "digest": artifact.digest,
            "verified": verify,
            "schema": SCHEMA,
            "model": manifest.model,
            "versions": vars(manifest.versions),
            "signature": manifest.signature.to_json(),
            "weight_bytes": manifest.members[WEIGHTS].size if WEIGHTS in manifest.members else 0,
            "targets": [_row(artifact, section, missing) for section in manifest.sections],
        }


def _row(artifact: Artifact, section: Section, missing: HostCheck) -> dict[str, Any]:
    lacks = missing(section.requirement)
    return {
        "id": section.target,
        "runs_here": not lacks,
        "missing": lacks,
        "requirement": requirement_json(section.requirement),
        "versions": vars(section.versions),
        "entry": section.entry,
        "weights": len(section.weights),
        "memory": dict(section.memory),
        "options": dict(section.options),
        "members": {name: artifact.manifest.members[name].size for name in section.members},
    }
