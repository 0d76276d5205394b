"""Write ``.uif`` files: one pass over the data, atomically, the same bytes for the same content.

Weights of all targets share one member, and equal tensors are stored once. Nothing but what the
caller holds is kept in memory; a strided or big-endian tensor is copied alone, for as long as it
is written.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from blake3 import blake3

import uif_tvm
from uif_tvm.artifact import tensors, zipstore
from uif_tvm.artifact.digest import digest_of, hash_threads
from uif_tvm.artifact.files import OutFile, PathLike, replacing
from uif_tvm.artifact.manifest import (
    MANIFEST,
    WEIGHTS,
    Manifest,
    Member,
    Section,
    Versions,
    check_member_file,
    check_target_id,
    member_path,
)
from uif_tvm.artifact.reader import open_artifact
from uif_tvm.artifact.strictjson import dumps
from uif_tvm.errors import ArtifactError
from uif_tvm.signature import Signature
from uif_tvm.target.spec import Requirement

Array = np.ndarray[Any, Any]

_LIBRARY, _REPORT = "lib.so", "report.json"
_PIECE_BYTES = 1 << 20
_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class TargetPayload:
    """What one target contributes to a file.

    Args:
        target: its id.
        requirement: what the machine that runs the code must have.
        library: bytes of the native library.
        weights: name -> array of any layout, C order assumed by the code.
        report: the compile report, plain data.
        entry: function to call.
        order: names in ``weights`` in the order of the entry's trailing tuple, repeats allowed;
            default: the mapping's own order.
        versions: what compiled it; default: the file's.
        memory: planned memory, bytes by name.
        options: plain data.
        extras: further files, name -> bytes.
    """

    target: str
    requirement: Requirement
    library: bytes
    weights: Mapping[str, Array] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    entry: str = "main"
    order: tuple[str, ...] | None = None
    versions: Versions | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, bytes] = field(default_factory=dict)


def write_artifact(
    path: PathLike,
    *,
    model: str,
    signature: Signature,
    targets: Sequence[TargetPayload],
    versions: Versions | None = None,
) -> Manifest:
    """Write a ``.uif`` file with one section per target, in the order given.

    Args:
        path: replaced in one step when all bytes are on disk, else left as it was.
        model: the model's name.
        signature: the same for all targets.
        targets: at least one, ids distinct.
        versions: what writes the file; default: the installed versions.

    Returns:
        What :func:`open_artifact` will find.

    Raises:
        ArtifactError: the content cannot be stored; nothing was written.
        ArtifactIOError: the disk or folder does not take it; an older file is untouched.
    """
    versions = versions or installed_versions()
    pool = _WeightPool()
    files: dict[str, bytes] = {}
    sections = [_section(payload, versions, pool, files) for payload in targets]
    head, placed, weight_bytes = tensors.plan(pool.specs())
    sizes = {name: len(data) for name, data in files.items()}
    if placed:
        sizes[WEIGHTS] = weight_bytes

    # Digests have a fixed length, so the manifest's size is known before they are.
    draft = _draft(model, signature, versions, tuple(sections), sizes)
    blank = draft.to_bytes()
    with replacing(path) as out:
        archive = _Archive(out)
        archive.add(MANIFEST, len(blank), [blank])
        digests = {name: archive.add(name, len(data), [data]) for name, data in files.items()}
        if placed:
            digests[WEIGHTS] = archive.add(WEIGHTS, weight_bytes, pool.stream(head, placed))
        members = {name: Member(size, digests[name]) for name, size in sizes.items()}
        written = replace(draft, members=members)
        archive.finish(written.to_bytes())
    return written


def add_target(
    path: PathLike,
    payload: TargetPayload,
    *,
    signature: Signature,
    overwrite: bool = False,
) -> Manifest:
    """Add one target's section to an existing file, which is checked and then replaced.

    Args:
        signature: of the model that ``payload`` was compiled from; must be the file's.
        overwrite: allow that a section of the same target goes away.

    Raises:
        ArtifactError: the file is damaged, holds another model, or holds the target already.
        ArtifactIOError: see :func:`write_artifact`.
    """
    with open_artifact(path) as artifact:
        old = artifact.manifest
        if signature != old.signature:
            _refuse(
                "TARGET",
                f"the file's model {old.model!r} has another signature than the one to add",
                "export both targets from the same model and dummy input",
            )
        taken = [section.target for section in old.sections]
        if payload.target in taken and not overwrite:
            _refuse(
                "TARGET",
                f"the file holds code for target {payload.target!r} already",
                "allow its replacement, or write to another file",
            )
        kept = []
        for section in old.sections:
            if section.target == payload.target:
                continue
            artifact.verify(section)
            kept.append(
                TargetPayload(
                    target=section.target,
                    requirement=section.requirement,
                    library=artifact.library(section),
                    weights={name: artifact.weight(name) for name in section.weights},
                    report=artifact.report(section),
                    entry=section.entry,
                    order=section.weights,
                    versions=section.versions,
                    memory=section.memory,
                    options=section.options,
                    extras={name: artifact.extra(section, name) for name in section.extras},
                )
            )
        return write_artifact(path, model=old.model, signature=signature, targets=[*kept, payload])


def installed_versions(compat: str = "") -> Versions:
    """Versions of what is installed here, from package metadata; "" for what is absent."""
    from importlib.metadata import PackageNotFoundError, version

    def found(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    return Versions(uif_tvm.__version__, found("apache-tvm"), found("apache-tvm-ffi"), compat)


class _Archive:
    """Members written one after another, headers completed once the content is known."""

    def __init__(self, out: OutFile) -> None:
        self._out = out
        self._entries: list[zipstore.Entry] = []

    def add(self, name: str, size: int, chunks: Iterable[bytes | memoryview]) -> str:
        """Append one member and return its digest; ``chunks`` make up ``size`` bytes."""
        start = self._entries[-1].end if self._entries else 0
        entry = zipstore.Entry(name, size, 0, start)
        self._out.write(zipstore.local_header(entry))
        hasher = blake3(max_threads=hash_threads(size))
        crc = 0
        for chunk in chunks:
            # In pieces that stay in the cache for the second and third look at them.
            for at in range(0, len(chunk), _PIECE_BYTES):
                piece = memoryview(chunk)[at : at + _PIECE_BYTES]
                self._out.write(piece)
                crc = zlib.crc32(piece, crc)
                hasher.update(piece)
        entry = zipstore.Entry(name, size, crc, start)
        self._out.rewrite(start, zipstore.local_header(entry))
        self._entries.append(entry)
        return str(hasher.hexdigest())

    def finish(self, manifest: bytes) -> None:
        """Put the final manifest into the first member's place and close the archive."""
        draft = self._entries[0]
        entry = zipstore.Entry(draft.name, len(manifest), zlib.crc32(manifest), 0)
        if entry.end != draft.end:
            raise AssertionError("the manifest's length depends on its digests")
        self._out.rewrite(0, zipstore.local_header(entry) + manifest)
        self._entries[0] = entry
        rows = b"".join(map(zipstore.central_header, self._entries))
        end = self._entries[-1].end
        closing = zipstore.end_records(len(self._entries), end, len(rows), digest_of(manifest))
        self._out.write(rows + closing)


