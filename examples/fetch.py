"""Trained models out of pinned wheels on the package index: nothing is installed, nothing is run.

Used by the examples and by ``make corpus``. Models are kept in ``~/.cache/uif-corpus`` (or
``UIF_CORPUS_DIR``), and checked against their SHA-256 every time.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class WheelFile:
    """A file inside a wheel: ``package==version``, its path in there, and its SHA-256."""

    package: str
    version: str
    file: str
    sha256: str


OCR = WheelFile(
    "rapidocr-onnxruntime",
    "1.4.4",
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
)
FILE_TYPES = WheelFile(
    "magika",
    "1.0.3",
    "magika/models/standard_v3_3/model.onnx",
    "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
)


def cache_folder() -> Path:
    """Where fetched models are kept."""
    return Path(os.environ.get("UIF_CORPUS_DIR") or Path.home() / ".cache" / "uif-corpus")


def fetch(wanted: WheelFile) -> Path:
    """The file on this disk, downloaded on first use; files beside it in the wheel come along.

    Raises:
        SystemExit: the download failed, or the file is not the one that was pinned.
    """
    home = cache_folder() / wanted.package
    path = home / wanted.file
    if not path.exists():
        print(f"fetching {wanted.package} {wanted.version} ...", file=sys.stderr)
        folder = PurePosixPath(wanted.file).parent
        with zipfile.ZipFile(_wheel(wanted)) as wheel:
            for name in wheel.namelist():
                if PurePosixPath(name).parent == folder:
                    wheel.extract(name, home)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != wanted.sha256:
        raise SystemExit(f"{path} has SHA-256 {digest}, expected {wanted.sha256}; delete it")
    return path


def _wheel(wanted: WheelFile) -> Path:
    wheels = cache_folder() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    stem = f"{wanted.package.replace('-', '_')}-{wanted.version}-".lower()
    for wheel in wheels.glob("*.whl"):
        if wheel.name.lower().startswith(stem):
            return wheel
    pinned = f"{wanted.package}=={wanted.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=wheels) as fresh:
        done = subprocess.run(
            [*command, "--no-deps", "--only-binary=:all:", "--dest", fresh, pinned], check=False
        )
        found = list(Path(fresh).glob("*.whl"))
        if done.returncode != 0 or not found:
            raise SystemExit(f"cannot download {pinned}; is the package index reachable?")
        return found[0].rename(wheels / found[0].name)
