"""The container: a zip of stored members, each aligned, with exactly one byte layout.

Given the members' names, sizes and CRCs in order, every other byte of the archive follows:
headers carry fixed times and modes, data starts at the next multiple of ``ALIGNMENT`` (padded
through the local header's extra field, as zipalign does), nothing lies between or after. Any zip
tool reads such a file. The reader rebuilds these bytes and compares, so headers that disagree,
overlaps, gaps, links, encryption and hidden data are refused as one: they are not what we write.

Layout: APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory),
4.3.14-16 (end records), 4.5.3 (Zip64). Extra field 0xD935: Android zipalign's.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from uif_tvm.artifact.strictjson import REGET
from uif_tvm.errors import ArtifactError

# Bytes; what TVM demands of a tensor's data, and a cache line.
ALIGNMENT = 64
MAX_MEMBERS = 10_000

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_PADDING_ID = 0xD935
_ZIP64_ID = 1
# A field at its largest value says: look in the Zip64 record.
_FULL16 = 0xFFFF
_FULL32 = 0xFFFFFFFF
# 1980-01-01, the zip epoch: files with the same content are the same file.
_DATE = 0x21
_MADE_BY_UNIX = 3 << 8
_MODE = stat.S_IFREG | 0o644
_SEAL = b"uif manifest blake3 "
_SEAL_BYTES = len(_SEAL) + 64
_HEX = re.compile(r"[0-9a-f]{64}")
# Lower case only: no two names may meet on a file system that ignores case.
_PATH = re.compile(r"[a-z0-9][a-z0-9._+-]*(/[a-z0-9][a-z0-9._+-]*){0,3}")


@dataclass(frozen=True)
class Entry:
    """One member: ``start`` is the offset of its local header, ``data`` of its first byte."""

    name: str
    size: int
    crc: int
    start: int

    @property
    def data(self) -> int:
        """Offset of the content in the file, a multiple of ``ALIGNMENT``."""
        return self.start + len(local_header(self))

    @property
    def end(self) -> int:
        """Offset of the first byte after the content."""
        return self.data + self.size


def local_header(entry: Entry) -> bytes:
    """The bytes before the content, padding included."""
    extra = b""
    size = entry.size
    if entry.size >= _FULL32:
        extra = struct.pack("<2H2Q", _ZIP64_ID, 16, entry.size, entry.size)
        size = _FULL32
    name = entry.name.encode("ascii")
    bare = entry.start + _LOCAL.size + len(name) + len(extra) + 6
    padding = -bare % ALIGNMENT
    extra += struct.pack("<3H", _PADDING_ID, 2 + padding, ALIGNMENT) + bytes(padding)
    fields = (b"PK\3\4", _version(entry), 0, 0, 0, _DATE, entry.crc, size, size)
    return _LOCAL.pack(*fields, len(name), len(extra)) + name + extra


def central_header(entry: Entry) -> bytes:
    """The member's row in the central directory."""
    wide = [value for value in (entry.size, entry.size, entry.start) if value >= _FULL32]
    extra = struct.pack(f"<2H{len(wide)}Q", _ZIP64_ID, 8 * len(wide), *wide) if wide else b""
    size, start = min(entry.size, _FULL32), min(entry.start, _FULL32)
    name = entry.name.encode("ascii")
    version = _version(entry)
    fields = (b"PK\1\2", _MADE_BY_UNIX | version, version, 0, 0, 0, _DATE, entry.crc, size, size)
    rest = (len(name), len(extra), 0, 0, 0, _MODE << 16, start)
    return _CENTRAL.pack(*fields, *rest) + name + extra


def end_records(count: int, start: int, size: int, manifest_digest: str) -> bytes:
    """What closes the archive: ``count`` rows of ``size`` bytes stand at offset ``start``."""
    wide = b""
    if count >= _FULL16 or start >= _FULL32 or size >= _FULL32:
        wide = _END64.pack(b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, size, start)
        wide += _LOCATOR64.pack(b"PK\6\7", 0, start + size, 1)
    n = min(count, _FULL16)
    seal = _SEAL + manifest_digest.encode("ascii")
    fields = (b"PK\5\6", 0, 0, n, n, min(size, _FULL32), min(start, _FULL32), len(seal))
    return wide + _END.pack(*fields) + seal


def check_path(name: str) -> bool:
    """True for the only member names there are: relative, lower case, plain ASCII, no dots."""
    return len(name) < 256 and _PATH.fullmatch(name) is not None


