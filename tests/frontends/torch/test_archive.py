"""``.pt2`` files: what PyTorch writes loads, what is damaged or hostile is refused untouched."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.frontends.torch.running import run
from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.torch import import_torch
from uif_tvm.frontends.torch.archive import load_archive

Edit = Callable[[str, bytes], bytes]


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("offset", torch.tensor([1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.offset + torch.arange(2)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: torch.nn.Module) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "small.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (torch.zeros(4, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def rewritten(saved: Path, edit: Edit, extra: dict[str, bytes] | None = None) -> Path:
    """The archive with every member passed through ``edit``, and more members."""
    result = saved.parent / "edited.pt2"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(result, "w") as new:
        root = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            new.writestr(name, edit(name, old.read(name)))
        for name, content in (extra or {}).items():
            new.writestr(name.replace("ROOT", root), content)
    return result


def same(name: str, content: bytes) -> bytes:
    return content


def replaced(old: str, new: str) -> Edit:
    """Replace text in the program's JSON."""

    def edit(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        assert old.encode() in content
        return content.replace(old.encode(), new.encode())

    return edit


def test_saved_program_loads_and_runs(saved: Path, model: torch.nn.Module) -> None:
    imported = import_torch(saved)
    assert imported.signature.inputs[0].shape[1] == 3
    assert isinstance(imported.signature.inputs[0].shape[0], str)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(imported.mod, [x])[0], want, rtol=1e-5, atol=1e-6)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="cannot read"):
        import_torch(tmp_path / "none.pt2")
    path = tmp_path / "text.pt2"
    path.write_text("no archive")
    with pytest.raises(ImportModelError, match=r"text\.pt2: not a \.pt2 archive"):
        import_torch(path)


def test_every_truncation_is_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "short.pt2"
    for length in range(0, len(data) - 1, max(1, len(data) // 60)):
        path.write_bytes(data[:length])
        with pytest.raises(ImportModelError):
            load_archive(path)


def test_flipped_bits_are_refused_or_harmless(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "flipped.pt2"
    random = np.random.default_rng(1)
    weights = load_archive(saved).state_dict
    for position in random.integers(0, len(data), 60):
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            program = load_archive(path)
        except ImportModelError:
            continue
        for name, tensor in weights.items():
            assert torch.equal(program.state_dict[name], tensor)


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/weights/model.pt"])
def test_pickles_with_code_are_refused(saved: Path, tmp_path: Path, member: str) -> None:
    mark = tmp_path / "mark"
    buffer = io.BytesIO()
    torch.save(((Bomb(mark),), {}), buffer)

    def edit(name: str, content: bytes) -> bytes:
        return buffer.getvalue() if name.endswith(member) else content

    extra = {} if "sample" in member else {f"ROOT/{member}": buffer.getvalue()}
    with pytest.raises(ImportModelError, match="more than tensors") as caught:
        load_archive(rewritten(saved, edit, extra))
    assert caught.value.code == "UIF-IMPORT-UNSAFE"
    assert not mark.exists()


def test_pickled_weight_is_refused(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def edit(name: str, content: bytes) -> bytes:
        if name.endswith("model_weights_config.json"):
            config = json.loads(content)
            config["config"]["linear.weight"]["use_pickle"] = True
            return json.dumps(config).encode()
        return pickle.dumps(Bomb(mark)) if name.endswith("weight_0") else content

    with pytest.raises(ImportModelError, match="pickled tensors"):
        load_archive(rewritten(saved, edit))
    assert not mark.exists()


@pytest.mark.parametrize(
    "member",
    ["data/constants/opaque_obj_0", "data/constants/custom_obj_0", "data/aotinductor/model/a.so"],
)
def test_objects_and_native_code_are_refused(saved: Path, member: str) -> None:
    with pytest.raises(ImportModelError) as caught:
        load_archive(rewritten(saved, same, {f"ROOT/{member}": b"x"}))
    assert caught.value.code == "UIF-IMPORT-UNSAFE"


def test_expressions_that_run_code_are_refused(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with zipfile.ZipFile(saved) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        text = archive.read(name).decode()
    symbol = text.split('"expr_str": "', 1)[1].split('"', 1)[0]
    for code in (f"open('{mark}', 'w')", "().__class__", "Symbol('s0').func", "lambda: 0"):
        with pytest.raises(ImportModelError, match="not plain arithmetic"):
            load_archive(rewritten(saved, replaced(symbol, code)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "target",
    ["torch.os.system", "torch.ops.aten.__class__.default", "_operator.attrgetter", "math.os",
     "torch.hub.load", "torch.ops.load_library"],
)  # fmt: skip
def test_targets_that_are_no_operators_are_refused(saved: Path, target: str) -> None:
    with pytest.raises(ImportModelError, match="not a PyTorch operator"):
        load_archive(rewritten(saved, replaced("torch.ops.aten.linear.default", target)))


@pytest.mark.parametrize("name", ["../outside", "/absolute", "ROOT/../../x", "a\\..\\b"])
def test_paths_that_leave_the_archive_are_refused(saved: Path, name: str) -> None:
    with pytest.raises(ImportModelError, match="outside the archive"):
        load_archive(rewritten(saved, same, {name: b"x"}))


def test_archive_bombs_and_repeated_names_are_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/weights/weight_0", bytes(1 << 22))
    with pytest.raises(ImportModelError, match="unpacks to"):
        load_archive(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/x", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a/x", b"2")
    with pytest.raises(ImportModelError, match="one name"):
        load_archive(path)


@pytest.mark.parametrize("kind", ["checkpoint", "script"])
def test_other_files_of_pytorch_are_told_apart_in_one_line(
    tmp_path: Path, model: torch.nn.Module, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt2"
    if kind == "checkpoint":
        torch.save(model.state_dict(), path)
    else:
        torch.jit.trace(model, torch.zeros(4, 3)).save(path)
    capfd.readouterr()
    with pytest.raises(ImportModelError, match=r"not written by torch\.export\.save") as caught:
        import_torch(path)
    assert "\n" not in caught.value.message
    assert ("TorchScript" in caught.value.message) == (kind == "script")
    assert capfd.readouterr().err == ""
