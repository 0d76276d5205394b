"""Reading: what is checked before anything is handed out, and what arrays live on."""

from __future__ import annotations

import gc
import json
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.artifact.forge import (
    WEIGHTS,
    forge,
    make_payload,
    offset_of,
    read_all,
    reforge,
    split,
    write_sample,
)
from uif_tvm.artifact import Artifact, open_artifact, tensors
from uif_tvm.errors import ArtifactError, ArtifactIOError, EnvironmentFault, UsageError
from uif_tvm.runtime.host import Host
from uif_tvm.target.spec import Requirement

Place = Callable[[bytes], Path]
MEMBER = "weights.safetensors"
LIBRARY = "targets/here/lib.so"


def refused(path: Path, code: str, use: Callable[[Artifact], Any] | None = None) -> ArtifactError:
    """The error of opening ``path``, or of ``use`` where opening must succeed."""
    if use is None:
        with pytest.raises(ArtifactError) as caught:
            open_artifact(path)
    else:
        with open_artifact(path) as artifact, pytest.raises(ArtifactError) as caught:
            use(artifact)
    assert caught.value.code == f"UIF-ARTIFACT-{code}"
    assert caught.value.stage == "load"
    return caught.value


def test_the_flow_of_an_engine(sample: bytes, place: Place) -> None:
    with open_artifact(place(sample)) as artifact:
        section = artifact.select(target=None)
        weights = [artifact.weight(name) for name in section.weights]
        library = artifact.library(section)
        assert section.target == "here"
        assert library == make_payload().library
        assert artifact.report(section)["level"] == 2
        assert artifact.extra(section, "plan.json") == b"{}"
    for got, given in zip(weights, WEIGHTS.values(), strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (given.dtype, given.shape, given.tobytes())


def test_selection_takes_the_first_that_fits(sample: bytes, place: Place) -> None:
    def only(arch: str) -> Callable[[Requirement], list[str]]:
        return Host(arch, frozenset(), 1, "Toy").missing

    here = platform.machine()
    needs = {"a": Requirement("toy"), "b": Requirement(here), "c": Requirement(here)}
    path = place(b"")
    write_sample(path, *(make_payload(name, requirement=need) for name, need in needs.items()))
    with open_artifact(path) as artifact:
        assert artifact.select().target == "b"
        assert artifact.select("c").target == "c"
        assert artifact.select(missing=only("toy")).target == "a"
        with pytest.raises(EnvironmentFault, match="a needs architecture toy") as caught:
            artifact.select("a")
        assert (caught.value.code, caught.value.target) == ("UIF-ENV-HOST", "a")
        with pytest.raises(EnvironmentFault) as caught:
            artifact.select(missing=only("odd"))
        for name in needs:
            assert f"{name} needs architecture" in caught.value.message
        # Data and description stay available where the code cannot run.
        assert artifact.report(artifact.section("a"))["level"] == 2


def test_missing_cpu_features_are_listed(place: Place) -> None:
    need = Requirement(platform.machine(), ("warp_drive", "flux"))
    path = write_sample(place(b""), make_payload(requirement=need))
    with open_artifact(path) as artifact, pytest.raises(EnvironmentFault) as caught:
        artifact.select()
    assert "here needs CPU feature warp_drive; CPU feature flux" in caught.value.message


def test_an_unknown_target(sample: bytes, place: Place) -> None:
    error = refused(place(sample), "TARGET", lambda artifact: artifact.select("npu"))
    assert "only for: here, toy-2" in error.message


@pytest.mark.parametrize(
    "name", ["targets/here/lib.so", "targets/here/report.json", "targets/here/plan.json", MEMBER]
)
def test_a_damaged_member_is_noticed_before_code_is_handed_out(
    sample: bytes, place: Place, name: str
) -> None:
    content = split(sample)[name]
    at = offset_of(sample, name)
    for offset in (0, len(content) - 1):
        spot = at + offset
        damaged = sample[:spot] + bytes([sample[spot] ^ 1]) + sample[spot + 1 :]
        error = refused(place(damaged), "DIGEST", Artifact.select)
        assert name in error.message


def test_damage_in_another_targets_section_does_not_matter(sample: bytes, place: Place) -> None:
    at = offset_of(sample, "targets/toy-2/lib.so")
    path = place(sample[:at] + b"?" + sample[at + 1 :])
    with open_artifact(path) as artifact:
        section = artifact.select("here")
        assert artifact.library(section) == make_payload().library
    refused(path, "DIGEST", lambda artifact: artifact.select("toy-2"))
    refused(path, "DIGEST", lambda a: a.library(a.section("toy-2")))


def test_weights_are_verified_without_select_too(sample: bytes, place: Place) -> None:
    # The last byte of the weights: tensor data, so that their header parses.
    at = offset_of(sample, MEMBER) + len(split(sample)[MEMBER]) - 1
    damaged = sample[:at] + b"?" + sample[at + 1 :]
    refused(place(damaged), "DIGEST", lambda artifact: artifact.weight("scalar"))


def test_the_manifest_must_be_first_and_sealed(sample: bytes, place: Place) -> None:
    members = split(sample)
    later = forge(reversed(members.items()))
    assert "first member" in refused(place(later), "FORMAT").message
    without = forge((name, data) for name, data in members.items() if name != "manifest.json")
    refused(place(without), "FORMAT")
    refused(place(forge([])), "FORMAT")
    at = sample.index(b'"schema":3')
    refused(place(sample[:at] + b'"schema":2' + sample[at + 10 :]), "DIGEST")


def test_a_newer_schema_says_what_to_install(sample: bytes, place: Place) -> None:
    def edit(document: dict[str, Any], members: dict[str, bytes]) -> None:
        document.update(schema=7, targets="elsewhere")
        document["versions"]["uif"] = "4.2.0"
        members["news.bin"] = b"new kind of member"

    error = refused(place(reforge(sample, edit)), "SCHEMA")
    assert error.hint == "pip install 'uif>=4.2.0'"


def test_members_and_manifest_must_agree(sample: bytes, place: Place) -> None:
    def drop(_: Any, members: dict[str, bytes]) -> None:
        del members[LIBRARY]

    def add(_: Any, members: dict[str, bytes]) -> None:
        members["targets/here/extra.so"] = b"smuggled"

    def grow(document: dict[str, Any], members: dict[str, bytes]) -> bytes:
        members[LIBRARY] += b"more"
        return json.dumps(document).encode()

    for edit in (drop, add, grow):
        refused(place(reforge(sample, edit)), "MEMBER")


def test_a_wrong_digest_in_the_manifest(sample: bytes, place: Place) -> None:
    def edit(document: dict[str, Any], _: Any) -> bytes:
        document["members"][LIBRARY]["blake3"] = "0" * 64
        return json.dumps(document).encode()

    refused(place(reforge(sample, edit)), "DIGEST", Artifact.select)


def test_a_giant_manifest_is_not_parsed(sample: bytes, place: Place) -> None:
    def edit(document: dict[str, Any], _: Any) -> bytes:
        return json.dumps(document).encode() + b" " * (16 << 20)

    assert "too many" in refused(place(reforge(sample, edit)), "MANIFEST").message


def test_deep_manifests_and_reports(sample: bytes, place: Place) -> None:
    refused(place(reforge(sample, lambda *_: b"[" * 200_000)), "MANIFEST")

    def edit(_: Any, members: dict[str, bytes]) -> None:
        members["targets/here/report.json"] = b'{"a":' * 99_999 + b"1" + b"}" * 99_999
        members["targets/toy-2/report.json"] = b"[1]"

    path = place(reforge(sample, edit))
    for target in ("here", "toy-2"):
        refused(path, "REPORT", lambda a, target=target: a.report(a.section(target)))


def test_hostile_weights_with_right_digests(sample: bytes, place: Place) -> None:
    def shrink(_: Any, members: dict[str, bytes]) -> None:
        members[MEMBER] = members[MEMBER][:-1]

    refused(place(reforge(sample, shrink)), "WEIGHTS", Artifact.select)

    def other(_: Any, members: dict[str, bytes]) -> None:
        head, _, total = tensors.plan([("w", np.dtype("<f4"), (2,))])
        members[MEMBER] = head + bytes(total - len(head))

    error = refused(place(reforge(sample, other)), "WEIGHTS", Artifact.select)
    assert "which is not in the file" in error.message


def test_what_a_section_does_not_have(sample: bytes, place: Place) -> None:
    refused(place(sample), "WEIGHTS", lambda artifact: artifact.weight("none"))
    refused(place(sample), "MEMBER", lambda a: a.extra(a.section("here"), "none"))
    refused(
        place(sample),
        "MEMBER",
        lambda a: a.library(replace(a.section("here"), library="targets/here/none")),
    )
    bare = write_sample(place(b""), make_payload(weights={}))
    refused(bare, "WEIGHTS", lambda artifact: artifact.weight("w"))


def test_arrays_outlive_the_artifact(sample: bytes, place: Place) -> None:
    artifact = open_artifact(place(sample))
    weight = artifact.weight("dense/kernel")
    artifact.close()
    artifact.close()
    with pytest.raises(UsageError, match="is closed"):
        artifact.weight("dense/kernel")
    del artifact
    gc.collect()
    assert weight.tobytes() == WEIGHTS["dense/kernel"].tobytes()


def test_arrays_cannot_be_written(sample: bytes, place: Place) -> None:
    with open_artifact(place(sample)) as artifact:
        weight = artifact.weight("dense/kernel")
    with pytest.raises(ValueError, match="read-only"):
        weight[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        weight.flags.writeable = True


def test_weights_are_not_copied(sample: bytes, place: Place) -> None:
    with open_artifact(place(sample)) as artifact:
        one, two = artifact.weight("dense/kernel"), artifact.weight("dense/kernel")
        assert np.shares_memory(one, two)
        assert np.shares_memory(one, artifact._mapped())


def test_nothing_stays_open(sample: bytes, place: Place) -> None:
    path = place(sample)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        read_all(path)
        with pytest.raises(ArtifactError):
            open_artifact(place(sample[:-1]))
        place(sample)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_threads_read_one_artifact(sample: bytes, place: Place) -> None:
    expected = [weight.tobytes() for weight in WEIGHTS.values()]
    faults: list[Any] = []
    with open_artifact(place(sample)) as artifact:

        def read() -> None:
            section = artifact.select("here")
            got = [artifact.weight(name).tobytes() for name in section.weights]
            if got != expected or artifact.library(section) != make_payload().library:
                faults.append(got)

        threads = [threading.Thread(target=read) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"\0" * 4096, b"not a zip file at all"])
def test_files_of_another_kind(data: bytes, place: Place) -> None:
    with pytest.raises(ArtifactError):
        open_artifact(place(data))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactIOError, match="No such file"):
        open_artifact(tmp_path / "none.uif")
    with pytest.raises(ArtifactIOError, match="no regular file"):
        open_artifact(tmp_path)
