"""The walls of the house: who imports whom, and that the framework names no chip."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

#: Folders that are installed inside ``uif_tvm``.
OUTER = ("targets", "schedules", "relay_passes", "tuning_logs")

#: Where chips may not be named. ``targets/`` and ``schedules/`` are where they may.
FRAMEWORK = ("uif_tvm", "relay_passes", "tuning_logs")

#: Instruction sets, vendors, and vendors' software. Whole words, also as parts of identifiers.
CHIPS = """
    x86 x64 i686 sse sse2 sse4 avx avx2 avx512 amx vnni zmm ymm xmm arm armv7 armv8 armv9
    aarch64 neon sve sme dotprod cortex riscv riscv64 rvv loongarch lasx lsx mips powerpc
    altivec vsx intel amd epyc xeon zen nvidia apple qualcomm hexagon adreno mali huawei
    ascend cambricon kunlun biren mthreads hygon iluvatar metax enflame rockchip horizon cuda
    cudnn cublas ptx nvptx wmma rocm hip amdgcn metal opencl vulkan spirv oneapi onednn mkl
    tensorrt cutlass
"""
NAMED = re.compile(rf"(?<![a-z0-9])({'|'.join(CHIPS.split())})(?![a-z0-9])", re.IGNORECASE)


def framework_files() -> list[Path]:
    """Every source file of the framework."""
    kinds = (".py", ".md", ".cc", ".json", ".toml")
    return sorted(
        path
        for folder in FRAMEWORK
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    )


def test_the_framework_names_no_chip():
    files = framework_files()
    assert len(files) > 30, "the search looks in the wrong place"
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group(1)!r} in {line.strip()[:90]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in NAMED.finditer(line)
    ]
    found += [str(path.relative_to(ROOT)) for path in files if NAMED.search(path.stem)]
    assert not found, "chips named outside targets/ and schedules/:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("use AVX512 here", True),
        ("_x86_only", True),
        ('kind == "cuda"', True),
        ("harmless, alarm, zenith, amended", False),
        ("metallic cudabra", False),
    ],
)
def test_the_search_finds_names_and_only_names(text, named):
    assert bool(NAMED.search(text)) is named


def test_imports_point_one_way(tmp_path):
    """The contracts of ``[tool.importlinter]``, over the layout as it is installed."""
    tree = tmp_path / "uif_tvm"
    for inside, folder in {"": "uif_tvm", **{name: name for name in OUTER}}.items():
        for path in (ROOT / folder).rglob("*.py"):
            link = tree / inside / path.relative_to(ROOT / folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", lint, "--no-cache", "--no-logo", str(ROOT / "pyproject.toml")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_every_package_is_installed(monkeypatch):
    """``setup.py`` finds packages instead of listing them, the four outer folders included."""
    import setuptools

    said: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **kwargs: said.update(kwargs))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    places = {"": "uif_tvm", **{f".{name}": name for name in OUTER}}
    expected = {
        f"uif_tvm{inside}" + "".join(f".{part}" for part in init.parent.relative_to(folder).parts)
        for inside, folder in places.items()
        for init in Path(folder).rglob("__init__.py")
    }
    assert set(said["packages"]) == expected
    assert {f"uif_tvm.{name}" for name in OUTER} <= expected


def test_test_folders_are_packages():
    """Else two files of one name collide, and a folder called ``onnx`` hides the package."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    ancestors = {
        parent for folder in folders for parent in (folder, *folder.parents)
        if parent.is_relative_to(ROOT / "tests")
    }  # fmt: skip
    missing = [str(a.relative_to(ROOT)) for a in ancestors if not (a / "__init__.py").exists()]
    assert not missing, missing


def test_the_old_ir_is_named_in_a_folder_name_only():
    word = re.compile("re" + "lay(?!_passes)", re.IGNORECASE)
    folders = (*FRAMEWORK, "targets", "schedules", "examples")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:90]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert not found, "\n".join(found)
