"""JSON from strangers: one strict parser and typed access to fields.

Refused: more bytes than a limit, bad UTF-8, duplicate keys, NaN and infinities, deep nesting,
lone surrogates in names. Every fault is an :class:`ArtifactError`
that says where in the document it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from uif_tvm.errors import ArtifactError

T = TypeVar("T")
# TVM and NumPy index with int64; nothing in an artifact is larger.
MAX_INT = 2**63 - 1
# Far above any report, far below the recursion limit of whoever walks or prints the value.
MAX_DEPTH = 64
# Escapes are the only way to a surrogate, alone or (rightly) in a pair.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def dumps(value: Any) -> bytes:
    """Compact JSON, the same bytes for equal values in equal order.

    Raises:
        ArtifactError: ``value`` holds something that JSON cannot (NaN, bytes, other keys).
    """
    try:
        # The parser forgives what the encoder does silently: keys turned into strings.
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        if _deeper_than(value, MAX_DEPTH):
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if json.loads(text) != _listed(value):
            raise ValueError("it does not survive the round trip (a key that is no string?)")
        return text.encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"this cannot be stored as JSON: {error}",
            code="UIF-ARTIFACT-JSON",
            stage="compile",
            hint="use only None, bool, int, finite float, str, lists and dicts with text keys",
        ) from None


def loads(data: bytes, what: str, code: str, limit: int) -> Any:
    """Parse ``data``; ``what`` names the document in errors, which carry ``code``.

    Args:
        limit: bytes; a larger document is refused before it is parsed.

    Raises:
        ArtifactError: for each fault listed in the module text.
    """

    def refuse(reason: str) -> NoReturn:
        raise ArtifactError(f"{what}: {reason}", code=code, hint=REGET)

    if len(data) > limit:
        refuse(f"{len(data)} bytes of JSON are more than the {limit} allowed")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        refuse(f"it is nested more than {MAX_DEPTH} levels deep")
    except ValueError as error:
        refuse(f"not valid JSON: {error}")
    if _deeper_than(value, MAX_DEPTH):
        refuse(f"it is nested more than {MAX_DEPTH} levels deep")
    if _SURROGATE.search(data) and not _is_utf8(value):
        refuse("a string holds a lone surrogate, which no UTF-8 text can")
    return value


REGET = "the file is damaged or was not written by uif; export it again or fetch a fresh copy"


class Fields:
    """A JSON object read field by field; leaving the ``with`` body refuses unread fields.

    Args:
        value: what stands where an object is expected (checked).
        where: path to it, for messages.
        code: error code.
    """

    def __init__(self, value: Any, where: str, code: str) -> None:
        self._where, self._code = where, code
        if not isinstance(value, dict):
            self.refuse(f"expected an object, found {_kind(value)}")
        self._rest: dict[str, Any] = dict(value)

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._rest:
            self.refuse(f"unknown field {next(iter(self._rest))!r}")

    def refuse(self, reason: str) -> NoReturn:
        """Raise :class:`ArtifactError` for a fault of this object."""
        raise ArtifactError(f"{self._where}: {reason}", code=self._code, hint=REGET)

    def take(self, name: str) -> Any:
        """The raw value of a field that must be there."""
        if name not in self._rest:
            self.refuse(f"field {name!r} is missing")
        return self._rest.pop(name)

    def text(self, name: str, *, empty: bool = False) -> str:
        """A string; the empty one only where ``empty`` allows it."""
        return self._text(self.take(name), name, empty)

    def texts(self, name: str, *, empty: bool = False) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._text(item, name, empty) for item in self._list(name))

    def integer(self, name: str) -> int:
        """An integer from 0 to 2**63 - 1."""
        return self._integer(self.take(name), name)

    def objects(self, name: str, parse: Callable[[Fields], T]) -> tuple[T, ...]:
        """A list of objects, each read completely by ``parse``."""
        return tuple(
            self._object(item, f"{name}[{index}]", parse)
            for index, item in enumerate(self._list(name))
        )

    def object(self, name: str, parse: Callable[[Fields], T]) -> T:
        """One nested object, read completely by ``parse``."""
        return self._object(self.take(name), name, parse)

    def maybe_object(self, name: str, parse: Callable[[Fields], T]) -> T | None:
        """One nested object, or null."""
        value = self.take(name)
        return None if value is None else self._object(value, name, parse)

    def mapping(self, name: str, parse: Callable[[Fields, str], T]) -> dict[str, T]:
        """An object with free keys; ``parse(fields, key)`` reads each value."""

        def every(inner: Fields) -> dict[str, T]:
            return {inner._text(key, "a key", True): parse(inner, key) for key in inner}

        return self.object(name, every)

    def sizes(self, name: str) -> tuple[int, ...]:
        """A list of integers from 0 to 2**63 - 1."""
        return tuple(self._integer(item, name) for item in self._list(name))

    def shape(self, name: str) -> tuple[int | str, ...]:
        """A list of sizes and names of symbolic dimensions."""
        return tuple(
            self._text(item, name, False) if isinstance(item, str) else self._integer(item, name)
            for item in self._list(name)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._rest))

    def _object(self, value: Any, name: str, parse: Callable[[Fields], T]) -> T:
        with Fields(value, f"{self._where}.{name}", self._code) as inner:
            return parse(inner)

    def _list(self, name: str) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list):
            self.refuse(f"field {name!r} must be a list, found {_kind(value)}")
        return value

    def _text(self, value: Any, name: str, empty: bool) -> str:
        if not isinstance(value, str):
            self.refuse(f"field {name!r} must be text, found {_kind(value)}")
        if not (value or empty):
            self.refuse(f"field {name!r} may not be empty")
        return value

    def _integer(self, value: Any, name: str) -> int:
        # bool is an int to Python, not to JSON.
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(f"field {name!r} must be an integer, found {_kind(value)}")
        if not 0 <= value <= MAX_INT:
            self.refuse(f"field {name!r} must be from 0 to 2**63-1, found {value}")
        return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    return names.get(type(value), "nothing" if value is None else "a number")


def _is_utf8(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list, tuple))
        ]
        if not level:
            return False
    return True


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r:.80} stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text:.40} is out of range")
    return value


def _listed(value: Any) -> Any:
    """``value`` with tuples as lists, the way JSON gives it back."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value
