"""The manifest of a ``.uif`` file: what is in it, who may run it, and the digest of each member.

Schema rule: the schema is one integer. A reader takes its own schema and older ones; it refuses
unknown fields, so that anything a newer writer adds comes with a higher number. Of a newer schema
only ``format``, ``schema`` and ``versions.uif`` are read, to say which version to install; those
three keep their place and meaning for ever.

Schema 2 adds to the signature: ``ranges`` of tensors (name of a dimension -> [least, most or
null]), sequences (``"kind": "sequence"``, ``items``), optionals (``"kind": "optional"``, ``value``
or null) and sequences of any length (``"kind": "list"``, ``dtype``; among outputs).

Schema 3 adds the memory plan: an extra ``memory.json`` of a section, whose code takes the memory
that it works in (see ``memory_plan``). Sections without one allocate by themselves, as before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from uif_tvm.artifact.strictjson import MAX_INT, REGET, Fields, dumps, loads
from uif_tvm.errors import ArtifactError
from uif_tvm.signature import (
    DimRange,
    ListSpec,
    OptionalSpec,
    SequenceSpec,
    Signature,
    Spec,
    TensorSpec,
    leaves,
)
from uif_tvm.target.spec import Requirement

SCHEMA = 3
FORMAT = "uif"
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
MAX_MANIFEST_BYTES = 16 << 20

_CODE = "UIF-ARTIFACT-MANIFEST"
_TARGET_ID = re.compile(r"[a-z0-9](?:[a-z0-9.+-]{0,62}[a-z0-9])?")
_MEMBER_FILE = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,63}")


@dataclass(frozen=True)
class Versions:
    """What a file or a target's section was made with.

    Args:
        uif, tvm, tvm_ffi: versions of the packages.
        compat: version of the table of known-good combinations, "" where there was none.
    """

    uif: str
    tvm: str
    tvm_ffi: str
    compat: str = ""


@dataclass(frozen=True)
class Member:
    """One member of the archive: bytes and BLAKE3 digest (64 hex digits)."""

    size: int
    blake3: str


@dataclass(frozen=True)
class Section:
    """What the file holds for one target.

    Args:
        target: id of the target the code was made for.
        requirement: what the machine that runs it must have.
        library: member path of the native library.
        report: member path of the compile report (JSON).
        entry: name of the function to call.
        weights: names in the weights member, in the order of the entry's trailing tuple; a
            name may occur more than once, since equal tensors are stored once.
        versions: what the section was compiled with.
        memory: planned memory, bytes by name.
        options: how it was compiled (level and the like), plain data.
        extras: further members of this target, file name -> member path.
    """

    target: str
    requirement: Requirement
    library: str
    report: str
    entry: str
    weights: tuple[str, ...]
    versions: Versions
    memory: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> tuple[str, ...]:
        """Paths of the members that belong to this section alone."""
        return (self.library, self.report, *self.extras.values())


@dataclass(frozen=True)
class Manifest:
    """Everything about a ``.uif`` file but the data.

    Args:
        model: the model's name, any text.
        signature: its inputs and outputs, the same for all targets.
        versions: what wrote the file.
        sections: one per target, ids distinct, at least one.
        members: every member but the manifest itself, by path.
    """

    model: str
    signature: Signature
    versions: Versions
    sections: tuple[Section, ...]
    members: Mapping[str, Member]

    def __post_init__(self) -> None:
        def refuse(reason: str) -> NoReturn:
            raise ArtifactError(f"manifest: {reason}", code=_CODE, hint=REGET)

        if not self.sections:
            refuse("it has no section for any target")
        targets = [section.target for section in self.sections]
        if len(set(targets)) != len(targets):
            refuse(f"two sections have the same target id: {sorted(targets)}")
        names = [spec.name for spec in self.signature.inputs]
        if len(set(names)) != len(names):
            refuse("two inputs of the signature have the same name")
        used = {WEIGHTS} if WEIGHTS in self.members else set()
        for section in self.sections:
            _check_paths(section, refuse)
            used.update(section.members)
            if section.weights and WEIGHTS not in self.members:
                refuse(f"section {section.target!r} has weights, but there is no {WEIGHTS}")
        if odd := used ^ set(self.members):
            refuse(f"members and sections disagree about {sorted(odd)[0]!r}")

    def section(self, target: str) -> Section:
        """The section of ``target``.

        Raises:
            ArtifactError: the file holds nothing for it.
        """
        for section in self.sections:
            if section.target == target:
                return section
        held = ", ".join(section.target for section in self.sections)
        raise ArtifactError(
            f"this file holds no code for target {target!r}, only for: {held}",
            code="UIF-ARTIFACT-TARGET",
            target=target if check_target_id(target) else None,
            hint=f"choose one of {held}, or export the model for {target!r}",
        )

    def to_bytes(self) -> bytes:
        """The member ``manifest.json``; equal manifests give equal bytes."""
        return dumps(
            {
                "format": FORMAT,
                "schema": SCHEMA,
                "versions": vars(self.versions),
                "model": self.model,
                "signature": self.signature.to_json(),
                "targets": [_section_json(section) for section in self.sections],
                "members": {name: vars(member) for name, member in self.members.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Inverse of :meth:`to_bytes`, for data from anywhere.

        Raises:
            ArtifactError: with code ``UIF-ARTIFACT-SCHEMA`` for a newer schema, else
                ``UIF-ARTIFACT-MANIFEST``.
        """
        document = loads(data, "manifest", _CODE, MAX_MANIFEST_BYTES)
        with _prelude(document) as top:
            return cls(
                versions=top.object("versions", _versions),
                model=top.text("model", empty=True),
                signature=top.object("signature", _signature),
                sections=top.objects("targets", _section),
                members=top.mapping("members", _member),
            )


