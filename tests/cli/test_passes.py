"""``uif passes``: what runs, in which order, and what can be left out."""

from __future__ import annotations

import json

import pytest

from tests.compiler.test_graph_pass import make
from tests.models import fake_target
from uif_tvm.compiler.pipeline import phases

from .conftest import invoke


def test_list_is_the_pipeline():
    done = invoke("passes", "list", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], done.exit_code) == ("uif.passes", 0)
    want = [
        (step, phase.name, item.name, str(level))
        for step, phase in enumerate(phases(), 1)
        for level, item in phase.passes
    ]
    rows = document["passes"]
    assert [(row["step"], row["phase"], row["name"], row["level"]) for row in rows] == want
    assert all(row["summary"] and row["text"] for row in rows)
    assert "1 make-safe" in invoke("passes", "list").stdout


def test_show_has_the_formula_and_how_to_disable():
    done = invoke("passes", "show", "pack-matmul")
    assert done.exit_code == 0
    assert "->" in done.stdout
    assert "--disable-pass pack-matmul" in done.stdout
    assert "cannot be disabled" in invoke("passes", "show", "legalize").stdout


def test_unknown_pass():
    done = invoke("passes", "show", "pack-matmuls")
    assert done.exit_code == 2
    assert "did you mean 'pack-matmul'?" in done.stderr


def test_passes_of_a_target_are_listed(monkeypatch):
    target = fake_target(phase_overrides={"layout": lambda ctx: [make("acme-layout")]})
    monkeypatch.setattr("uif_tvm.target.registry.get_target", lambda name: target)
    rows = json.loads(invoke("passes", "list", "--json").stdout)["passes"]
    (own,) = [row for row in rows if row["name"] == "acme-layout"]
    assert (own["phase"], own["level"]) == ("layout", "1 (of cpu)")


@pytest.mark.parametrize("verb", [("list",), ("show", "legalize")])
def test_unknown_target(verb):
    assert invoke("passes", *verb, "--target", "nope").exit_code == 2
