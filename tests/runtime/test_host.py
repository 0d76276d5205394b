"""The host's facts, and what a requirement finds missing."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import pytest

from uif_tvm.runtime import host as module
from uif_tvm.runtime.host import Host, available_cores, host, installed_version
from uif_tvm.target.spec import Requirement

BOARD = Host("toy64", frozenset({"mul", "vec"}), 2, "Toy", firmware={"npu": "2.1.0"})


def test_host_agrees_with_the_operating_system() -> None:
    here = host()
    assert here.arch == platform.machine()
    assert here.cores == len(os.sched_getaffinity(0)) == available_cores()
    assert here.model
    assert bool(here.features) != bool(here.features_unknown)
    assert here is host()


def test_a_met_requirement_misses_nothing() -> None:
    wants = Requirement("toy64", ("vec",), {"numpy": ">=1.0"}, {"npu": "~=2.0"})
    assert BOARD.missing(wants) == []


def test_another_architecture_is_the_only_complaint() -> None:
    assert BOARD.missing(Requirement("other", ("x",))) == [
        "architecture other (this host is toy64)"
    ]


def test_every_missing_thing_is_listed() -> None:
    wants = Requirement(
        "toy64",
        ("vec", "fft", "crypto"),
        {"numpy": ">=9999", "no-such-package-here": ">=1"},
        {"npu": ">=3", "dsp": "==1"},
    )
    numpy = metadata.version("numpy")
    assert BOARD.missing(wants) == [
        "CPU feature fft",
        "CPU feature crypto",
        f"package numpy>=9999 (found {numpy})",
        "package no-such-package-here>=1 (none is installed)",
        "firmware npu>=3 (found 2.1.0)",
        "firmware dsp==1 (none is installed)",
    ]


@pytest.mark.parametrize("wanted", ["newest", ">=", "==1.0.0 or so"])
def test_an_unreadable_specifier_counts_as_missing(wanted: str) -> None:
    (fault,) = BOARD.missing(Requirement("toy64", (), {"numpy": wanted}))
    assert "cannot compare" in fault


@pytest.mark.parametrize(
    ("text", "features", "model"),
    [
        ("model name\t: A B\nflags\t\t: fpu vme\n\nmodel name\t: C\n", {"fpu", "vme"}, "A B"),
        ("Features\t: fp asimd\nHardware : Board\n", {"fp", "asimd"}, "Board"),
        ("isa\t\t: rv64imafdc_zicsr_zba\nuarch : core9\n", {"rv64imafdc", "zicsr", "zba"}, "core9"),
    ],
)
def test_cpuinfo_dialects(tmp_path, monkeypatch, text, features, model) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    monkeypatch.setattr(module, "_CPUINFO", path)
    here = host.__wrapped__()
    assert (here.features, here.model, here.features_unknown) == (features, model, "")


def test_unknown_features_are_refused_with_the_reason(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "absent")
    here = host.__wrapped__()
    assert here.features == frozenset()
    assert here.missing(Requirement(here.arch)) == []
    (fault,) = here.missing(Requirement(here.arch, ("vec",)))
    assert "vec" in fault
    assert "lists no CPU features" in fault


def test_installed_version_needs_no_import() -> None:
    assert installed_version("apache-tvm") == metadata.version("apache-tvm")
    assert installed_version("no-such-package-here") is None