def check_target_id(target: str) -> bool:
    """True when ``target`` may name a section (and so a folder in the archive)."""
    return isinstance(target, str) and _TARGET_ID.fullmatch(target) is not None


def check_member_file(name: str) -> bool:
    """True when ``name`` may name a file in a target's folder."""
    return isinstance(name, str) and _MEMBER_FILE.fullmatch(name) is not None


def member_path(target: str, file: str) -> str:
    """Where a target's file stands in the archive."""
    return f"targets/{target}/{file}"


def _check_paths(section: Section, refuse: Any) -> None:
    """A section may point only at members in its own folder, each by one role."""
    if not check_target_id(section.target):
        refuse(f"{section.target!r:.80} is no target id")
    if len(set(section.members)) != len(section.members):
        refuse(f"section {section.target!r} uses one member for two things")
    folder = member_path(section.target, "")
    for path in section.members:
        if not path.startswith(folder) or not check_member_file(path[len(folder) :]):
            refuse(f"section {section.target!r} may not use member {path!r:.80}")
    for file, path in section.extras.items():
        if path != folder + file:
            refuse(f"section {section.target!r}: extra {file!r:.80} cannot be {path!r:.80}")


def requirement_json(need: Requirement) -> dict[str, Any]:
    """A requirement as plain data."""
    return {
        "arch": need.arch,
        "features": list(need.features),
        "runtime": dict(need.runtime),
        "firmware": dict(need.firmware),
    }


def _section_json(section: Section) -> dict[str, Any]:
    return {
        "id": section.target,
        "requirement": requirement_json(section.requirement),
        "library": section.library,
        "report": section.report,
        "entry": section.entry,
        "weights": list(section.weights),
        "versions": vars(section.versions),
        "memory": dict(section.memory),
        "options": dict(section.options),
        "extras": dict(section.extras),
    }


def _prelude(document: Any) -> Fields:
    """Check ``format`` and ``schema`` before anything whose meaning may have changed."""
    top = Fields(document, "manifest", _CODE)
    if top.take("format") != FORMAT:
        top.refuse(f"field 'format' is not {FORMAT!r}")
    schema = top.integer("schema")
    if schema == 0:
        top.refuse("there is no schema 0")
    if schema > SCHEMA:
        versions = document.get("versions")
        writer = versions.get("uif") if isinstance(versions, dict) else None
        known = isinstance(writer, str) and _VERSION.fullmatch(writer) is not None
        newer = f"'uif>={writer}'" if known else "--upgrade uif"
        raise ArtifactError(
            f"the file has schema {schema}, written by uif {writer if known else '(unknown)'}; "
            f"this version reads schemas up to {SCHEMA}",
            code="UIF-ARTIFACT-SCHEMA",
            hint=f"pip install {newer}",
        )
    return top


