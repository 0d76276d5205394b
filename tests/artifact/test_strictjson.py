"""The strict JSON parser: what it takes, what it refuses and how."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.artifact.strictjson import MAX_DEPTH, Fields, dumps, loads
from uif_tvm.errors import ArtifactError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def parse(data: bytes, limit: int = 1 << 20) -> Any:
    return loads(data, "thing", "UIF-ARTIFACT-THING", limit)


@given(JSON)
def test_round_trip(value: Any) -> None:
    assert parse(dumps(value)) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


def test_tuples_become_lists() -> None:
    assert parse(dumps({"a": (1, (2,))})) == {"a": [1, [2]]}


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1: "a"}, {"a": {None: 1}}, b"x", {1, 2}, Ellipsis],
    ids=repr,
)
def test_dumps_refuses_what_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ArtifactError, match="stored as JSON") as caught:
        dumps(value)
    assert caught.value.code == "UIF-ARTIFACT-JSON"


def test_dumps_refuses_endless_nesting() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 0
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(ArtifactError):
            dumps(value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"NaN", "no JSON number"),
        (b"[-Infinity]", "no JSON number"),
        (b"1e999", "out of range"),
        (b"9" * 5000, "not valid JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
        (b'{"x": [{"a": 1, "a": 1}]}', "'a' stands twice"),
        (b"[" * 100_000, "levels deep"),
        (b'{"a":' * 50_000, "levels deep"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "levels deep"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'"' + b"a" * (1 << 20) + b'"', "more than the 1048576 allowed"),
    ],
)
def test_loads_refuses(data: bytes, reason: str) -> None:
    with pytest.raises(ArtifactError, match="thing") as caught:
        parse(data)
    assert reason in caught.value.message
    assert caught.value.code == "UIF-ARTIFACT-THING"
    assert caught.value.hint


def test_what_only_looks_forbidden_is_taken() -> None:
    assert parse(b'"\\ud83d\\ude42"') == "🙂"
    assert parse(b'"\\\\ud800"') == "\\ud800"
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,0123eE.-ntf\\u').map(str.encode))
def test_any_bytes_parse_or_raise_the_typed_error(data: bytes) -> None:
    try:
        value = parse(data)
    except ArtifactError:
        return
    assert value == json.loads(data)


def fields(value: Any) -> Fields:
    return Fields(value, "top", "UIF-X")


@pytest.mark.parametrize(
    ("value", "read", "reason"),
    [
        ([], lambda f: f, "top: expected an object, found a list"),
        ({}, lambda f: f.take("a"), "'a' is missing"),
        ({"a": 1}, lambda f: f.text("a"), "must be text, found a number"),
        ({"a": ""}, lambda f: f.text("a"), "may not be empty"),
        ({"a": None}, lambda f: f.texts("a"), "must be a list, found nothing"),
        ({"a": ["x", True]}, lambda f: f.texts("a"), "must be text, found a truth value"),
        ({"a": True}, lambda f: f.integer("a"), "must be an integer, found a truth value"),
        ({"a": 1.0}, lambda f: f.integer("a"), "must be an integer, found a number"),
        ({"a": -1}, lambda f: f.integer("a"), "found -1"),
        ({"a": 2**63}, lambda f: f.integer("a"), "found 9223372036854775808"),
        ({"a": [1, {}]}, lambda f: f.shape("a"), "must be an integer, found an object"),
        ({"a": [1, ""]}, lambda f: f.shape("a"), "may not be empty"),
        ({"a": [["n"]]}, lambda f: f.sizes("a"), "must be an integer, found a list"),
        (
            {"a": [{"b": 1}]},
            lambda f: f.objects("a", lambda g: None),
            "top.a[0]: unknown field 'b'",
        ),
        ({"a": {"b": {"c": 1}}}, lambda f: f.mapping("a", lambda g, k: g.text(k)), "top.a:"),
    ],
)
def test_fields_refuse(value: Any, read: Any, reason: str) -> None:
    with pytest.raises(ArtifactError) as caught, fields(value) as top:
        read(top)
    assert reason in caught.value.message
    assert caught.value.code == "UIF-X"


def test_unread_fields_are_refused_but_hide_no_other_error() -> None:
    with pytest.raises(ArtifactError, match="unknown field 'b'"), fields({"a": 1, "b": 2}) as top:
        top.integer("a")
    with pytest.raises(ZeroDivisionError), fields({"a": 1}):
        1 / 0  # noqa: B018
