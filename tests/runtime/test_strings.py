"""Texts and their ids."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.errors import ArtifactError
from uif_tvm.runtime.strings import RunStrings, Strings, current, using

TEXTS = st.lists(st.text(max_size=4), max_size=8)


@given(TEXTS, TEXTS, TEXTS)
def test_ids_are_equal_where_texts_are(constants, first, second):
    model = Strings()
    model.encode(np.array(constants, object))
    run = RunStrings(model)
    given = np.array([*constants, *first, *second], object)
    ids = run.encode(given)
    np.testing.assert_array_equal(run.decode(ids), given)
    equal = ids[:, None] == ids[None, :]
    np.testing.assert_array_equal(equal, given[:, None] == given[None, :])
    np.testing.assert_array_equal(ids == 0, given == "")
    assert list(run.texts) == list(dict.fromkeys(["", *given]))
    assert len(run) == len(run.texts)


def test_a_run_leaves_the_model_as_it_was():
    model = Strings(["", "a"])
    runs = [RunStrings(model), RunStrings(model)]
    assert [run.id_of("b") for run in runs] == [2, 2]
    assert runs[0].id_of("a") == 1
    assert runs[1].id_of("c") == 3
    assert model.texts == ("", "a")


def test_shapes_are_kept_and_bytes_are_read():
    table = Strings()
    for array in (np.array("x"), np.array([["x"], ["ü"]]), np.empty((0, 3), object)):
        ids = table.encode(array)
        assert ids.dtype == np.int64
        assert ids.shape == array.shape
        np.testing.assert_array_equal(table.decode(ids), array)
    np.testing.assert_array_equal(
        table.decode(table.encode(np.array(["ü".encode()], object))), ["ü"]
    )


def test_what_is_no_text():
    with pytest.raises(TypeError, match="a int where a text"):
        Strings().encode(np.array([1], object))
    for number in (-1, 5):
        with pytest.raises(IndexError):
            RunStrings(Strings()).decode(np.array([number]))


@given(TEXTS)
def test_stored_form(texts):
    table = Strings()
    table.encode(np.array(texts, object))
    assert Strings.from_bytes(table.to_bytes()).texts == table.texts


@pytest.mark.parametrize("data", [b"{}", b"[]", b'["a"]', b'["", 1]', b'["", "a", "a"]', b"x"])
def test_damaged_stored_form(data):
    with pytest.raises(ArtifactError) as caught:
        Strings.from_bytes(data)
    assert caught.value.code == "UIF-ARTIFACT-STRINGS"


def test_current_table_belongs_to_the_thread():
    with pytest.raises(RuntimeError, match="no run"):
        current()
    outer, inner = Strings(), Strings()
    seen = []

    def elsewhere():
        try:
            current()
        except RuntimeError:
            seen.append("none")

    with using(outer):
        with using(inner):
            assert current() is inner
        assert current() is outer
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == ["none"]
