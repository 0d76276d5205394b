"""Damage of any kind: a typed error, or exactly what was written; never anything else."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.artifact.forge import read_all, reforge, split
from uif_tvm.artifact import zipstore
from uif_tvm.artifact.strictjson import dumps
from uif_tvm.errors import UifError

Place = Callable[[bytes], Path]


@pytest.fixture(scope="module")
def truth(sample: bytes, place: Place) -> dict[str, Any]:
    return read_all(place(sample))


@pytest.fixture(autouse=True)
def nothing_else_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test here runs in an empty folder, which must stay empty."""
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) == []


def survives(path: Path, truth: dict[str, Any]) -> bool:
    """True when the file reads as before, False when it is refused; all else fails the test."""
    try:
        found = read_all(path)
    except UifError:
        return False
    assert found == truth
    return True


def test_every_boundary_cut_and_shifted(sample: bytes, place: Place, truth: Any) -> None:
    entries, _ = zipstore.read_directory(memoryview(sample))
    edges = {0, len(sample)}
    for entry in entries:
        edges |= {entry.start, entry.data, entry.end}
    edges |= {i for i in range(len(sample)) if sample.startswith((b"PK\1\2", b"PK\5\6"), i)}
    for edge in sorted(edges):
        for at in range(max(0, edge - 2), min(len(sample), edge + 3)):
            if at < len(sample):
                assert not survives(place(sample[:at]), truth)
            assert not survives(place(sample[at:] + b"PK"), truth)
            assert not survives(place(sample[:at] + b"\0" + sample[at:]), truth)
            if at < len(sample):
                assert not survives(place(sample[:at] + sample[at + 1 :]), truth)


def test_every_truncation(sample: bytes, place: Place, truth: Any) -> None:
    path = place(sample)
    for size in range(len(sample) - 1, -1, -3):
        os.truncate(path, size)
        assert not survives(path, truth)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """One of: bits flipped, bytes set, a block zeroed, moved, doubled or cut out."""
    out = bytearray(data)
    kind = rng.randrange(6)
    at = rng.randrange(len(out))
    size = rng.randrange(1, 64)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        for _ in range(rng.choice((1, 1, 4))):
            out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 2:
        out[at : at + size] = bytes(len(out[at : at + size]))
    elif kind == 3:
        source = rng.randrange(len(out))
        block = out[source : source + size]
        out[at : at + len(block)] = block
    elif kind == 4:
        out[at:at] = out[at : at + size]
    else:
        del out[at : at + size]
    return bytes(out)


def test_random_damage(sample: bytes, place: Place, truth: Any) -> None:
    rng = random.Random(20260)
    refused = 0
    for _ in range(8000):
        damaged = mutate(rng, sample)
        if damaged != sample:
            refused += not survives(place(damaged), truth)
    assert refused > 7000


def test_every_bit_of_the_headers(sample: bytes, place: Place, truth: Any) -> None:
    """All that is no member's content: each flip is refused, for nothing there is free."""
    entries, _ = zipstore.read_directory(memoryview(sample))
    spots = [i for entry in entries for i in range(entry.start, entry.data)]
    spots += range(entries[-1].end, len(sample))
    rng = random.Random(7)
    for at in spots:
        flipped = bytearray(sample)
        flipped[at] ^= 1 << rng.randrange(8)
        assert not survives(place(bytes(flipped)), truth)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, (dict, list)):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(spot for key, item in items for spot in places(item, (*path, key)))]


JUNK = st.sampled_from(
    [None, True, -1, 0, 2**63, 2**64, 1.5, "", "x", "../x", "manifest.json", "\0", [], {}, [[]],
     {"a": 1}, ["weights.safetensors"], "targets/here/lib.so", "targets/toy-2/lib.so", "0" * 64],
)  # fmt: skip


def damage_json(data: Any, document: Any) -> Any:
    """Some values replaced by junk or by other values of the document, some removed."""
    for _ in range(data.draw(st.integers(1, 3))):
        spots = [spot for spot in places(document) if spot]
        if not spots:
            break
        path = data.draw(st.sampled_from(spots))
        holder = document
        for step in path[:-1]:
            holder = holder[step]
        if data.draw(st.booleans()):
            holder[path[-1]] = json.loads(dumps(data.draw(JUNK)))
        elif data.draw(st.booleans()):
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(holder[path[-1]])
        else:
            holder["new"] = json.loads(dumps(holder[path[-1]]))
    return document


def readable_or_refused(path: Path) -> None:
    try:
        read_all(path)
    except UifError as error:
        assert error.code.startswith("UIF-ARTIFACT-")  # noqa: PT017


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_sealed_nonsense_in_the_manifest(sample: bytes, place: Place, data: Any) -> None:
    """Digests fit, so that only the manifest's own checks stand in the way."""
    readable_or_refused(place(reforge(sample, lambda doc, _: damage_json(data, doc) and None)))


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_sealed_nonsense_in_the_weights_header(sample: bytes, place: Place, data: Any) -> None:
    def edit(_: Any, members: dict[str, bytes]) -> None:
        member = members["weights.safetensors"]
        size = int.from_bytes(member[:8], "little")
        header = damage_json(data, json.loads(member[8 : 8 + size]))
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)
        new = len(text).to_bytes(8, "little") + text + member[8 + size :]
        members["weights.safetensors"] = new

    readable_or_refused(place(reforge(sample, edit)))


@given(st.sampled_from(["manifest.json", "weights.safetensors", "targets/here/report.json"]),
       st.binary(max_size=200))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_sealed_noise_instead_of_a_member(
    sample: bytes, place: Place, name: str, noise: bytes
) -> None:
    def edit(_: Any, members: dict[str, bytes]) -> bytes | None:
        if name == "manifest.json":
            return noise
        members[name] = noise
        return None

    readable_or_refused(place(reforge(sample, edit)))


def test_members_swapped(sample: bytes, place: Place, truth: Any) -> None:
    """Each member's content under another's name, digests left as they were."""
    names = [name for name in split(sample) if name != "manifest.json"]
    for one in names:
        for two in names:
            if one == two or split(sample)[one] == split(sample)[two]:
                continue

            def edit(document: Any, members: Any, one: str = one, two: str = two) -> bytes:
                members[one], members[two] = members[two], members[one]
                rows = document["members"]
                rows[one]["size"], rows[two]["size"] = rows[two]["size"], rows[one]["size"]
                return json.dumps(document).encode()

            assert not survives(place(reforge(sample, edit)), truth)
