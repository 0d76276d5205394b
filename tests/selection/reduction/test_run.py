"""Whole reductions: checks of every kind, bodies opened, files always the smallest so far."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import uif_tvm
from tests.selection import onnx_models as models
from uif_tvm.errors import UsageError
from uif_tvm.selection.arrays import load_arrays
from uif_tvm.selection.isolation import Outcome
from uif_tvm.selection.onnx_node import by_reference
from uif_tvm.selection.reduction.checks import BuiltInCheck, CommandCheck, make_check

HAS = """
import sys, onnx, numpy
model = onnx.load(sys.argv[1])
assert set(numpy.load(sys.argv[2])) == {value.name for value in model.graph.input}
sys.exit(0 if {"Softmax", "Relu"} <= {node.op_type for node in model.graph.node} else 1)
"""


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_an_unsupported_operator_is_all_that_is_left(tmp_path):
    path = models.save(models.classifier(custom=True), tmp_path)
    before = path.read_bytes()
    output = tmp_path / "small.onnx"
    result = uif_tvm.reduce(str(path), output_path=output)
    assert operators(output) == ["Wobble"]
    assert (result.nodes_before, result.nodes, result.complete) == (12, 1, True)
    assert "UIF-IMPORT-UNSUPPORTED" in result.detail
    assert path.read_bytes() == before
    # The sizes are as small as can be, too.
    assert load_arrays(result.inputs)["e"].shape == (1, 1)
    assert sum(step.checks for step in result.steps) == result.checks - 1


def test_a_command_says_what_is_interesting(tmp_path):
    path = models.save(models.classifier(), tmp_path)
    script = tmp_path / "check.py"
    script.write_text(HAS)
    output = tmp_path / "small.onnx"
    command = f"{sys.executable} {script} {{model}} {{inputs}}"
    result = uif_tvm.reduce(str(path), command, output)
    assert sorted(operators(output)) == ["Relu", "Softmax"]
    proto = onnx.load(output)
    onnx.checker.check_model(proto)
    by_reference(proto, load_arrays(result.inputs))


def test_equal_runs_give_equal_files(tmp_path):
    def there(model, inputs):
        return "Softmax" in operators(model)

    files = []
    for name in ("a.onnx", "b.onnx"):
        uif_tvm.reduce(models.classifier(), there, tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_bodies_are_opened_and_reduced(tmp_path):
    def there(model, inputs):
        return any(n.op_type == "Add" for n in every_node(onnx.load(model).graph))

    x = np.ones(4, np.float32)
    uif_tvm.reduce(models.branching(), there, tmp_path / "s.onnx", inputs={"x": x})
    assert operators(tmp_path / "s.onnx") == ["Add"]


def every_node(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from every_node(attribute.g)


def test_wrong_values_keep_the_values_that_show_them(tmp_path):
    """A fault that only real values show: the product of the second MatMul must be large."""

    def there(model, inputs):
        proto = onnx.load(model)
        if "Softmax" not in operators(model):
            return False
        values = by_reference(proto, load_arrays(Path(inputs)))
        return any(np.allclose(value.sum(-1), 1) for value in values if value.ndim == 2)

    result = uif_tvm.reduce(models.classifier(), there, tmp_path / "s.onnx")
    assert result.operators == ["Softmax"]


def test_the_budget_ends_it_with_the_smallest_so_far(tmp_path):
    def there(model, inputs):
        return "Softmax" in operators(model)

    result = uif_tvm.reduce(models.classifier(), there, tmp_path / "s.onnx", budget=0.001)
    assert (result.complete, result.checks) == (False, 1)
    assert operators(tmp_path / "s.onnx") == operators(result.path)
    assert result.nodes == len(result.operators) == 12


def test_a_model_that_is_right_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not show the fault: it runs") as caught:
        uif_tvm.reduce(models.with_function(), output_path=tmp_path / "s.onnx")
    assert caught.value.code == "UIF-REDUCE-RIGHT"
    assert not (tmp_path / "s.onnx").exists()


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("python check.py", "does not say where the model goes"),
        ("'unclosed {model}", "is no command line"),
        ("/no/such/program {model}", "cannot be started"),
        ("uif-wrong:UIF-CODE", "takes no error code"),
    ],
)
def test_checks_that_cannot_be_meant(check, text, tmp_path):
    with pytest.raises(UsageError, match=text):
        uif_tvm.reduce(models.classifier(), check, tmp_path / "s.onnx")


def test_programs_of_pytorch_are_refused_with_a_way_out(tmp_path):
    with pytest.raises(UsageError, match="reduce takes ONNX models") as caught:
        uif_tvm.reduce(str(tmp_path / "m.pt2"))
    assert "uif coverage" in str(caught.value.hint)


def test_the_model_itself_is_never_replaced(tmp_path):
    path = models.save(models.classifier(), tmp_path)
    with pytest.raises(UsageError, match="is the model that is being reduced"):
        uif_tvm.reduce(str(path), output_path=path)


class Canned:
    """A pool that gives prepared answers."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def run(self, task, seconds, **arguments):
        return self.outcomes.pop(0)


