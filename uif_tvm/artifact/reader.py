"""Open ``.uif`` files: nothing is believed before it is checked, nothing large is copied.

Opening checks the container's whole layout and the manifest (against the digest in the archive's
last bytes). ``select`` checks that this host may run a section and the digest of every member the
section uses; only then is its code handed out. Weights are read-only arrays over the mapped file.

A file that another process shortens *in place* while it is mapped kills the readers (SIGBUS), as
with any mapped file; writers here replace files and never do that.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from uif_tvm.artifact import tensors, zipstore
from uif_tvm.artifact.digest import digest_of
from uif_tvm.artifact.files import PathLike, map_file
from uif_tvm.artifact.manifest import MANIFEST, MAX_MANIFEST_BYTES, WEIGHTS, Manifest, Section
from uif_tvm.artifact.memory_plan import MEMORY_PLAN, MemoryPlan
from uif_tvm.artifact.strictjson import REGET, loads
from uif_tvm.errors import ArtifactError, EnvironmentFault, UsageError
from uif_tvm.target.spec import Requirement

Array = np.ndarray[Any, Any]
# What a machine lacks of a requirement; ``Host.missing`` is one.
HostCheck = Callable[[Requirement], list[str]]

MAX_REPORT_BYTES = 256 << 20


def open_artifact(path: PathLike) -> Artifact:
    """Map a file, check its layout and read its manifest; code and weights are not read yet.

    Raises:
        ArtifactError: the file is damaged, hostile or newer than this version reads.
        ArtifactIOError: it is missing or unreadable.
    """
    return Artifact(path)


class Artifact:
    """An open ``.uif`` file; a context manager. Safe to use from several threads.

    Arrays from :meth:`weight` keep the mapping alive, also after :meth:`close`.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = path
        mapped, self.nbytes = map_file(path)
        if mapped is None:
            _refuse("TRUNCATED", f"{path!s:.500} is empty")
        # The array exports the map's buffer: while any slice of it lives, the map cannot go.
        self._bytes: Array | None = np.frombuffer(mapped, np.uint8)
        self._checked: set[str] = set()
        self._tensors: dict[str, tensors.Tensor] | None = None
        entries, self.digest = zipstore.read_directory(self._view())
        self._entries = {entry.name: entry for entry in entries}
        self.manifest = self._read_manifest(entries)

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping; it ends when the last array over it does."""
        self._bytes = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Ids of the targets the file holds code for."""
        return tuple(section.target for section in self.manifest.sections)

    def section(self, target: str) -> Section:
        """The section of ``target``, whether this host fits or not; nothing is verified.

        Raises:
            ArtifactError: code ``UIF-ARTIFACT-TARGET``: there is none.
        """
        return self.manifest.section(target)

    def select(self, target: str | None = None, missing: HostCheck | None = None) -> Section:
        """The section to run here, with every member that it uses verified.

        Args:
            target: id, or ``None`` for the first whose requirement this host meets.
            missing: what a host lacks; default: this machine.

        Raises:
            EnvironmentFault: the host cannot run it; the message lists what is missing.
            ArtifactError: no such target, or a member is damaged.
        """
        if missing is None:
            from uif_tvm.runtime.host import host

            missing = host().missing
        asked = self.manifest.sections if target is None else (self.section(target),)
        faults = []
        for section in asked:
            lacks = missing(section.requirement)
            if not lacks:
                self.verify(section)
                return section
            faults.append(f"{section.target} needs {'; '.join(lacks)}")
        raise EnvironmentFault(
            f"this machine cannot run model {self.manifest.model!r}: {'. '.join(faults)}",
            code="UIF-ENV-HOST",
            target=target,
            hint="run it on a machine that has this, or export the model for a target that this "
            "machine fits (`uif targets list`)",
        )

    def verify(self, section: Section) -> None:
        """Check the digests of all members ``section`` uses and that its weights are there.

        Raises:
            ArtifactError: code ``UIF-ARTIFACT-DIGEST`` or ``UIF-ARTIFACT-WEIGHTS``.
        """
        for name in section.members:
            self._content(name)
        if not section.weights:
            return
        held = self._weights()
        for name in section.weights:
            if name not in held:
                _refuse(
                    "WEIGHTS",
                    f"target {section.target!r} uses weight {name!r:.200}, "
                    "which is not in the file",
                )

    def weight(self, name: str) -> Array:
        """A weight as a read-only array over the mapped file, aligned to 64 bytes, not copied.

        Args:
            name: as it stands in ``Section.weights``.

        Raises:
            ArtifactError: no such weight, or the weights are damaged.
        """
        tensor = self._weights().get(name)
        if tensor is None:
            _absent("WEIGHTS", f"weight {name!r:.200}", "Section.weights")
        start = self._entries[WEIGHTS].data + tensor.offset
        raw = self._mapped()[start : start + tensor.nbytes]
        return raw.view(tensor.dtype).reshape(tensor.shape)

    def library(self, section: Section) -> bytes:
        """The native library; the copy itself is what was verified, so it cannot change after."""
        return self._copy(section.library)

    def report(self, section: Section) -> dict[str, Any]:
        """The compile report as plain data."""
        data = self._copy(section.report)
        report = loads(data, "report", "UIF-ARTIFACT-REPORT", MAX_REPORT_BYTES)
        if not isinstance(report, dict):
            _refuse("REPORT", "the report is no object")
        return report

    def extra(self, section: Section, name: str) -> bytes:
        """A further member of the section, by file name.

        Raises:
            ArtifactError: the section has none of that name.
        """
        if name not in section.extras:
            _absent("MEMBER", f"extra {name!r:.200}", f"Section.extras of {section.target!r}")
        return self._copy(section.extras[name])

    def memory_plan(self, section: Section) -> MemoryPlan | None:
        """Where the section's code has its tensors; ``None`` where it allocates them itself.

        Raises:
            ArtifactError: code ``UIF-ARTIFACT-MEMORY``: the plan is none, or leaves its arenas.
        """
        if MEMORY_PLAN not in section.extras:
            return None
        return MemoryPlan.from_bytes(self.extra(section, MEMORY_PLAN))

    def _read_manifest(self, entries: list[zipstore.Entry]) -> Manifest:
        first = entries[0] if entries else None
        if first is None or first.name != MANIFEST:
            _refuse("FORMAT", f"its first member is not {MANIFEST}")
        if first.size > MAX_MANIFEST_BYTES:
            _refuse("MANIFEST", f"{first.size} bytes are too many for a manifest")
        data = bytes(self._view()[first.data : first.end])
        if digest_of(data) != self.digest:
            _refuse("DIGEST", f"{MANIFEST} is not what was written")
        manifest = Manifest.from_bytes(data)
        held = {entry.name: entry.size for entry in entries[1:]}
        listed = {name: member.size for name, member in manifest.members.items()}
        if odd := set(held.items()) ^ set(listed.items()):
            name = min(odd)[0]
            _refuse("MEMBER", f"member {name!r} is missing, not in the manifest, or of other size")
        return manifest

    def _weights(self) -> dict[str, tensors.Tensor]:
        """The weights member's tensors, its digest checked once."""
        if self._tensors is None:
            if WEIGHTS not in self._entries:
                return {}
            self._tensors = tensors.parse(self._content(WEIGHTS))
        return self._tensors

    def _content(self, name: str) -> memoryview:
        """A member's mapped bytes, its digest checked at first use."""
        entry = self._entries.get(name)
        if entry is None:
            _refuse("MEMBER", f"there is no member {name!r:.200}")
        view = self._view()[entry.data : entry.end]
        if name not in self._checked:
            self._check(name, view)
            self._checked.add(name)
        return view

    def _copy(self, name: str) -> bytes:
        """A member's bytes, copied first and verified then."""
        entry = self._entries.get(name)
        if entry is None:
            _refuse("MEMBER", f"there is no member {name!r:.200}")
        data = bytes(self._view()[entry.data : entry.end])
        self._check(name, data)
        return data

    def _check(self, name: str, data: bytes | memoryview) -> None:
        if digest_of(data) != self.manifest.members[name].blake3:
            _refuse("DIGEST", f"member {name!r} is damaged: its bytes have another digest")

    def _mapped(self) -> Array:
        if self._bytes is None:
            raise UsageError(
                f"artifact {self.path!s:.500} is closed", hint="read from it before it is closed"
            )
        return self._bytes

    def _view(self) -> memoryview:
        return self._mapped().data


def _absent(code: str, what: str, where: str) -> NoReturn:
    raise ArtifactError(
        f"the file has no {what}",
        code=f"UIF-ARTIFACT-{code}",
        hint=f"ask for one that is listed in {where}",
    )


def _refuse(code: str, reason: str) -> NoReturn:
    raise ArtifactError(f"not a sound .uif file: {reason}", code=f"UIF-ARTIFACT-{code}", hint=REGET)
