"""``uif env``: verdicts and the commands that mend them."""

from __future__ import annotations

import json

from uif_tvm import compat

from .conftest import invoke


def with_versions(monkeypatch, **changes):
    tested = {package.name: package.tested for package in compat.PACKAGES}
    monkeypatch.setattr(compat, "installed_versions", lambda: tested | changes)


def test_this_environment_is_usable():
    result = invoke("env", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert (body["schema"], body["usable"]) == ("uif.env", True)
    assert {row["package"] for row in body["packages"]} == {p.name for p in compat.PACKAGES}


def test_missing_extras_are_no_fault(monkeypatch):
    with_versions(monkeypatch, torch=None)
    result = invoke("env")
    assert result.exit_code == 0
    assert 'torch: pip install "torch>=2.6"' in result.stdout
    assert "work together" in result.stdout


def test_missing_tvm_is(monkeypatch):
    with_versions(monkeypatch, **{"apache-tvm": None})
    result = invoke("env", "--json")
    assert result.exit_code == 4
    body = json.loads(result.stdout)
    assert body["verdict"] == "missing"
    assert body["remedies"] == ['pip install "apache-tvm==0.27.0.post1"']
