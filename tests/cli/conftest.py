"""Small ONNX models, and one compiled file that the CLI tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from uif_tvm.cli import main as entry

#: Names are free text: this one would leave the folder, and needs quoting besides.
WILD_NAME = '../{"class": 1}/ü'


def save_linear(path: Path, batch: int | str = 2) -> Path:
    """``y = relu(x @ w + b)`` with x float32[batch, 4]; also returns x unchanged as WILD_NAME."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(3).astype(np.float32), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="product"),
        helper.make_node("Add", ["xw", "b"], ["sum"], name="bias"),
        helper.make_node("Relu", ["sum"], ["y"], name="rectify"),
        helper.make_node("Neg", ["y"], [WILD_NAME], name="negate"),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3]),
            helper.make_tensor_value_info(WILD_NAME, TensorProto.FLOAT, [batch, 3]),
        ],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def invoke(*args: str | Path) -> Result:
    """Run the command line in this process, through the same error handling as the command."""
    import click

    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def through(arguments: tuple[str, ...]) -> None:
        entry.main(list(arguments))

    return CliRunner().invoke(through, [str(arg) for arg in args])


def command(*args: str | Path, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run the ``uif`` command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "import uif_command; uif_command.main()", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **kwargs,  # type: ignore[call-overload]
    )


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model with fixed shapes."""
    return save_linear(tmp_path_factory.mktemp("onnx") / "linear.onnx")


@pytest.fixture(scope="session")
def open_linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a batch dimension left open."""
    return save_linear(tmp_path_factory.mktemp("onnx") / "open.onnx", batch="batch")


@pytest.fixture(scope="session")
def compiled(linear: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``linear`` compiled by the command line."""
    path = tmp_path_factory.mktemp("uif") / "linear.uif"
    result = invoke("export", linear, "-o", path)
    assert result.exit_code == 0, result.output
    return path