def read_directory(view: memoryview) -> tuple[list[Entry], str]:
    """The members of an archive and the manifest's digest, the whole layout checked.

    Args:
        view: the file's bytes.

    Raises:
        ArtifactError: not an archive of this layout, or damaged; the code says how.
    """
    if bytes(view[:4]) != b"PK\3\4":
        _refuse("FORMAT", "it does not start like a .uif file")
    end = len(view) - _END.size - _SEAL_BYTES
    tail = bytes(view[max(0, end) :])
    if end < 0 or tail[:4] != b"PK\5\6" or tail[_END.size :][: len(_SEAL)] != _SEAL:
        _refuse_tail(view)
    digest = tail[_END.size + len(_SEAL) :].decode("ascii", errors="replace")
    if not _HEX.fullmatch(digest):
        _refuse("DIGEST", "the digest of its manifest is damaged")
    count, size, start, close = _parse_end(view, tail, end)
    if count > MAX_MEMBERS:
        _refuse("STRUCTURE", f"{count} members are more than the {MAX_MEMBERS} allowed")
    if start + size != close:
        _refuse("STRUCTURE", f"its directory ({size} bytes at {start}) does not end at {close}")
    directory = bytes(view[start : start + size])
    entries = _parse_rows(directory, count, start)
    _check_layout(view, entries, start)
    # Also catches what no row shows: other times, modes, flags, comments, disk numbers.
    rebuilt = b"".join(map(central_header, entries))
    if rebuilt != directory or end_records(len(entries), start, size, digest) != view[close:]:
        _refuse("STRUCTURE", "its directory is not laid out as uif writes it")
    return entries, digest


def _parse_end(view: memoryview, tail: bytes, end: int) -> tuple[int, int, int, int]:
    """Members, directory size and start, and where the end records begin."""
    _, _, _, _, count, size, start, _ = _END.unpack(tail[: _END.size])
    if count < _FULL16 and size < _FULL32 and start < _FULL32:
        return count, size, start, end
    close = end - _END64.size - _LOCATOR64.size
    if close < 0 or bytes(view[close : close + 4]) != b"PK\6\6":
        _refuse("STRUCTURE", "the Zip64 end record that it announces is missing")
    *_, count, size, start = _END64.unpack(view[close : close + _END64.size])
    return count, size, start, close


def _parse_rows(directory: bytes, count: int, limit: int) -> list[Entry]:
    """The rows of the central directory; data must end before ``limit``."""
    entries: list[Entry] = []
    names: set[str] = set()
    at = 0
    for _ in range(count):
        if len(directory) - at < _CENTRAL.size:
            _refuse("STRUCTURE", "its directory has fewer rows than it says")
        row = _CENTRAL.unpack_from(directory, at)
        _, _, _, flags, method, _, _, crc, packed, size, n_name, n_extra, _, _, _, mode, start = row
        at += _CENTRAL.size
        name = directory[at : at + n_name].decode("ascii", errors="backslashreplace")
        wide = directory[at + n_name : at + n_name + n_extra][4:]
        at += n_name + n_extra
        if not check_path(name):
            _refuse("PATH", f"member name {name!r:.200} is not allowed")
        if stat.S_ISLNK(mode >> 16) or stat.S_ISDIR(mode >> 16):
            _refuse("PATH", f"member {name!r} is not a plain file")
        if name in names:
            _refuse("DUPLICATE", f"member {name!r} stands in it twice")
        if method != 0 or flags & 1:
            _refuse("COMPRESSED", f"member {name!r} is compressed or encrypted")
        numbers = iter(struct.unpack(f"<{len(wide) // 8}Q", wide[: len(wide) // 8 * 8]))
        size = next(numbers, size) if size == _FULL32 else size
        packed = next(numbers, packed) if packed == _FULL32 else packed
        start = next(numbers, start) if start == _FULL32 else start
        if packed != size:
            _refuse("STRUCTURE", f"member {name!r} has two sizes, {packed} and {size} bytes")
        entry = Entry(name, size, crc, start)
        if entry.end > limit:
            _refuse("STRUCTURE", f"member {name!r} ({size} bytes) reaches beyond the file's data")
        names.add(name)
        entries.append(entry)
    return entries


def _check_layout(view: memoryview, entries: Iterable[Entry], limit: int) -> None:
    """Members follow one another from the first byte to the directory, headers as we write them."""
    at = 0
    for entry in entries:
        if entry.start != at:
            how = "overlaps" if entry.start < at else "leaves a gap after"
            _refuse("STRUCTURE", f"member {entry.name!r} {how} the one before it")
        header = local_header(entry)
        if view[at : at + len(header)] != header:
            _refuse("STRUCTURE", f"the two headers of member {entry.name!r} disagree")
        at = entry.end
    if at != limit:
        _refuse("STRUCTURE", f"{limit - at} bytes lie between the last member and the directory")


def _version(entry: Entry) -> int:
    return 45 if entry.size >= _FULL32 or entry.start >= _FULL32 else 20


def _refuse_tail(view: memoryview) -> NoReturn:
    """The end record is not at the end: cut off, or something was appended."""
    reach = bytes(view[-(1 << 16) :])
    found = reach.rfind(b"PK\5\6")
    over = len(reach) - found - _END.size - _SEAL_BYTES
    if found >= 0 and over > 0:
        _refuse("STRUCTURE", f"{over} bytes follow the end of the archive")
    _refuse("TRUNCATED", f"its end is missing (it has {len(view)} bytes)")


def _refuse(code: str, reason: str) -> NoReturn:
    raise ArtifactError(f"not a sound .uif file: {reason}", code=f"UIF-ARTIFACT-{code}", hint=REGET)
