"""The script of a reproducer fails as long as the fault is there, and ends well without it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.selection import onnx_models as models
from tests.selection.coverage.test_capture_onnx import taken_apart
from uif_tvm.errors import ArtifactIOError
from uif_tvm.selection.arrays import load_arrays, save_arrays
from uif_tvm.selection.coverage.capture_torch import capture
from uif_tvm.selection.coverage.instance import OpInstance
from uif_tvm.selection.coverage.report import Result
from uif_tvm.selection.coverage.reproduce import write_reproducer


def run(place):
    return subprocess.run(
        [sys.executable, place / "repro.py"], capture_output=True, text=True, check=False
    )


@pytest.fixture
def softmax(tmp_path):
    found, _ = taken_apart(models.classifier(), tmp_path)
    (instance,) = found["Softmax"]
    reason = 'output 0: """quoted""" \\ and more'
    return Result(instance, "failed", "numeric", reason), tmp_path / "instances" / instance.digest


def test_right_and_wrong(softmax, tmp_path):
    result, source = softmax
    place = write_reproducer(result, source, tmp_path / "out", "cpu", 2)
    assert place.name == f"Softmax-{result.instance.digest}"
    done = run(place)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "right"), done.stderr
    expected = load_arrays(place / "expected.npz")
    save_arrays(place / "expected.npz", {n: a + np.float32(0.1) for n, a in expected.items()})
    done = run(place)
    assert done.returncode != 0
    assert "Not equal to tolerance" in done.stderr


def test_a_program_of_pytorch(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x, y):
            return torch.sub(x, y)  # the order of inputs matters

    example = (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16))
    torch.export.save(torch.export.export(Net(), example), tmp_path / "m.pt2")
    answer = capture(str(tmp_path / "m.pt2"), None, str(tmp_path / "instances"), [])
    (data,) = answer["instances"]
    result = Result(OpInstance.from_json(data), "failed", "numeric", "made up")
    source = tmp_path / "instances" / data["digest"]
    done = run(write_reproducer(result, source, tmp_path / "out", "cpu", 2))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "right"), done.stderr


def test_a_folder_that_cannot_be_written(softmax, tmp_path):
    result, source = softmax
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactIOError, match="cannot write the reproducer"):
        write_reproducer(result, source, tmp_path / "file", "cpu", 2)


def test_reproducers_need_nothing_of_ours_beside_them(softmax, tmp_path):
    result, source = softmax
    place = write_reproducer(result, source, tmp_path / "out", "cpu", 2)
    moved = shutil.move(place, tmp_path / "elsewhere")
    names = sorted(item.name for item in (tmp_path / "elsewhere").iterdir())
    assert names == ["about.json", "expected.npz", "inputs.npz", "model.onnx", "repro.py"]
    assert run(tmp_path / "elsewhere").returncode == 0, moved
