"""A sample model, and a forge for files that are well-formed up to one fault."""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from uif_tvm.artifact import TargetPayload, Versions, open_artifact, write_artifact, zipstore
from uif_tvm.artifact.digest import digest_of
from uif_tvm.signature import Signature, TensorSpec
from uif_tvm.target.spec import Requirement

SIGNATURE = Signature(
    (TensorSpec("x", ("batch", 3), "float32"), TensorSpec("", (), "int64")),
    (TensorSpec("y", (2, 3), "bfloat16"),),
)
VERSIONS = Versions("0.1.0", "0.27.0", "0.1.14", "7")
WEIGHTS = {
    "dense/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "häß 🙂": np.arange(5, dtype=np.int64) - 2,
    "empty": np.zeros((0, 7), np.float16),
    "scalar": np.array(2.5, ml_dtypes.bfloat16),
    "mask": np.array([True, False, True]),
}


def make_payload(target: str = "here", **changes: Any) -> TargetPayload:
    """A payload that this host can run (as far as its requirement goes)."""
    fields: dict[str, Any] = {
        "requirement": Requirement(platform.machine()),
        "library": b"\x7fELF " + target.encode() * 20,
        "weights": WEIGHTS,
        "report": {"level": 2, "kernels": [{"kernel": "dense", "flops": 1.5}]},
        "memory": {"arena": 4096},
        "options": {"optimize_level": 2, "nested": {"list": [1, None, "a"]}},
        "extras": {"plan.json": b"{}"},
    }
    return TargetPayload(target, **(fields | changes))


def write_sample(path: Path, *payloads: TargetPayload, **changes: Any) -> Path:
    """Write ``payloads`` (default: one) as the sample model."""
    fields = {"model": "sample ☃", "signature": SIGNATURE, "versions": VERSIONS} | changes
    write_artifact(path, targets=payloads or (make_payload(),), **fields)
    return path


def forge(members: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of any members, laid out and sealed as the writer does it."""
    out, entries = bytearray(), []
    for name, data in members:
        entry = zipstore.Entry(name, len(data), zlib.crc32(data), len(out))
        out += zipstore.local_header(entry) + data
        entries.append((entry, data))
    rows = b"".join(zipstore.central_header(entry) for entry, _ in entries)
    digest = digest_of(entries[0][1]) if entries else "0" * 64
    return bytes(out) + rows + zipstore.end_records(len(entries), len(out), len(rows), digest)


def split(data: bytes) -> dict[str, bytes]:
    """The members of a sound archive."""
    entries, _ = zipstore.read_directory(memoryview(data))
    return {entry.name: data[entry.data : entry.end] for entry in entries}


def offset_of(data: bytes, member: str) -> int:
    """Where a member's content starts in a sound archive."""
    entries, _ = zipstore.read_directory(memoryview(data))
    return next(entry.data for entry in entries if entry.name == member)


def reforge(data: bytes, edit: Callable[[dict[str, Any], dict[str, bytes]], Any]) -> bytes:
    """``data`` with its manifest (parsed) and members edited; sizes and digests made to fit.

    ``edit`` changes both in place, or returns the manifest's new bytes.
    """
    members = split(data)
    document = json.loads(members.pop("manifest.json"))
    blob = edit(document, members)
    if not isinstance(blob, bytes):
        if isinstance(document.get("members"), dict):
            for name, row in document["members"].items():
                if name in members and isinstance(row, dict) and "blake3" in row:
                    row.update(size=len(members[name]), blake3=digest_of(members[name]))
        blob = json.dumps(document).encode()
    return forge([("manifest.json", blob), *members.items()])


def read_all(path: Path) -> dict[str, dict[str, Any]]:
    """Everything an engine would take from a file, for every target, verified."""
    with open_artifact(path) as artifact:
        found = {}
        for section in artifact.manifest.sections:
            artifact.verify(section)
            found[section.target] = {
                "section": section,
                "weights": [
                    (a.dtype, a.shape, a.tobytes()) for a in map(artifact.weight, section.weights)
                ],
                "library": artifact.library(section),
                "report": artifact.report(section),
                "extras": {name: artifact.extra(section, name) for name in section.extras},
            }
        return found | {"model": {"": artifact.manifest.model}}
