"""Writing: exact round trips, alignment, sharing, determinism, merging, refusals."""

from __future__ import annotations

import errno
import os
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.artifact.forge import SIGNATURE, VERSIONS, make_payload, read_all, write_sample
from uif_tvm.artifact import (
    TargetPayload,
    add_target,
    installed_versions,
    open_artifact,
    tensors,
    write_artifact,
)
from uif_tvm.errors import ArtifactError, ArtifactIOError
from uif_tvm.signature import Signature
from uif_tvm.target.spec import Requirement


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any storable dtype, any small shape, any bytes, in any memory layout."""
    dtype = draw(st.sampled_from(list(tensors._DTYPES.values())))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if dtype == np.bool_:
        raw = raw & 1
    array = raw.view(dtype).reshape(shape)
    layout = draw(st.sampled_from("CFRB"))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "R" and shape:
        return array[::-1]
    if layout == "B" and dtype.kind in "iufc" and dtype.isbuiltin == 1:
        return array.astype(dtype.newbyteorder(">"))
    return array


PAYLOADS = st.builds(
    TargetPayload,
    st.from_regex(r"[a-z][a-z0-9-]{0,5}[a-z]", fullmatch=True),
    st.just(Requirement("any", ("f",))),
    st.binary(max_size=30),
    st.dictionaries(st.text(max_size=5), arrays(), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
    entry=st.text(min_size=1, max_size=5),
    extras=st.dictionaries(st.sampled_from(["plan.json", "x"]), st.binary(max_size=9)),
)


def facts(array: np.ndarray) -> tuple[Any, ...]:
    little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
    return little.dtype, array.shape, little.tobytes()


@given(st.lists(PAYLOADS, min_size=1, max_size=4, unique_by=lambda p: p.target), st.text())
@settings(max_examples=150, deadline=None)
def test_round_trip(place: Any, payloads: list[TargetPayload], model: str) -> None:
    path = place(b"")
    manifest = write_artifact(path, model=model, signature=SIGNATURE, targets=payloads)
    with open_artifact(path) as artifact:
        assert artifact.manifest == manifest
        assert artifact.targets == tuple(p.target for p in payloads)
        assert manifest.model == model
        assert manifest.signature == SIGNATURE
    found = read_all(path)
    for payload in payloads:
        got = found[payload.target]
        assert got["weights"] == [facts(array) for array in payload.weights.values()]
        assert got["library"] == payload.library
        assert got["report"] == payload.report
        assert got["extras"] == payload.extras
        section = got["section"]
        assert (section.entry, section.requirement) == (payload.entry, payload.requirement)


@given(st.lists(PAYLOADS, min_size=1, max_size=3, unique_by=lambda p: p.target))
@settings(max_examples=60, deadline=None)
def test_every_tensor_is_aligned_in_the_file_and_in_memory(place: Any, payloads: Any) -> None:
    path = place(b"")
    write_artifact(path, model="m", signature=SIGNATURE, targets=payloads)
    with open_artifact(path) as artifact:
        base = artifact._mapped().ctypes.data
        for section in artifact.manifest.sections:
            for name in section.weights:
                weight = artifact.weight(name)
                assert weight.ctypes.data % 64 == 0
                assert (weight.ctypes.data - base) % 64 == 0
                assert not weight.flags.writeable


def test_the_official_library_reads_the_member(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "a.uif")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "manifest.json"
        official = dict(safetensors.deserialize(archive.read("weights.safetensors")))
    with open_artifact(path) as artifact:
        names = artifact.section("here").weights
        assert names == tuple(make_payload().weights)
        for name in names:
            assert bytes(official[name]["data"]) == artifact.weight(name).tobytes()


def test_equal_content_gives_equal_files(tmp_path: Path) -> None:
    payloads = (make_payload("a"), make_payload("b"))
    one = write_sample(tmp_path / "1", *payloads).read_bytes()
    two = write_sample(tmp_path / "2", *payloads).read_bytes()
    assert one == two


def test_equal_tensors_are_stored_once(tmp_path: Path) -> None:
    big = np.arange(10_000, dtype=np.float32)
    tied = {"embed": big, "head": big.copy(), "other": big.view(np.int32)}
    path = write_sample(
        tmp_path / "a",
        make_payload("a", weights=tied),
        make_payload("b", weights={"renamed": big * 1, "embed": big + 1}),
    )
    assert path.stat().st_size < 3 * big.nbytes + 20_000
    with open_artifact(path) as artifact:
        assert artifact.section("a").weights == ("embed", "embed", "other")
        assert artifact.section("b").weights == ("embed", "b:embed")
        assert np.array_equal(artifact.weight("b:embed"), big + 1)
        assert artifact.weight("other").dtype == np.int32


def test_negative_zero_and_nan_bits_are_not_merged_or_changed(tmp_path: Path) -> None:
    bits = {"a": 0, "b": 0x80000000, "c": 0x7FC00001, "d": 0x7FC00002}
    weights = {name: np.array([word], np.uint32).view(np.float32) for name, word in bits.items()}
    with open_artifact(write_sample(tmp_path / "a", make_payload(weights=weights))) as artifact:
        found = {name: int(artifact.weight(name).view(np.uint32)[0]) for name in bits}
    assert found == bits


def test_names_that_the_format_reserves_and_names_that_meet(tmp_path: Path) -> None:
    names = ["__metadata__", "__pad_0", "w", "b:w", "", "💥", "a/../b", "\0"]
    weights = {name: np.full(3, i, np.int8) for i, name in enumerate(names)}
    path = write_sample(
        tmp_path / "a",
        make_payload("a", weights=weights),
        make_payload("b", weights={name: array + 100 for name, array in weights.items()}),
    )
    found = read_all(path)
    for target, extra in (("a", 0), ("b", 100)):
        got = [row[2][0] for row in found[target]["weights"]]
        assert got == [i + extra for i in range(len(names))]


def test_order_may_repeat_and_skip(tmp_path: Path) -> None:
    weights = {"a": np.ones(1), "b": np.zeros(2)}
    payload = make_payload(weights=weights, order=("b", "a", "b"))
    with open_artifact(write_sample(tmp_path / "a", payload)) as artifact:
        assert artifact.section("here").weights == ("b", "a", "b")
    with pytest.raises(ArtifactError, match="order names 'c'"):
        write_sample(tmp_path / "a", replace(payload, order=("c",)))


def test_a_model_without_weights_has_no_weights_member(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "a", make_payload(weights={}))
    with zipfile.ZipFile(path) as archive:
        assert "weights.safetensors" not in archive.namelist()
    with open_artifact(path) as artifact:
        assert artifact.select().weights == ()


def test_read_only_mappings_and_tuples_are_plain_data(tmp_path: Path) -> None:
    payload = make_payload(
        requirement=Requirement("any", runtime=MappingProxyType({"numpy": ">=1"})),
        memory=MappingProxyType({"arena": 1}),
        options={"off": ("a", "b")},
    )
    with open_artifact(write_sample(tmp_path / "a", payload)) as artifact:
        section = artifact.section("here")
    assert section.requirement.runtime == {"numpy": ">=1"}
    assert section.options == {"off": ["a", "b"]}


def test_weights_are_not_copied_while_written(tmp_path: Path) -> None:
    weights = {f"w{i}": np.full(1 << 20, i, np.float32) for i in range(8)}
    tracemalloc.start()
    write_sample(tmp_path / "a", make_payload(weights=weights))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": {"w": np.zeros(2, ml_dtypes.int4)}}, "has no form in safetensors"),
        ({"weights": {"w": np.array(["a"])}}, "has no form in safetensors"),
        ({"weights": {"w": np.array([None])}}, "has no form in safetensors"),
        ({"weights": {"w": [1, 2]}}, "is no NumPy array"),
        ({"weights": {3: np.zeros(1)}}, "is no NumPy array with a text name"),
        ({"weights": {"\ud800": np.zeros(1)}}, "surrogate"),
        ({"report": {"x": float("nan")}}, "stored as JSON"),
        ({"options": {"x": object()}}, "stored as JSON"),
        ({"memory": {"x": -1}}, "found -1"),
        ({"memory": {"x": np.int64(1)}}, "stored as JSON"),
        ({"entry": ""}, "may not be empty"),
        ({"target": "No Such"}, "no target id"),
        ({"target": "../x"}, "no target id"),
        ({"library": "text"}, "not bytes"),
        ({"extras": {"lib.so": b""}}, "cannot be a member's name"),
        ({"extras": {"../x": b""}}, "cannot be a member's name"),
        ({"extras": {"A": b""}}, "cannot be a member's name"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "a.uif"
    path.write_bytes(b"old")
    with pytest.raises(ArtifactError) as caught:
        write_sample(path, replace(make_payload(), **changes))
    assert reason in caught.value.message
    assert caught.value.stage == "compile"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.uif"]


def test_no_target_or_one_twice(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no section"):
        write_artifact(tmp_path / "a", model="m", signature=SIGNATURE, targets=[])
    with pytest.raises(ArtifactError):
        write_sample(tmp_path / "a", make_payload("a"), make_payload("a"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("after", [0, 1, 3, 8])
def test_a_disk_that_fills_up_leaves_the_old_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    path = write_sample(tmp_path / "a.uif")
    before = path.read_bytes()
    write, calls = os.write, iter(range(1000))

    def full(fd: int, data: bytes) -> int:
        if next(calls) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArtifactIOError, match="No space left"):
        write_sample(path, make_payload(weights={"w": np.ones(9)}))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.uif"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_sample(tmp_path / "1").read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    assert write_sample(tmp_path / "2").read_bytes() == whole


def test_adding_a_target_equals_writing_both(tmp_path: Path) -> None:
    one, two = make_payload("a"), make_payload("b", weights={"w": np.ones(3), "mask": np.ones(2)})
    both = write_sample(tmp_path / "both", replace(one, versions=VERSIONS), two, versions=None)
    path = write_sample(tmp_path / "grown", one)
    add_target(path, two, signature=SIGNATURE)
    assert path.read_bytes() == both.read_bytes()
    assert installed_versions().uif == open_artifact(path).section("b").versions.uif
    assert open_artifact(path).section("a").versions == VERSIONS


def test_readers_of_the_old_file_are_not_disturbed(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "a")
    with open_artifact(path) as old:
        weights = [old.weight(name) for name in old.section("here").weights]
        before = [weight.tobytes() for weight in weights]
        add_target(path, make_payload("b", weights={"z": np.ones(5000)}), signature=SIGNATURE)
        assert [weight.tobytes() for weight in weights] == before
        assert old.targets == ("here",)
    assert open_artifact(path).targets == ("here", "b")


def test_replacing_a_target_must_be_allowed(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "a", make_payload("a"), make_payload("b"))
    new = make_payload("a", library=b"new", weights={})
    with pytest.raises(ArtifactError, match="already") as caught:
        add_target(path, new, signature=SIGNATURE)
    assert caught.value.code == "UIF-ARTIFACT-TARGET"
    add_target(path, new, signature=SIGNATURE, overwrite=True)
    with open_artifact(path) as artifact:
        assert artifact.targets == ("b", "a")
        assert artifact.library(artifact.section("a")) == b"new"


def test_only_the_same_model_can_be_added(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "a")
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match="another signature"):
        add_target(path, make_payload("b"), signature=Signature((), ()))
    path.write_bytes(before[:-1])
    with pytest.raises(ArtifactError, match="end is missing"):
        add_target(path, make_payload("b"), signature=SIGNATURE)
    with pytest.raises(ArtifactIOError):
        add_target(tmp_path / "none", make_payload("b"), signature=SIGNATURE)
    assert os.listdir(tmp_path) == ["a"]
