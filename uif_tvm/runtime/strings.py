"""Texts as numbers: string tensors flow through compiled code as int64 tensors of ids.

The contract between frontends, engine and host calls:

- Equal texts have equal ids and different texts different ones, within one run. So reshape,
  gather, concat, where, equality and the like work on ids as they are; order does not.
- Id 0 is the empty text: what kernels fill with zeros is filled with "".
- Texts of the model's constants get their ids when the model is imported (:class:`Strings`, the
  importer's ``strings``); they are stored in the artifact in the order of their ids.
- Texts that arrive or are made at run time get ids above those, from the run's own
  :class:`RunStrings`, which is forgotten with the run. :func:`current` is the table of the run in
  progress on this thread: host calls decode their inputs and encode their results with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from uif_tvm.artifact.strictjson import REGET, dumps, loads
from uif_tvm.errors import ArtifactError

MAX_STRINGS_BYTES = 1 << 30

Array = np.ndarray[Any, Any]

TEXT = "string"
"""Name of the element type in signatures and in the importer."""

STRINGS = "strings.json"
"""The member of an artifact that lists the texts among the model's constants."""


def as_text(item: Any) -> str:
    """One element of a string tensor as ``str``; bytes are read as UTF-8.

    Raises:
        TypeError: it is no text.
        UnicodeDecodeError: bytes that are no UTF-8.
    """
    if isinstance(item, str):
        return str(item)  # np.str_ too
    if isinstance(item, bytes):
        return item.decode("utf-8")
    raise TypeError(f"a {type(item).__name__} where a text is needed")


class Strings:
    """Texts and their ids, both ways.

    Args:
        texts: what is known from the start, in the order of ids; the first is "".
    """

    def __init__(self, texts: Iterable[str] = ("",)) -> None:
        self._texts = list(texts)
        self._ids = {text: number for number, text in enumerate(self._texts)}

    @classmethod
    def from_bytes(cls, data: bytes) -> Strings:
        """From the artifact's member :data:`STRINGS`.

        Raises:
            ArtifactError: it is no list of different texts that begins with the empty one.
        """
        texts = loads(data, STRINGS, "UIF-ARTIFACT-STRINGS", MAX_STRINGS_BYTES)
        sound = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not sound or texts[:1] != [""] or len(set(texts)) != len(texts):
            raise ArtifactError(
                f"{STRINGS} must list different texts, the empty one first",
                code="UIF-ARTIFACT-STRINGS",
                hint=REGET,
            )
        return cls(texts)

    def to_bytes(self) -> bytes:
        """Inverse of :meth:`from_bytes`."""
        return dumps(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts in the order of their ids."""
        return tuple(self._texts)

    def id_of(self, text: str) -> int:
        """The id of a text, a new one if it has none yet."""
        number = self._ids.get(text)
        if number is None:
            number = len(self._texts)
            self._texts.append(text)
            self._ids[text] = number
        return number

    def text_of(self, number: int) -> str:
        """The text of an id.

        Raises:
            IndexError: no text has it.
        """
        if number < 0:
            raise IndexError(f"no text has the id {number}")
        return self._texts[number]

    def encode(self, array: Array) -> Array:
        """Ids (int64, same shape) of an array of texts.

        Raises:
            TypeError, UnicodeDecodeError: see :func:`as_text`.
        """
        ids = np.empty(array.shape, np.int64)
        flat = ids.reshape(-1)
        for place, item in enumerate(array.reshape(-1)):
            flat[place] = self.id_of(as_text(item))
        return ids

    def decode(self, ids: Array) -> Array:
        """Texts (object array of ``str``, same shape) of ids.

        Raises:
            IndexError: an id that no text has.
        """
        texts = np.empty(ids.shape, object)
        flat = texts.reshape(-1)
        for place, number in enumerate(ids.reshape(-1)):
            flat[place] = self.text_of(int(number))
        return texts


class RunStrings(Strings):
    """The texts of one run, over those of the model, which stay as they are.

    Args:
        model: the model's texts, shared by all runs and not changed by any.
    """

    def __init__(self, model: Strings) -> None:
        super().__init__(())
        self._model = model
        self._base = len(model)

    def __len__(self) -> int:
        return self._base + super().__len__()

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts in the order of their ids."""
        return (*self._model.texts, *super().texts)

    def id_of(self, text: str) -> int:
        """The id of a text, a new one if neither the model nor the run has it."""
        known = self._model._ids.get(text)
        return self._base + super().id_of(text) if known is None else known

    def text_of(self, number: int) -> str:
        """The text of an id; see the base class."""
        if number < self._base:
            return self._model.text_of(number)
        return super().text_of(number - self._base)


_active = threading.local()


def current() -> Strings:
    """The table of the run in progress on this thread.

    Raises:
        RuntimeError: none is.
    """
    table: Strings | None = getattr(_active, "table", None)
    if table is None:
        raise RuntimeError("no run is in progress on this thread")
    return table


@contextmanager
def using(table: Strings) -> Iterator[None]:
    """Make ``table`` the current one of this thread."""
    outer = getattr(_active, "table", None)
    _active.table = table
    try:
        yield
    finally:
        _active.table = outer
