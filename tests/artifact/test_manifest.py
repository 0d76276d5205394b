"""The manifest: exact round trips, and a typed error for every way it can be wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uif_tvm.artifact.manifest import SCHEMA, WEIGHTS, Manifest, Member, Section, Versions
from uif_tvm.errors import ArtifactError
from uif_tvm.signature import (
    DimRange,
    ListSpec,
    OptionalSpec,
    SequenceSpec,
    Signature,
    TensorSpec,
)
from uif_tvm.target.spec import Requirement

TEXT = st.text(max_size=6)
WORD = st.text(min_size=1, max_size=6)
DIMS = st.integers(0, 2**63 - 1) | WORD


@st.composite
def tensor_specs(draw: st.DrawFn) -> TensorSpec:
    shape = draw(st.lists(DIMS, max_size=3).map(tuple))
    names = list(dict.fromkeys(dim for dim in shape if isinstance(dim, str)))
    ranges = []
    for name in draw(st.lists(st.sampled_from(names), unique=True)) if names else []:
        least = draw(st.integers(0, 2**40))
        ranges.append(DimRange(name, least, draw(st.none() | st.integers(least, 2**41))))
    dtype = draw(st.sampled_from(["float32", "bool", "float8_e4m3fn"]))
    return TensorSpec(draw(TEXT), shape, dtype, tuple(ranges))


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: (
            st.builds(SequenceSpec, TEXT, st.lists(inner, max_size=2).map(tuple))
            | st.builds(OptionalSpec, TEXT, st.none() | inner)
        ),
        max_leaves=3,
    )


LISTS = st.builds(ListSpec, TEXT, st.sampled_from(["float32", "string"]))
SIGNATURES = st.builds(
    Signature,
    st.lists(nested(tensor_specs()), max_size=3, unique_by=lambda spec: spec.name).map(tuple),
    st.lists(nested(tensor_specs() | LISTS), max_size=3).map(tuple),
)
VERSIONS = st.builds(Versions, WORD, TEXT, TEXT, TEXT)
REQUIREMENTS = st.builds(
    Requirement,
    WORD,
    st.lists(WORD, max_size=3).map(tuple),
    st.dictionaries(TEXT, TEXT, max_size=2),
    st.dictionaries(TEXT, TEXT, max_size=2),
)
IDS = st.from_regex(r"[a-z0-9]([a-z0-9.+-]{0,9}[a-z0-9])?", fullmatch=True)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DIGEST = "ab" * 32


@st.composite
def sections(draw: st.DrawFn, target: str) -> Section:
    folder = f"targets/{target}/"
    extras = draw(st.lists(st.sampled_from(["plan.json", "a", "b.bin"]), unique=True))
    return Section(
        target,
        draw(REQUIREMENTS),
        folder + "lib.so",
        folder + "report.json",
        draw(WORD),
        draw(st.lists(TEXT, max_size=4).map(tuple)),
        draw(VERSIONS),
        draw(st.dictionaries(TEXT, st.integers(0, 2**63 - 1), max_size=3)),
        draw(st.dictionaries(TEXT, PLAIN, max_size=3)),
        {name: folder + name for name in extras},
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
    held = tuple(draw(sections(target)) for target in ids)
    names = [name for section in held for name in section.members]
    if any(section.weights for section in held):
        names.append(WEIGHTS)
    members = {name: Member(draw(st.integers(0, 2**63 - 1)), DIGEST) for name in names}
    return Manifest(draw(TEXT), draw(SIGNATURES), draw(VERSIONS), held, members)


@given(manifests())
def test_round_trip(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data) == manifest
    assert Manifest.from_bytes(data).to_bytes() == data


def document() -> dict[str, Any]:
    spec = TensorSpec("x", (1, "n"), "float32")
    section = Section(
        "cpu", Requirement("toy", ("f",), {"p": ">=1"}, {"fw": "==2"}), "targets/cpu/lib.so",
        "targets/cpu/report.json", "main", ("w",), Versions("1", "2", "3", "4"), {"arena": 5},
        {"level": 2}, {"plan.json": "targets/cpu/plan.json"},
    )  # fmt: skip
    members = {name: Member(3, DIGEST) for name in (*section.members, WEIGHTS)}
    manifest = Manifest(
        "m", Signature((spec,), (spec,)), Versions("1.2", "2", "3"), (section,), members
    )
    return json.loads(manifest.to_bytes())


def refused(value: Any, code: str = "MANIFEST") -> ArtifactError:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(ArtifactError) as caught:
        Manifest.from_bytes(data)
    assert caught.value.code == f"UIF-ARTIFACT-{code}"
    assert caught.value.hint
    return caught.value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON document."""
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [p for key, item in value.items() for p in places(item, (*path, key))]
    if isinstance(value, list):
        return found + [p for i, item in enumerate(value) for p in places(item, (*path, i))]
    return found


