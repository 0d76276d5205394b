"""The ``.uif`` file: what is compiled once, carried anywhere, and checked before it runs.

::

    write_artifact("m.uif", model="m", signature=signature, targets=[payload])
    with open_artifact("m.uif") as artifact:
        section = artifact.select()
        weights = [artifact.weight(name) for name in section.weights]
        with materialise_library(artifact.library(section)) as path:
            ...  # load it

Layout, schema and the reasons for them: see ``zipstore``, ``manifest`` and ``tensors``.
"""

from uif_tvm.artifact.describe import describe
from uif_tvm.artifact.library import materialise_library
from uif_tvm.artifact.manifest import SCHEMA, Manifest, Member, Section, Versions
from uif_tvm.artifact.reader import Artifact, open_artifact
from uif_tvm.artifact.writer import (
    TargetPayload,
    add_target,
    installed_versions,
    write_artifact,
)

__all__ = [
    "SCHEMA",
    "Artifact",
    "Manifest",
    "Member",
    "Section",
    "TargetPayload",
    "Versions",
    "add_target",
    "describe",
    "installed_versions",
    "materialise_library",
    "open_artifact",
    "write_artifact",
]
