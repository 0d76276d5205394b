"""The frontend is chosen by what the model is, without importing what it is not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper

from uif_tvm.errors import EnvironmentFault, UsageError
from uif_tvm.frontends import detect
from uif_tvm.frontends.detect import import_model, model_kind, model_name

PROTO = helper.make_model(helper.make_graph([], "my graph", [], []))


class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1


class Deeper(Net):
    pass


PROGRAM = torch.export.export(Net(), (torch.ones(2),))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (PROTO, "onnx"),
        ("a/b.onnx", "onnx"),
        (Path("a/B.ONNX"), "onnx"),
        ("b.pt2", "torch"),
        (Net(), "torch"),
        (Deeper(), "torch"),
        (torch.nn.Linear(1, 1), "torch"),
        (PROGRAM, "torch"),
    ],
)
def test_kinds(model, kind):
    assert model_kind(model) == kind


class Module:
    """Called like theirs, but of another package."""


class ExportedProgram:
    """Likewise."""


class ModelProto:
    """Likewise."""


@pytest.mark.parametrize(
    "model", [None, 1, b"onnx", Module(), ExportedProgram(), ModelProto(), Net, torch.ones(1), []]
)
def test_what_is_no_model(model):
    with pytest.raises(UsageError) as caught:
        model_kind(model)
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    assert f"cannot export a {name}" in str(caught.value)
    assert caught.value.hint == f"pass {detect.ACCEPTED}"


@pytest.mark.parametrize(("path", "said"), [("m", "missing"), ("m.pt", r"\.pt"), ("", "missing")])
def test_unknown_suffixes(path, said):
    with pytest.raises(UsageError, match=f"its suffix is '{said}'"):
        model_kind(path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (PROTO, "my graph"),
        ("a/b.onnx", "b"),
        (Path("x.tar.pt2"), "x.tar"),
        (Net(), "Net"),
        (PROGRAM, "ExportedProgram"),
        (torch.fx.symbolic_trace(Net()), "Net"),
    ],
)
def test_names(model, name):
    assert model_name(model) == name


def test_empty_graph_name_gives_the_class():
    assert model_name(helper.make_model(helper.make_graph([], "", [], []))) == "ModelProto"


def test_choosing_imports_neither_framework():
    script = """
import sys
from uif_tvm.frontends.detect import model_kind, model_name
model_kind("a.onnx"), model_kind("a.pt2"), model_name("a.pt2")
assert not {"onnx", "torch", "tvm", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(("suffix", "module"), [("onnx", "onnx"), ("pt2", "torch")])
def test_missing_framework_is_named(monkeypatch, suffix, module):
    frontend = f"uif_tvm.frontends.{'onnx' if suffix == 'onnx' else 'torch'}"
    for name in [n for n in sys.modules if n == frontend or n.startswith(frontend + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentFault, match=f"needs the package {module}") as caught:
        import_model(f"m.{suffix}", None)
    assert caught.value.hint == f"pip install 'uif[{module}]'"
    assert caught.value.stage == "import"


def test_other_missing_modules_are_our_own_mistake(monkeypatch):
    frontend = importlib.import_module("uif_tvm.frontends.onnx")

    def fail(*_args, **_options):
        raise ModuleNotFoundError("No module named 'numpyy'", name="numpyy")

    monkeypatch.setattr(frontend, "import_onnx", fail)
    with pytest.raises(ModuleNotFoundError, match="numpyy"):
        import_model("m.onnx", None)


def test_proto_is_really_onnx():
    assert isinstance(PROTO, onnx.ModelProto)
