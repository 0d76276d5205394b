"""The version guard: verdicts, messages, ordering of versions, and what importing costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from uif_tvm import compat
from uif_tvm.errors import EnvironmentFault

TESTED = {package.name: package.tested for package in compat.PACKAGES}


def verdicts(**changes: str | None) -> dict[str, compat.Finding]:
    versions = TESTED | {name.replace("_", "-"): value for name, value in changes.items()}
    return {finding.package: finding for finding in compat.evaluate(versions)}


def test_tested_combination_is_ok():
    assert {finding.status for finding in verdicts().values()} == {"ok"}


@pytest.mark.parametrize("version", ["0.1.15", "0.1.15.post1", "0.1.15.post2"])
def test_segfaulting_pair_is_broken_and_says_how_to_mend_it(version):
    finding = verdicts(apache_tvm_ffi=version)["apache-tvm-ffi"]
    assert finding.status == "broken"
    assert finding.fatal
    assert "segmentation fault" in finding.reason
    assert finding.remedy == 'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'


@pytest.mark.parametrize(
    ("changes", "package", "status", "fatal"),
    [
        ({"apache_tvm_ffi": "0.1.14.post0"}, "apache-tvm-ffi", "untested", False),
        ({"apache_tvm_ffi": "0.1.13.post3"}, "apache-tvm-ffi", "refused", True),
        ({"apache_tvm_ffi": "0.2.0"}, "apache-tvm-ffi", "refused", True),
        ({"apache_tvm": "0.26.0"}, "apache-tvm", "refused", True),
        ({"numpy": "1.24.4"}, "numpy", "refused", True),
        ({"torch": "2.13.0+cpu"}, "torch", "ok", False),
        ({"torch": "2.5.1"}, "torch", "refused", False),
        ({"torch": None}, "torch", "missing", False),
        ({"onnx": "1.99"}, "onnx", "untested", False),
        ({"numpy": "git-checkout"}, "numpy", "refused", True),
    ],
)
def test_verdicts(changes, package, status, fatal):
    finding = verdicts(**changes)[package]
    assert (finding.status, finding.fatal) == (status, fatal)


def test_check_raises_with_the_pip_command(monkeypatch):
    monkeypatch.setattr(
        compat, "installed_versions", lambda: TESTED | {"apache-tvm-ffi": "0.1.15.post2"}
    )
    monkeypatch.delenv(compat.GUARD_VARIABLE, raising=False)
    with pytest.raises(EnvironmentFault, match=r"apache-tvm-ffi 0\.1\.15\.post2") as caught:
        compat.check()
    assert caught.value.hint == 'pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'
    assert caught.value.exit_code == 4


def test_guard_can_be_turned_into_a_warning(monkeypatch):
    monkeypatch.setattr(compat, "installed_versions", lambda: TESTED | {"apache-tvm": "0.26.0"})
    monkeypatch.setenv(compat.GUARD_VARIABLE, "off")
    with pytest.warns(RuntimeWarning, match=r"apache-tvm 0\.26\.0"):
        compat.check()


def test_require_names_every_missing_package(monkeypatch):
    monkeypatch.setattr(
        compat, "installed_versions", lambda: TESTED | {"torch": None, "onnx": "1.2"}
    )
    compat.require("numpy")
    with pytest.raises(EnvironmentFault, match="torch is not installed") as caught:
        compat.require("torch", "onnx")
    assert caught.value.hint == 'pip install "onnx>=1.16" "torch>=2.6"'


@pytest.mark.parametrize(
    ("version", "specifier", "fits"),
    [
        ("0.1.14.post1", ">=0.1.14.post0,<0.1.15", True),
        ("0.1.15", ">=0.1.14.post0,<0.1.15", False),
        ("0.1.15rc1", "<0.1.15", False),
        ("0.1.15.post2", "==0.1.15.*", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.14.0.dev20260101", ">=2.6", True),
        ("unknown", ">=0", False),
    ],
)
def test_matches(version, specifier, fits):
    assert compat.matches(version, specifier) is fits


def test_importing_stays_light():
    """No heavy package may come along with ``import uif_tvm`` (the guard included)."""
    code = (
        "import sys, uif_tvm; "
        "print(sorted({'tvm', 'torch', 'onnx', 'numpy', 'rich', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
