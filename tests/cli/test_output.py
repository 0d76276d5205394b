"""JSON envelopes, tables and the progress display."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from uif_tvm.cli import output


def test_json_has_schema_and_version_and_is_strict(capsys):
    output.emit_json("x", {"a": float("nan"), "b": np.float32(1.5), "c": (1, {2}), 3: None})
    body = json.loads(capsys.readouterr().out, parse_constant=lambda _: pytest.fail("not JSON"))
    assert body == {
        "schema": "uif.x", "schema_version": 2, "a": "nan", "b": 1.5, "c": [1, [2]], "3": None
    }  # fmt: skip


def test_lone_surrogates_do_not_break_it(capsys):
    output.emit_json("x", {"name": "\ud800"})
    json.loads(capsys.readouterr().out)


def test_tables_show_names_as_they_are(capsys):
    output.print_table("", ("name", "n>"), [("[bold]x[/bold]", 1), (None, 2)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (5 << 30, "5 GiB")],
)
def test_sizes(nbytes, text):
    assert output.size_text(nbytes) == text


def test_counts_agree_with_their_noun():
    assert [output.counted(n, "kernel") for n in range(3)] == ["0 kernels", "1 kernel", "2 kernels"]


def test_short_work_shows_nothing(capsys):
    with output.PhaseProgress("work") as progress:
        progress("phase", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_long_work_names_its_phases_on_stderr(capsys, monkeypatch):
    monkeypatch.setattr(output, "PATIENCE", 0.01)
    with output.PhaseProgress("work") as progress:
        progress("first", 0, 2)
        deadline = time.monotonic() + 10
        while not progress._late and time.monotonic() < deadline:
            time.sleep(0.005)
        progress("second", 0, 2)
        progress("second", 1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "work: first\nwork: second\n"


def test_quiet(capsys, monkeypatch):
    monkeypatch.setattr(output, "PATIENCE", 0.0)
    with output.PhaseProgress("work", quiet=True) as progress:
        time.sleep(0.05)
        progress("phase", 0, 1)
    assert capsys.readouterr() == ("", "")