RIGHT = Outcome("done", {"verdict": "native"})
WRONG = Outcome("done", {"verdict": "failed", "stage": "numeric", "reason": "off"})
BROKEN = Outcome("done", {"verdict": "failed", "stage": "compile", "code": "A", "reason": "no"})
OTHER = Outcome("done", {"verdict": "failed", "stage": "compile", "code": "B", "reason": "no"})
CRASH = Outcome("crash", {}, "killed")


@pytest.mark.parametrize(
    ("name", "code", "outcome", "there"),
    [
        ("uif-wrong", "", WRONG, True),
        ("uif-wrong", "", BROKEN, False),
        ("uif-wrong", "", RIGHT, False),
        ("export-fails", "", BROKEN, True),
        ("export-fails", "A", BROKEN, True),
        ("export-fails", "A", OTHER, False),
        ("export-fails", "", WRONG, False),
        ("run-fails", "", BROKEN, False),
        ("uif-crashes", "", CRASH, True),
        ("uif-crashes", "", BROKEN, False),
    ],
)
def test_built_in_checks(name, code, outcome, there, tmp_path):
    check = BuiltInCheck(name, code, Canned(outcome), "cpu", 2, 1.0)
    assert check(tmp_path).there is there


def test_the_default_check_stays_with_the_first_fault(tmp_path):
    check = BuiltInCheck("uif-fails", "", Canned(BROKEN, OTHER, CRASH, BROKEN), "cpu", 2, 1.0)
    assert [check(tmp_path).there for _ in range(4)] == [True, False, False, True]


def test_a_command_that_hangs_is_not_interesting(tmp_path):
    check = CommandCheck(f"{sys.executable} -c 'import time; time.sleep(60)' {{model}}", 0.3)
    answer = check(tmp_path)
    assert (answer.there, answer.detail) == (False, "not done in 0.3 s")


def test_built_in_names_win_over_commands():
    assert isinstance(make_check("uif-fails", Canned(), "cpu", 2, 1.0), BuiltInCheck)
    assert isinstance(make_check("export-fails:X", Canned(), "cpu", 2, 1.0), BuiltInCheck)
    assert isinstance(make_check("x {model}", Canned(), "cpu", 2, 1.0), CommandCheck)


def test_one_operand_less_is_tried(tmp_path):
    node = [helper.make_node("Clip", ["x", "low", "high"], ["y"], name="clip")]
    proto = models.model(
        node,
        [models.tensor("x", models.FLOAT, [3])],
        [models.tensor("y", models.FLOAT, [3])],
        [models.constant("low", -1), models.constant("high", 1)],
    )
    uif_tvm.reduce(proto, lambda model, inputs: "Clip" in operators(model), tmp_path / "s.onnx")
    (clip,) = onnx.load(tmp_path / "s.onnx").graph.node
    assert list(clip.input) == ["x"]
