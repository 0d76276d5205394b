"""Errors: typed, stable, readable, and whole after a trip between processes."""

from __future__ import annotations

import copy
import json
import pickle
import re

import pytest

from uif_tvm import errors
from uif_tvm.errors import (
    ArtifactIOError,
    CompileError,
    EnvironmentFault,
    InputError,
    RunError,
    UifError,
    UnsupportedError,
    UnsupportedOp,
    UsageError,
)

CLASSES = [
    item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, UifError)
]
OPS = (
    UnsupportedOp("Foo", 5, "no converter", ("a", "b", "c", "d"), "cut it off"),
    UnsupportedOp("Bar", 1, "strings"),
)


def make(cls: type[UifError]) -> UifError:
    known = {"code": "UIF-RUN-X", "op": "conv", "target": "cpu", "hint": "do it", "stage": "run"}
    return cls(OPS, **known) if cls is UnsupportedError else cls("went wrong", **known)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_text_names_code_stage_target_op_and_remedy(cls):
    text = str(make(cls))
    assert text.startswith("[UIF-RUN-X] run, target cpu, op conv: ")
    assert text.endswith("\n  remedy: do it")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("trip", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_survives_pickling(cls, trip):
    error = make(cls)
    again = trip(error)
    assert type(again) is cls
    assert (str(again), again.to_dict()) == (str(error), error.to_dict())
    assert again.args == error.args


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_defaults_are_of_a_known_stage_and_a_code_of_our_form(cls):
    error = cls(()) if cls is UnsupportedError else cls("x")
    assert error.stage in errors.STAGES
    assert re.fullmatch(r"UIF(-[A-Z]+)+", error.code)
    assert cls.exit_code in (1, 2, 3, 4, 5, 70)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (UsageError, ValueError),
        (InputError, ValueError),
        (UnsupportedError, NotImplementedError),
        (CompileError, RuntimeError),
        (RunError, RuntimeError),
        (EnvironmentFault, RuntimeError),
        (ArtifactIOError, OSError),
    ],
)
def test_callers_who_do_not_know_us_catch_builtins(cls, builtin):
    with pytest.raises(builtin):
        raise make(cls)


def test_unknown_stage_is_our_own_mistake():
    with pytest.raises(AssertionError, match="'lunch' is none of usage, import"):
        UifError("x", stage="lunch")


def test_every_unsupported_operator_is_listed():
    error = UnsupportedError(OPS)
    assert error.op == "Foo, Bar"
    assert error.message == (
        "2 operators are not supported:"
        "\n  - Foo x5 at a, b, c and 1 more: no converter (cut it off)"
        "\n  - Bar x1: strings"
    )
    rows = json.loads(json.dumps(error.to_dict()))["ops"]
    assert [row["op"] for row in rows] == ["Foo", "Bar"]
    assert rows[0]["locations"] == ["a", "b", "c", "d"]
    assert "1 operator is" in UnsupportedError(OPS[:1]).message