def _versions(row: Fields) -> Versions:
    return Versions(
        uif=row.text("uif"),
        tvm=row.text("tvm", empty=True),
        tvm_ffi=row.text("tvm_ffi", empty=True),
        compat=row.text("compat", empty=True),
    )


def _signature(row: Fields) -> Signature:
    inputs = row.objects("inputs", _spec)
    if any(isinstance(leaf, ListSpec) for leaf in leaves(inputs)):
        row.refuse("an input is a list of any length, which only outputs can be")
    return Signature(inputs, row.objects("outputs", _spec))


def _spec(row: Fields) -> Spec:
    kind = row.text("kind") if "kind" in row else "tensor"
    if kind == "sequence":
        return SequenceSpec(row.text("name", empty=True), row.objects("items", _spec))
    if kind == "optional":
        return OptionalSpec(row.text("name", empty=True), row.maybe_object("value", _spec))
    if kind == "list":
        return ListSpec(row.text("name", empty=True), _dtype(row))
    if kind != "tensor":
        row.refuse(f"{kind!r:.80} is no kind of input or output")
    return _tensor(row)


def _dtype(row: Fields) -> str:
    dtype = row.text("dtype")
    if not _DTYPE.fullmatch(dtype):
        row.refuse(f"{dtype!r:.80} is no dtype")
    return dtype


def _tensor(row: Fields) -> TensorSpec:
    name, shape, dtype = row.text("name", empty=True), row.shape("shape"), _dtype(row)
    ranges = {}
    if "ranges" in row:
        ranges = row.mapping("ranges", _range)
        if not ranges:
            row.refuse("field 'ranges' may be left out, but not be empty")
    if odd := set(ranges) - set(shape):
        row.refuse(f"the range of {sorted(odd)[0]!r:.80} belongs to no axis")
    return TensorSpec(name, shape, dtype, tuple(ranges.values()))


def _range(row: Fields, name: str) -> DimRange:
    ends = row.take(name)
    if not isinstance(ends, list) or len(ends) != 2:
        row.refuse(f"the range of {name!r:.80} must be [least, most]")
    least, most = ends
    for end in (least, 0 if most is None else most):
        if type(end) is not int or not 0 <= end <= MAX_INT:
            row.refuse(f"the range of {name!r:.80} must hold integers from 0 to 2**63-1")
    if most is not None and most < least:
        row.refuse(f"the range of {name!r:.80} is empty")
    return DimRange(name, least, most)


def _section(row: Fields) -> Section:
    return Section(
        target=row.text("id"),
        requirement=row.object("requirement", _requirement),
        library=row.text("library"),
        report=row.text("report"),
        entry=row.text("entry"),
        weights=row.texts("weights", empty=True),
        versions=row.object("versions", _versions),
        memory=row.mapping("memory", lambda inner, key: inner.integer(key)),
        options=row.mapping("options", lambda inner, key: inner.take(key)),
        extras=row.mapping("extras", lambda inner, key: inner.text(key)),
    )


def _requirement(row: Fields) -> Requirement:
    def specifiers(name: str) -> dict[str, str]:
        return row.mapping(name, lambda inner, key: inner.text(key, empty=True))

    return Requirement(
        arch=row.text("arch"),
        features=row.texts("features"),
        runtime=specifiers("runtime"),
        firmware=specifiers("firmware"),
    )


def _member(row: Fields, path: str) -> Member:
    return row.object(path, _member_entry)


def _member_entry(row: Fields) -> Member:
    size, digest = row.integer("size"), row.text("blake3")
    if not _DIGEST.fullmatch(digest):
        row.refuse(f"{digest!r:.80} is no BLAKE3 digest")
    return Member(size, digest)
