"""The plain description of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.artifact.forge import SIGNATURE, VERSIONS, make_payload, split, write_sample
from uif_tvm.artifact import SCHEMA, describe
from uif_tvm.errors import ArtifactError
from uif_tvm.target.spec import Requirement

Place = Callable[[bytes], Path]


def test_it_tells_everything_as_json(place: Place) -> None:
    path = write_sample(
        place(b""), make_payload(), make_payload("alien", requirement=Requirement("alien"))
    )
    row = json.loads(json.dumps(describe(path)))
    assert row["bytes"] == path.stat().st_size
    assert row["model"] == "sample ☃"
    assert row["signature"] == SIGNATURE.to_json()
    assert row["versions"] == vars(VERSIONS)
    assert (row["schema"], row["verified"], len(row["digest"])) == (SCHEMA, True, 64)
    here, alien = row["targets"]
    assert (here["id"], here["runs_here"], here["missing"]) == ("here", True, [])
    assert (alien["id"], alien["runs_here"]) == ("alien", False)
    assert "architecture alien" in alien["missing"][0]
    assert here["members"]["targets/here/lib.so"] == len(make_payload().library)
    assert (here["memory"], here["weights"]) == ({"arena": 4096}, 5)
    assert row["weight_bytes"] == len(split(path.read_bytes())["weights.safetensors"])


def test_verification_can_be_left_out(sample: bytes, place: Place) -> None:
    at = sample.index(make_payload().library)
    path = place(sample[:at] + b"?" + sample[at + 1 :])
    with pytest.raises(ArtifactError) as caught:
        describe(path)
    assert caught.value.code == "UIF-ARTIFACT-DIGEST"
    assert describe(path, verify=False)["verified"] is False


def test_a_file_without_weights(place: Place) -> None:
    assert describe(write_sample(place(b""), make_payload(weights={})))["weight_bytes"] == 0


def test_the_host_can_be_another(sample: bytes, place: Place) -> None:
    row = describe(place(sample), missing=lambda need: ["everything"])
    assert [target["missing"] for target in row["targets"]] == [["everything"]] * 2
