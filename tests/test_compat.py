"""The version guard: verdicts, messages, ordering of versions, and what importing costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

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


parts = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda p: ".".join(map(str, p)))
suffixes = st.sampled_from(
    ["", "rc1", "a2", "b0", ".post0", ".post2", ".dev3", "rc1.dev2", ".post1.dev4"]
)
versions = st.builds("{}{}".format, parts, suffixes)
operators = st.sampled_from(["==", ">=", "<"])


@given(versions, operators, versions)
def test_matches_agrees_with_packaging(version, operator, bound):
    expected = SpecifierSet(operator + bound).contains(version, prereleases=True)
    assert compat.matches(version, operator + bound) == expected


@given(versions, parts)
def test_prefix_matches_agree_with_packaging(version, prefix):
    spec = f"=={prefix}.*"
    assert compat.matches(version, spec) == SpecifierSet(spec).contains(version, prereleases=True)


@given(parts, suffixes, suffixes, operators)
def test_neighbours_of_one_release_agree_with_packaging(release, mine, theirs, operator):
    spec = f"{operator}{release}{theirs}"
    expected = SpecifierSet(spec).contains(release + mine, prereleases=True)
    assert compat.matches(release + mine, spec) == expected


def test_importing_stays_light():
    """No heavy package may come along with ``import uif_tvm`` (the guard included)."""
    code = (
        "import sys, uif_tvm; "
        "print(sorted({'tvm', 'torch', 'onnx', 'numpy', 'rich', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
