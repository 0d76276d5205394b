"""Files that are hostile or damaged: refused with a typed error, and nothing outside is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.onnx.harness import execute
from tests.frontends.onnx.small_models import F32, build, perceptron
from uif_tvm.errors import ImportModelError
from uif_tvm.frontends.onnx import import_onnx

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def external(folder: Path, **entries: str) -> Path:
    """A model whose one weight lies in a file beside it, with the given entries."""
    from onnx import TensorProto, helper

    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (F32, [2, 4])}, ["y"])
    weight = model.graph.initializer.add()
    weight.name, weight.data_type, weight.data_location = "w", F32, TensorProto.EXTERNAL
    weight.dims.extend(WEIGHT.shape)
    for key, value in entries.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    path = external(tmp_path, location="w.bin", offset="8", length="48")
    (tmp_path / "w.bin").write_bytes(bytes(8) + WEIGHT.tobytes())
    x = np.ones((2, 4), np.float32)
    (y,) = execute(import_onnx(path), {"x": x})
    np.testing.assert_allclose(y, x @ WEIGHT)


def test_large_external_data_is_mapped(tmp_path: Path) -> None:
    from onnx import TensorProto

    from uif_tvm.frontends.onnx.tensors import to_numpy

    data = np.arange(1 << 19, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(data.tobytes())
    tensor = TensorProto(name="w", data_type=F32, dims=[1 << 19])
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "w.bin"
    array = to_numpy(tensor, tmp_path.resolve())
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, data)


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "/etc/hostname", "a/../../secret.bin", "", "link.bin", "hard.bin",
     "dir/w.bin", "missing.bin", "..\\secret.bin", "C:/secret.bin", "sub", "a\0b"],
)  # fmt: skip
def test_locations_outside_the_folder(tmp_path: Path, location: str) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "model"
    path = external(folder, location=location)
    (folder / "sub").mkdir()
    os.symlink(secret, folder / "link.bin")
    os.link(secret, folder / "hard.bin")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(WEIGHT.tobytes())
    os.symlink(outside, folder / "dir")
    with pytest.raises(ImportModelError, match="external data"):
        import_onnx(path)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "4"},
        {"offset": "-4"},
        {"length": "44"},
        {"length": "99999999999"},
        {"offset": "many"},
        {"offset": str(2**70)},
    ],
)
def test_ranges_outside_the_file(tmp_path: Path, entries: dict[str, str]) -> None:
    path = external(tmp_path, location="w.bin", **entries)
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(ImportModelError, match="'w'"):
        import_onnx(path)


def test_external_data_of_a_model_without_a_file() -> None:
    from onnx import TensorProto

    model, inputs = perceptron()
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ImportModelError, match="not read from a file"):
        import_onnx(model, inputs)


@pytest.mark.parametrize("dims", [[2**40, 2**40], [-1, 3], [4, 4]])
def test_sizes_are_checked_before_anything_is_allocated(dims: list[int]) -> None:
    model, inputs = perceptron()
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(ImportModelError):
        import_onnx(model, inputs)


def test_not_a_model(tmp_path: Path) -> None:
    for content in (b"", b"\x00" * 64, b"PK\x03\x04not onnx", os.urandom(2000)):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        with pytest.raises(ImportModelError):
            import_onnx(path)
    for missing in (tmp_path / "nothing.onnx", tmp_path, 7):
        with pytest.raises(ImportModelError):
            import_onnx(missing)


def test_names_of_inputs_and_outputs_are_kept() -> None:
    from onnx import helper

    odd = "in put:0/ä"
    node = helper.make_node("Neg", [odd], ['{"label": 3}'])
    imported = import_onnx(build([node], {odd: (F32, [2])}, ['{"label": 3}']))
    assert [spec.name for spec in imported.signature.inputs] == [odd]
    assert [spec.name for spec in imported.signature.outputs] == ['{"label": 3}']


def test_inputs_shadowed_by_weights_are_no_inputs() -> None:
    from onnx import helper

    weights: dict[str, Any] = {"w": WEIGHT}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = {"x": (F32, [2, 4]), "w": (F32, [4, 3]), "unused": (F32, [1])}
    imported = import_onnx(build(nodes, inputs, ["y"], weights))
    assert [spec.name for spec in imported.signature.inputs] == ["x", "unused"]