class _WeightPool:
    """The tensors of all targets under distinct names, equal ones only once."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], str], str] = {}

    def store(self, name: str, array: Array, target: str) -> str:
        """The name under which ``array`` is stored, ``name`` where that is free."""
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            _refuse("WEIGHTS", f"weight {name!r:.200} is no NumPy array with a text name", "")
        dtype = tensors.storable(array.dtype)
        if dtype is None or array.ndim > tensors.MAX_RANK:
            _refuse(
                "WEIGHTS",
                f"weight {name!r:.200} of target {target!r} ({array.dtype}, rank {array.ndim}) "
                "has no form in safetensors",
                "store it as another dtype, packed into uint8 for elements below 8 bits",
            )
        key = (str(dtype), array.shape, digest_of(_raw(array)))
        if key not in self._by_content:
            free, n = name, 1
            while free in self._arrays or tensors.reserved(free):
                n += 1
                free = f"{target}:{name}" if n == 2 else f"{target}:{name}#{n}"
            self._arrays[free] = array
            self._by_content[key] = free
        return self._by_content[key]

    def specs(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """Name, stored dtype and shape of each tensor, in file order."""
        return [
            (name, tensors.storable(array.dtype) or array.dtype, array.shape)
            for name, array in self._arrays.items()
        ]

    def stream(self, head: bytes, placed: Sequence[tensors.Tensor]) -> Iterable[bytes | memoryview]:
        """The weights member, piece by piece."""
        yield head
        at = len(head)
        for tensor in placed:
            yield bytes(tensor.offset - at)
            yield _raw(self._arrays[tensor.name])
            at = tensor.offset + tensor.nbytes


def _draft(
    model: str,
    signature: Signature,
    versions: Versions,
    sections: tuple[Section, ...],
    sizes: Mapping[str, int],
) -> Manifest:
    """The manifest with blank digests, as a reader will see it: written and parsed again."""
    members = {name: Member(size, _NO_DIGEST) for name, size in sizes.items()}
    try:
        return Manifest.from_bytes(
            Manifest(model, signature, versions, sections, members).to_bytes()
        )
    except ArtifactError as error:
        _refuse("CONTENT", f"this cannot be stored: {error.message}", "correct the payload")


def _raw(array: Array) -> memoryview:
    """The array's bytes in C order, little-endian; a view wherever that is how they lie."""
    little = tensors.storable(array.dtype) or array.dtype
    flat = np.ascontiguousarray(array, dtype=little).reshape(-1)
    return flat.view(np.uint8).data


def _section(
    payload: TargetPayload, versions: Versions, pool: _WeightPool, files: dict[str, bytes]
) -> Section:
    """The manifest's section; the payload's files go to ``files`` and its weights to ``pool``."""
    target = payload.target
    if not check_target_id(target):
        _refuse("TARGET", f"{target!r:.200} is no target id", "use lower case, digits and hyphens")

    def keep(name: str, data: bytes) -> str:
        path = member_path(target, name)
        if not check_member_file(name) or path in files or not isinstance(data, bytes):
            _refuse(
                "MEMBER",
                f"{name!r:.200} of target {target!r} cannot be a member's name (or its content "
                "is not bytes)",
                "use lower case, digits, dots and hyphens, and each name once",
            )
        files[path] = data
        return path

    stored = {name: pool.store(name, array, target) for name, array in payload.weights.items()}
    order = tuple(stored) if payload.order is None else payload.order
    if unknown := [name for name in order if name not in stored]:
        _refuse("WEIGHTS", f"order names {unknown[0]!r:.200}, which is no weight", "")
    return Section(
        target=target,
        requirement=payload.requirement,
        library=keep(_LIBRARY, payload.library),
        report=keep(_REPORT, dumps(dict(payload.report))),
        entry=payload.entry,
        weights=tuple(stored[name] for name in order),
        versions=payload.versions or versions,
        memory=payload.memory,
        options=payload.options,
        extras={name: keep(name, data) for name, data in payload.extras.items()},
    )


def _refuse(code: str, reason: str, hint: str) -> NoReturn:
    raise ArtifactError(reason, code=f"UIF-ARTIFACT-{code}", stage="compile", hint=hint or None)
