"""The wheel has everything in it, and works where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("uif_tvm", "targets", "schedules", "relay_passes", "tuning_logs")
FILES = (
    "pyproject.toml", "setup.py", "README.md", "LICENSE", "uif.py", "uif_command.py"
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy, as building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    copy.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(folder), str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_every_source_file_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in SOURCES:
        inside = "uif_tvm" if folder == "uif_tvm" else f"uif_tvm/{folder}"
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cc", ".md", ".json", ".jsonl", ".toml"):
                assert f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" in names
    assert {"uif.py", "uif_command.py"} <= names
    assert not any(name.startswith(("tests/", "examples/")) for name in names)


def test_the_wheel_works_where_it_is_installed(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = (
        "import uif, uif_tvm.targets\n"
        "from uif_tvm.target.registry import list_targets\n"
        "print(uif.__file__, uif_tvm.targets.__file__)\n"
        "print(*(f'{e.id} {e.error}' for e in list_targets() if e.error))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    places, broken = done.stdout.splitlines()
    assert all(place.startswith(str(tmp_path)) for place in places.split())
    assert broken == ""
    command = subprocess.run(
        [sys.executable, "-c", "import uif_command; uif_command.main()", "targets", "list"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert command.returncode == 0, command.stderr
    assert "cpu" in command.stdout
