"""``uif targets``."""

from __future__ import annotations

import json

from uif_tvm.target import registry

from .conftest import invoke


def test_list():
    body = json.loads(invoke("targets", "list", "--json").stdout)
    rows = {row["id"]: row for row in body["targets"]}
    assert rows["cpu"]["state"] == "this machine"
    text = invoke("targets", "list")
    for name in rows:
        assert name in text.stdout


def test_show_every_target():
    for entry in registry.list_targets():
        assert entry.spec is not None, f"{entry.id}: {entry.error}"
        shown = invoke("targets", "show", entry.id)
        assert shown.exit_code == 0, shown.output
        assert entry.spec.description in shown.stdout
        body = json.loads(invoke("targets", "show", entry.id, "--json").stdout)["target"]
        assert body["id"] == entry.id
        assert body["schedules"]
        assert body["machine"]["vector_bytes"] == entry.spec.machine.vector_bytes


def test_unknown():
    result = invoke("targets", "show", "cpv")
    assert result.exit_code == 2
    assert "did you mean 'cpu'" in result.stderr


def test_broken_targets_stay_listed_with_their_error(monkeypatch):
    broken = registry.TargetEntry("sick", "entry point x:y", error="ImportError: no z")
    everything = (*registry.list_targets(), broken)
    monkeypatch.setattr(registry, "list_targets", lambda: everything)
    rows = json.loads(invoke("targets", "list", "--json").stdout)["targets"]
    assert rows[-1]["state"] == "broken"
    assert "ImportError: no z" in invoke("targets", "list").stdout
    shown = invoke("targets", "show", "sick")
    assert shown.exit_code == 2
    assert "no z" in shown.stderr
