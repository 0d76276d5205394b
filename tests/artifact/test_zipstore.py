"""The container's layout: what other zip tools make of it, and what the reader refuses."""

from __future__ import annotations

import io
import mmap
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.artifact.forge import forge, split
from uif_tvm.artifact import zipstore
from uif_tvm.artifact.zipstore import ALIGNMENT, Entry, check_path, read_directory
from uif_tvm.errors import ArtifactError

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,8}(/[a-z0-9][a-z0-9._+-]{0,8}){0,3}", fullmatch=True)
TREES = st.dictionaries(NAMES, st.binary(max_size=200), min_size=1, max_size=6)
TWO = [("a.json", b"{}"), ("b/c.bin", b"x" * 100)]


def code_of(data: bytes, reason: str = ".") -> str:
    with pytest.raises(ArtifactError, match=reason) as caught:
        read_directory(memoryview(data))
    assert caught.value.hint
    return caught.value.code.removeprefix("UIF-ARTIFACT-")


@given(TREES)
def test_round_trip_and_what_the_standard_library_reads(tree: dict[str, bytes]) -> None:
    data = forge(tree.items())
    assert split(data) == tree
    assert list(split(data)) == list(tree)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == tree
        assert all(row.compress_type == zipfile.ZIP_STORED for row in archive.infolist())


@given(TREES)
def test_every_member_starts_aligned(tree: dict[str, bytes]) -> None:
    entries, _ = read_directory(memoryview(forge(tree.items())))
    assert all(entry.data % ALIGNMENT == 0 for entry in entries)


def test_members_beyond_four_gibibytes(tmp_path: Path) -> None:
    """A sparse file: nothing of the 4 GiB is on disk."""
    big = Entry("big.bin", (4 << 30) + 5, 0, 0)
    tail = Entry("tail.bin", 3, zlib.crc32(b"end"), big.end)
    rows = zipstore.central_header(big) + zipstore.central_header(tail)
    closing = zipstore.end_records(2, tail.end, len(rows), "0" * 64)
    path = tmp_path / "big.zip"
    with path.open("wb") as file:
        file.write(zipstore.local_header(big))
        file.seek(big.end)
        file.write(zipstore.local_header(tail) + b"end" + rows + closing)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        entries, _ = read_directory(view)
    assert entries == [big, tail]
    with zipfile.ZipFile(path) as archive:
        assert [row.file_size for row in archive.infolist()] == [big.size, 3]
        assert archive.read("tail.bin") == b"end"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        "a/.",
        ".",
        "..",
        "a\\b",
        "..\\x",
        "c:/x",
        "C:x",
        "a\0b",
        "A",
        "ä",
        "a b",
        "a\nb",
        "~/x",
        "a/b/c/d/e",
        "a" * 300,
        "$HOME",
        "-",
        ".hidden",
        "a*",
        "con:",
        "\u202ex",
    ],
)
def test_names_that_no_member_may_have(name: str) -> None:
    assert not check_path(name)


@pytest.mark.parametrize("name", ["../x", "/etc/cron.d/x", "a\\..\\b", "a\0b", "a/", "c:/boot"])
def test_archives_with_such_names_are_refused(name: str) -> None:
    assert code_of(forge([*TWO, (name, b"evil")])) == "PATH"


def test_a_name_is_refused_when_only_the_local_header_holds_it() -> None:
    data = forge([*TWO, ("ab/xx", b"evil")])
    at = data.index(b"ab/xx")
    assert code_of(data[:at] + b"../xx" + data[at + 5 :]) == "STRUCTURE"


def test_links_and_folders_are_refused() -> None:
    data = forge(TWO)
    row = data.index(b"PK\1\2") + 38
    for kind in (stat.S_IFLNK, stat.S_IFDIR):
        mode = struct.pack("<I", (kind | 0o777) << 16)
        assert code_of(data[:row] + mode + data[row + 4 :]) == "PATH"
    # A hard link would hide in an extra field (0x000d), which our rows never have.
    device = struct.pack("<I", (stat.S_IFCHR | 0o777) << 16)
    assert code_of(data[:row] + device + data[row + 4 :]) == "STRUCTURE"


