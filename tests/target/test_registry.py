"""Discovery: folders and entry points; broken targets stay in sight."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from uif_tvm.errors import TargetError
from uif_tvm.target.registry import get_target, list_targets

MODULE = """
from dataclasses import replace
from uif_tvm.target.registry import get_target
from uif_tvm.targets.x86_64_v3.target import create

def good():
    return replace(create(), id="acme-npu", vendor="acme")

def misnamed():
    return replace(create(), id="other-name")

def copycat():
    return replace(create(), id="cpu")

def curious():
    return replace(get_target("cpu"), id="acme-curious")

def raises():
    raise RuntimeError("driver not found")

def nothing():
    return None

def incomplete():
    return replace(create(), id="acme-incomplete", schedules=())
"""
ENTRY_POINTS = """[uif.targets]
acme-npu = acme_targets:good
acme-misnamed = acme_targets:misnamed
cpu = acme_targets:copycat
acme-raises = acme_targets:raises
acme-nothing = acme_targets:nothing
acme-incomplete = acme_targets:incomplete
acme-curious = acme_targets:curious
acme-absent = no_such_module:create
acme-exits = acme_targets:no_such_function
"""


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution as pip would install it, with one sound target and many broken ones."""
    (tmp_path / "acme_targets.py").write_text(MODULE)
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    list_targets.cache_clear()
    yield
    list_targets.cache_clear()
    sys.modules.pop("acme_targets", None)


def test_built_in_targets_load():
    entries = {entry.id: entry for entry in list_targets()}
    assert {"cpu", "x86-64-v3", "x86-64-v4"} <= set(entries)
    assert [e.id for e in entries.values() if e.error] == []
    assert entries["x86-64-v3"].origin == "uif_tvm.targets.x86_64_v3.target"


def test_scanned_once():
    assert list_targets() is list_targets()


@pytest.mark.usefixtures("vendor")
def test_entry_points_are_found_and_broken_ones_stay_listed():
    entries = {entry.id: entry for entry in list_targets()}
    assert entries["acme-npu"].spec.vendor == "acme"
    assert entries["acme-npu"].origin == "entry point acme_targets:good"
    said = {name: entry.error for name, entry in entries.items() if entry.error}
    assert "'other-name', but it is registered as 'acme-misnamed'" in said["acme-misnamed"]
    assert said["acme-raises"] == "RuntimeError: driver not found"
    assert "returned NoneType" in said["acme-nothing"]
    assert "schedules needs at least one rule" in said["acme-incomplete"]
    assert said["acme-absent"].startswith("ModuleNotFoundError")
    assert said["acme-exits"].startswith("AttributeError")
    assert said["cpu (entry point acme_targets:copycat)"] == (
        "id 'cpu' is taken by uif_tvm.targets.cpu.target"
    )
    assert entries["cpu"].spec is not None
    assert "looks up another one while" in said["acme-curious"]
    assert len(said) == 8


def test_unknown_target_offers_the_nearest():
    with pytest.raises(TargetError) as caught:
        get_target("x86-64-v5")
    assert "there is no target 'x86-64-v5'; known: cpu, " in str(caught.value)
    assert "did you mean 'x86-64-v" in caught.value.hint
    with pytest.raises(TargetError, match="uif targets list"):
        get_target("quantum")


@pytest.mark.usefixtures("vendor")
def test_broken_target_says_what_is_wrong_and_where():
    with pytest.raises(TargetError) as caught:
        get_target("acme-raises")
    assert caught.value.code == "UIF-TARGET-BROKEN"
    assert (
        "target 'acme-raises' (entry point acme_targets:raises) is broken: "
        "RuntimeError: driver not found"
    ) in str(caught.value)
    assert get_target("acme-npu").id == "acme-npu"
