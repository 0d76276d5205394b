"""Loading libraries that are on no disk: right code, nothing left behind, typed failures."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.artifact.forge import make_payload, write_sample
from uif_tvm.artifact import library as module
from uif_tvm.artifact import materialise_library, open_artifact
from uif_tvm.errors import ArtifactIOError

X = np.array([1, 2, 3, 4], np.float32)
W = np.array([10, 20, 30, 40], np.float32)


def _compile(operator: str, folder: Path) -> bytes:
    """A library whose ``main(x, (w,))`` applies ``operator`` to two vectors of four floats."""
    import tvm
    from tvm import relax

    vector = relax.TensorType((4,), "float32")
    x, w = relax.Var("x", vector), relax.Var("w", relax.TupleType([vector]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit(getattr(relax.op, operator)(x, relax.TupleGetItem(w, 0)))
            result = builder.emit_output(out)
        builder.emit_func_output(result)
    path = folder / f"{operator}.so"
    tvm.compile(builder.get(), target="llvm").export_library(str(path))
    return path.read_bytes()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("libraries")
    return {operator: _compile(operator, folder) for operator in ("add", "multiply")}


@pytest.fixture
def temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture(params=["memory", "folder"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    return str(request.param)


def load_library(data: bytes) -> Any:
    """TVM's module for a library's bytes."""
    # Registers the readers that the library's embedded modules need.
    import tvm  # noqa: F401
    import tvm_ffi

    with materialise_library(data) as path:
        return tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")


def call(library: Any, weight: Any = W) -> np.ndarray:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(library, tvm.cpu())
    weights = tvm.runtime.convert([tvm.runtime.tensor(weight)])
    return machine["main"](tvm.runtime.tensor(X), weights).numpy()


@pytest.mark.usefixtures("way")
def test_the_right_code_runs_and_nothing_is_left(
    libraries: dict[str, bytes], temp_folder: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loaded = {name: load_library(data) for name, data in libraries.items()}
    assert os.listdir(temp_folder) == []
    assert len(os.listdir("/proc/self/fd")) == before
    # The loader confuses libraries of one name; the second would then be the first.
    assert np.array_equal(call(loaded["multiply"]), X * W)
    assert np.array_equal(call(loaded["add"]), X + W)


def test_many_loads_of_many_libraries_stay_apart(libraries: dict[str, bytes]) -> None:
    alive = []
    for turn in range(40):
        name = ("add", "multiply")[turn % 3 % 2]
        alive.append((name, load_library(libraries[name])))
    for name, library in alive:
        assert np.array_equal(call(library), X + W if name == "add" else X * W)


def test_a_library_is_unloaded_with_its_module(libraries: dict[str, bytes]) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("uif-library")

    gc.collect()
    before = mapped()
    loaded = load_library(libraries["add"])
    assert mapped() > before
    del loaded
    gc.collect()
    assert mapped() == before


def test_an_engine_runs_on_the_mapped_weights(libraries: dict[str, bytes], tmp_path: Path) -> None:
    """From the file to the result: the kernel reads the weight where the file is mapped."""
    import tvm
    import tvm_ffi
    from tvm import relax

    payload = make_payload(library=libraries["add"], weights={"w": W})
    with open_artifact(write_sample(tmp_path / "a.uif", payload)) as artifact:
        section = artifact.select()
        weights = [artifact.weight(name) for name in section.weights]
        loaded = load_library(artifact.library(section))
    tensors = [
        tvm_ffi.from_dlpack(weight.__dlpack__(max_version=(1, 0)), require_alignment=64)
        for weight in weights
    ]
    assert np.shares_memory(np.from_dlpack(tensors[0]), weights[0])
    machine = relax.VirtualMachine(loaded, tvm.cpu())
    del artifact, weights
    gc.collect()
    out = machine[section.entry](tvm.runtime.tensor(X), tvm.runtime.convert(tensors))
    assert np.array_equal(out.numpy(), X + W)


def test_paths_hold_the_bytes_and_never_repeat(way: str) -> None:
    seen = set()
    for turn in range(300):
        with materialise_library(b"%d" % turn) as path:
            assert Path(path).read_bytes() == b"%d" % turn
            assert path.startswith("/proc/self/fd/") == (way == "memory")
            assert len(path) < 200
            seen.add(path)
        assert not os.path.exists(path)
    assert len(seen) == 300


def test_spellings_are_distinct() -> None:
    assert len({module._spelling(serial) for serial in range(1, 5000)}) == 4999
    assert len(module._spelling(2**40)) < 100


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory files on this system")
def test_nobody_can_change_the_code_under_the_loader() -> None:
    with materialise_library(b"code") as path:
        with open(path, "r+b", buffering=0) as file, pytest.raises(PermissionError):
            file.write(b"evil")
        with pytest.raises(PermissionError):
            os.truncate(path, 0)
        assert Path(path).read_bytes() == b"code"


@pytest.mark.usefixtures("way")
def test_the_folder_is_private_and_goes_after_an_error(temp_folder: Path) -> None:
    def fail() -> None:
        with materialise_library(b"x"):
            for entry in temp_folder.iterdir():
                assert entry.stat().st_mode & 0o077 == 0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(temp_folder) == []


def test_no_room_is_a_typed_error(temp_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArtifactIOError, match="No space left"), materialise_library(b"x"):
        pass
    assert os.listdir(temp_folder) == []


def test_nothing_is_left_by_a_killed_process(temp_folder: Path) -> None:
    code = (
        "import time\n"
        "from uif_tvm.artifact import materialise_library\n"
        "with materialise_library(b'x' * 9999) as path:\n"
        "    print(path, flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline().startswith(b"/proc/self/fd/")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert os.listdir(temp_folder) == []