def test_duplicate_names_are_refused() -> None:
    assert code_of(forge([*TWO, TWO[1]])) == "DUPLICATE"
    assert code_of(forge([*TWO, (TWO[1][0], b"other")])) == "DUPLICATE"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_and_bombs_are_refused(method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("manifest.json", bytes(1 << 20))
        archive.comment = forge(TWO)[-len(b"uif manifest blake3 ") - 64 :]
    assert code_of(out.getvalue()) == "COMPRESSED"


def _patch_row(data: bytes, offset: int, value: bytes) -> bytes:
    """``data`` with bytes of the *last* directory row replaced."""
    at = data.rindex(b"PK\1\2") + offset
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("offset", "value", "code", "reason"),
    [
        (8, b"\1\0", "COMPRESSED", "encrypted"),
        (10, b"\10\0", "COMPRESSED", "compressed"),
        (20, struct.pack("<I", 99), "STRUCTURE", "two sizes, 99 and 100"),
        (20, struct.pack("<2I", 99, 99), "STRUCTURE", "headers of member .* disagree"),
        (20, struct.pack("<2I", 101, 101), "STRUCTURE", "reaches beyond"),
        (20, struct.pack("<2I", 2**31, 2**31), "STRUCTURE", "reaches beyond"),
        (20, b"\xff" * 8, "STRUCTURE", "reaches beyond"),  # Zip64 without its record
        (42, struct.pack("<I", 0), "STRUCTURE", "overlaps"),
        (42, struct.pack("<I", 2**31), "STRUCTURE", "reaches beyond"),
        (16, b"\0\0\0\0", "STRUCTURE", "disagree"),  # CRC unlike the local header's
        (4, b"\0", "STRUCTURE", "not laid out"),  # version
        (12, b"\1", "STRUCTURE", "not laid out"),  # time
        (34, b"\1", "STRUCTURE", "not laid out"),  # disk number
        (36, b"\1", "STRUCTURE", "not laid out"),  # "text" attribute
        (28, struct.pack("<H", 0xFFFF), "STRUCTURE", "not laid out"),  # name too long
        (30, struct.pack("<H", 0xFFFF), "STRUCTURE", "not laid out"),  # extra field too long
        (32, struct.pack("<H", 9), "STRUCTURE", "not laid out"),  # comment
    ],
)
def test_lying_directories_are_refused(offset: int, value: bytes, code: str, reason: str) -> None:
    assert code_of(_patch_row(forge(TWO), offset, value), reason) == code


def test_junk_before_between_and_after_is_refused() -> None:
    data = forge(TWO)
    rows = data.index(b"PK\1\2")
    assert code_of(b"#!/bin/sh\n" + data) == "FORMAT"
    assert code_of(data[:rows] + b"junk" + data[rows:]) == "STRUCTURE"
    assert code_of(data + b"\0") == "STRUCTURE"
    assert code_of(data + b"\0" * 5000) == "STRUCTURE"
    assert code_of(data + data) == "STRUCTURE"


def test_a_gap_behind_a_sound_header_is_refused() -> None:
    """The row points 64 bytes past the header, where an equal one would be padded equally."""
    entries, digest = read_directory(memoryview(forge(TWO)))
    body = forge(TWO)[: entries[1].end] + b"x" * ALIGNMENT
    entries[1] = Entry("b/c.bin", 100, entries[1].crc, entries[1].start + ALIGNMENT)
    rows = b"".join(map(zipstore.central_header, entries))
    assert len(body) == entries[1].end
    assert code_of(body + rows + zipstore.end_records(2, len(body), len(rows), digest)) == (
        "STRUCTURE"
    )


def test_hidden_content_of_the_padding_is_refused() -> None:
    data = bytearray(forge(TWO))
    entries, _ = read_directory(memoryview(bytes(data)))
    data[entries[0].data - 1] = 1
    assert code_of(bytes(data)) == "STRUCTURE"


def test_junk_that_the_end_record_knows_of_is_refused() -> None:
    entries, digest = read_directory(memoryview(forge(TWO)))
    body = forge(TWO)[: entries[1].end]
    rows = b"".join(map(zipstore.central_header, entries))
    for junk in (b"x", b"junk" * 50):
        start = len(body) + len(junk)
        whole = body + junk + rows + zipstore.end_records(2, start, len(rows), digest)
        assert code_of(whole, f"{len(junk)} bytes lie between") == "STRUCTURE"


def test_counts_that_lie_are_refused() -> None:
    data = forge(TWO)
    end = data.rindex(b"PK\5\6")
    for count in (0, 1, 3, 9_999, 0xFFFF):
        n = struct.pack("<2H", count, count)
        assert code_of(data[: end + 8] + n + data[end + 12 :]) == "STRUCTURE"
    many = struct.pack("<2H", 60_000, 60_000)
    whole = data[: end + 8] + many + data[end + 12 :]
    assert code_of(whole, "60000 members are more than") == "STRUCTURE"


@pytest.mark.parametrize("size", [2**32 - 1, 2**40, 2**63, 2**64 - 999])
def test_zip64_sizes_that_lie_are_refused(size: int) -> None:
    first = Entry("a.bin", 3, 7, 0)
    body = zipstore.local_header(first) + b"abc"
    for liar in (Entry("a.bin", size, 7, 0), Entry("a.bin", 3, 7, size)):
        row = zipstore.central_header(liar)
        assert code_of(body + row + zipstore.end_records(1, len(body), len(row), "0" * 64)) == (
            "STRUCTURE"
        )
    row = zipstore.central_header(first)
    for numbers in ((size, len(body), len(row)), (1, size, len(row)), (1, len(body), size)):
        assert code_of(body + row + zipstore.end_records(*numbers, "0" * 64)) == "STRUCTURE"


def test_a_damaged_seal_is_refused() -> None:
    data = forge(TWO)
    assert code_of(data[:-1] + b"\xff") == "DIGEST"
    assert code_of(data[:-1] + b"G") == "DIGEST"


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"", "FORMAT"), (b"PK", "FORMAT"), (b"PK\3\4", "TRUNCATED"), (b"\x7fELF" * 99, "FORMAT")],
)
def test_what_is_no_archive(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_an_ordinary_zip_file_is_not_ours() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("manifest.json", "{}")
    assert code_of(out.getvalue()) == "TRUNCATED"


@given(data=st.data())
def test_every_truncation_is_refused(data: Any) -> None:
    whole = forge(TWO)
    assert code_of(whole[: data.draw(st.integers(0, len(whole) - 1))])