def parent(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path[:-1]:
        value = value[step]
    return value


PLACES = places(document())
# Whatever stands in options and memory belongs to their owners; any text may be a name.
FREE = [path for path in PLACES if "options" in path[:-1]]


@pytest.mark.parametrize("path", [p for p in PLACES if isinstance(p[-1], str)], ids=str)
def test_each_missing_field_is_named(path: tuple[Any, ...]) -> None:
    changed = document()
    del parent(changed, path)[path[-1]]
    if any(name in path[:-1] for name in ("options", "memory", "runtime", "firmware")):
        Manifest.from_bytes(json.dumps(changed).encode())
    else:
        refused(changed)


@pytest.mark.parametrize("path", PLACES, ids=str)
def test_each_value_of_a_wrong_kind_is_refused(path: tuple[Any, ...]) -> None:
    for wrong in (None, True, 1.5, -1, 2**63, [[]], {"?": 1}, [None]):
        changed = document()
        parent(changed, path)[path[-1]] = wrong
        fits = path[-1] in ("options", "memory") and wrong == {"?": 1}
        if path in FREE or fits:
            Manifest.from_bytes(json.dumps(changed).encode())
        else:
            refused(changed)


def objects() -> list[tuple[Any, ...]]:
    return [(), *(p for p in PLACES if isinstance(parent(document(), p)[p[-1]], dict))]


@pytest.mark.parametrize("path", objects(), ids=str)
def test_unknown_fields_are_refused_everywhere(path: tuple[Any, ...]) -> None:
    changed = document()
    inner = parent(changed, (*path, None))
    inner["surprise"] = [1]
    if path and path[-1] == "options":
        Manifest.from_bytes(json.dumps(changed).encode())
    else:
        refused(changed)


@given(st.data())
@settings(max_examples=300)
def test_structure_aware_mutations(data: Any) -> None:
    """Values moved, swapped and replaced: a manifest that reads back the same, or the error."""
    changed = document()
    for _ in range(data.draw(st.integers(1, 3))):
        spots = places(changed)
        if not spots:
            break
        path = data.draw(st.sampled_from(spots))
        other = data.draw(st.sampled_from(spots))
        value = data.draw(PLAIN | st.just(parent(changed, other)[other[-1]]))
        parent(changed, path)[path[-1]] = json.loads(json.dumps(value))
    try:
        manifest = Manifest.from_bytes(json.dumps(changed).encode())
    except ArtifactError:
        return
    assert json.loads(manifest.to_bytes()) == changed | {"schema": SCHEMA}


def edited(**changes: Any) -> dict[str, Any]:
    found = document()
    for path, value in changes.items():
        keys = path.split("__")
        inner = found
        for key in keys[:-1]:
            inner = inner[int(key) if key.isdigit() else key]
        inner[keys[-1]] = value
    return found


@pytest.mark.parametrize(
    "path",
    ["lib.so", "/lib.so", "targets/cpu/../../x", "targets/other/lib.so", "targets/cpu/a/b",
     "targets/cpu/", "targets/cpu/LIB", "weights.safetensors", "manifest.json",
     "targets/cpu/report.json"],
)  # fmt: skip
def test_a_section_may_use_only_its_own_folder(path: str) -> None:
    changed = edited(targets__0__library=path)
    changed["members"][path] = changed["members"].pop("targets/cpu/lib.so")
    refused(changed)


@pytest.mark.parametrize(
    "target", ["", "A", "a_b", "a b", "../a", "a/b", "-a", "a-", "ä", "a" * 65]
)
def test_bad_target_ids(target: str) -> None:
    refused(json.loads(json.dumps(document()).replace("cpu", target)))


def test_an_extra_stands_under_its_own_name() -> None:
    changed = document()
    changed["targets"][0]["extras"] = {"other.json": "targets/cpu/plan.json"}
    assert "extra 'other.json' cannot be" in refused(changed).message


def test_repeated_targets_inputs_and_no_target() -> None:
    twice = document()
    twice["targets"] *= 2
    assert "same target id" in refused(twice).message
    inputs = document()["signature"]["inputs"] * 2
    assert "same name" in refused(edited(signature__inputs=inputs)).message
    assert "no section" in refused(edited(targets=[])).message


def test_weights_without_their_member_and_members_without_use() -> None:
    without = document()
    del without["members"][WEIGHTS]
    assert "there is no weights" in refused(without).message
    extra = document()
    extra["members"]["targets/other/x"] = {"size": 1, "blake3": DIGEST}
    assert "'targets/other/x'" in refused(extra).message


@pytest.mark.parametrize("digest", ["", "ab", "AB" * 32, "zz" * 32, "ab" * 33])
def test_bad_digests(digest: str) -> None:
    changed = document()
    changed["members"][WEIGHTS]["blake3"] = digest
    refused(changed)


def test_a_newer_schema_names_the_version_to_install() -> None:
    error = refused(
        {"format": "uif", "schema": SCHEMA + 1, "versions": {"uif": "3.1"}, "new": [1]}, "SCHEMA"
    )
    assert error.hint == "pip install 'uif>=3.1'"
    assert f"schema {SCHEMA + 1}, written by uif 3.1" in error.message


@pytest.mark.parametrize("writer", ["1'; rm -rf ~ #", "", "x" * 99, None, 3, ["1"]])
def test_a_newer_schema_cannot_put_words_into_the_hint(writer: Any) -> None:
    error = refused({"format": "uif", "schema": 99, "versions": {"uif": writer}}, "SCHEMA")
    assert error.hint == "pip install --upgrade uif"
    for versions in (None, [], "x"):
        refused({"format": "uif", "schema": 99, "versions": versions}, "SCHEMA")


@pytest.mark.parametrize("schema", [0, -1, True, "1", 1.0, None])
def test_schemas_that_never_were(schema: Any) -> None:
    refused(edited(schema=schema))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{}", b'{"format": "zip", "schema": 1}', b"[" * 9999]
)
def test_what_is_no_manifest(data: bytes) -> None:
    refused(data)


def test_an_unknown_target_gets_the_list() -> None:
    manifest = Manifest.from_bytes(json.dumps(document()).encode())
    assert manifest.section("cpu").target == "cpu"
    for wrong in ("gpu", "\ud800", "", 3):
        with pytest.raises(ArtifactError, match="only for: cpu") as caught:
            manifest.section(wrong)  # type: ignore[arg-type]
        assert caught.value.code == "UIF-ARTIFACT-TARGET"
        str(caught.value).encode()


@pytest.mark.parametrize(
    "ranges", [{"m": [1, 2]}, {"n": [1]}, {"n": [2, 1]}, {"n": [-1, None]}, {"n": [None, 2]}, [1]]
)
def test_ranges_must_fit_the_shape(ranges: Any) -> None:
    spec = {"name": "x", "shape": ["n", 3], "dtype": "float32", "ranges": {"n": [1, None]}}
    section = Section("cpu", Requirement("x"), "targets/cpu/l", "targets/cpu/r", "main", (),
                      Versions("1", "", ""))  # fmt: skip
    members = {name: Member(1, DIGEST) for name in section.members}
    good = Manifest("m", Signature((), ()), Versions("1", "", ""), (section,), members)
    document = json.loads(good.to_bytes())
    document["signature"]["inputs"] = [spec]
    read = Manifest.from_bytes(json.dumps(document).encode())
    assert read.signature.inputs[0].ranges == (DimRange("n", 1, None),)
    spec["ranges"] = ranges
    with pytest.raises(ArtifactError):
        Manifest.from_bytes(json.dumps(document).encode())


TENSOR = {"name": "x", "shape": [], "dtype": "bool"}


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "x", "kind": "map", "dtype": "bool"},
        {"name": "x", "kind": "sequence", "items": TENSOR},
        {"name": "x", "kind": "sequence", "items": [None]},
        {"name": "x", "kind": "sequence"},
        {"name": "x", "kind": "optional", "value": [TENSOR]},
        {"name": "x", "kind": "optional"},
        {"name": "x", "kind": "list", "dtype": "?"},
        {"name": "x", "kind": "tensor", "dtype": "bool", "shape": [], "items": []},
    ],
    ids=str,
)
def test_odd_kinds_of_outputs(entry: dict[str, Any]) -> None:
    refused(edited(signature__outputs=[entry]))


def test_lists_of_any_length_do_not_enter_a_model() -> None:
    entry = {"name": "x", "kind": "list", "dtype": "bool"}
    assert "only outputs" in refused(edited(signature__inputs=[entry])).message
    Manifest.from_bytes(json.dumps(edited(signature__outputs=[entry])).encode())
