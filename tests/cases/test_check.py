"""The runner on a small registry of its own; a sample of the cases; the guards themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from tests.cases import check, guards, run_one

ROOT = Path(__file__).parents[2]
#: Every so many of our cases run with the other tests; ``make cases`` runs all of them.
STRIDE = 9

REGISTRY = """
    import os
    import numpy as np
    from onnx import helper, TensorProto
    import caselib

    def case(id, kind, **more):
        return dict(id=id, kind=kind, area="x", source="", title=id, tol=(1e-4, 1e-5), **more)

    def onnx(op, factor):
        def build():
            value = helper.make_tensor_value_info
            graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g",
                [value("x", TensorProto.FLOAT, ["n"])], [value("y", TensorProto.FLOAT, ["n"])])
            x = np.ones(3, np.float32)
            return (helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
                    {"x": x}, [np.float32(factor) * x])
        return build

    R = [
        case("good", "onnx", build=onnx("Neg", -1)),
        case("off", "onnx", build=onnx("Neg", caselib.TWO)),
        case("strange", "onnx", build=onnx("Nope", 1)),
        case("broken", "onnx", build=lambda: 1 / 0),
        case("crash", "onnx", build=lambda: os._exit(3)),
        case("probe", "script", build=None, run=lambda: ""),
        case("unanswered", "script", build=None, run=lambda: "fails"),
        case("answered", "script", build=None, run=lambda: os._exit(7)) | {"area": "tuning-db"},
    ]
"""


def test_statuses(tmp_path):
    """Right, wrong, refused, broken and crashing cases are one row each."""
    (tmp_path / "caselib.py").write_text("TWO = 2\n")
    (tmp_path / "some_cases.py").write_text(dedent(REGISTRY))
    (tmp_path / "no_registry.py").write_text("raise SystemExit('must not be imported')\n")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.cases.check", "--cases", str(tmp_path), "--levels", "0",
         "--report", str(report)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    body = json.loads(report.read_text())
    rows = {row["id"]: row for row in body["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "good": "right",
        "off": "wrong",
        "strange": "refused",
        "broken": "error",
        "crash": "crash",
        "probe": "right",
        "unanswered": "wrong",
        "answered": "guarded",
    }
    assert "Nope" in rows["strange"]["message"]
    assert "exit code 3" in rows["crash"]["message"]
    assert "cache" in rows["answered"]["guard"]
    assert (body["right"], body["total"]) == (3, 8)
    assert body["summary"]["right"] == 3


def test_a_hang_is_a_row(tmp_path):
    (tmp_path / "slow_cases.py").write_text(
        "import time\nR = [dict(id='slow', kind='script', area='x', tol=None,"
        " run=lambda: time.sleep(600))]\n"
    )
    row = check.isolated(tmp_path, "slow_cases", "slow", [0], timeout=3)
    assert row["status"] == "timeout"


@pytest.mark.parametrize("guard", guards.GUARDS, ids=lambda guard: guard.areas[0])
def test_guards_hold(guard):
    assert guard.shown() == ""


def test_a_failing_guard_is_no_answer():
    guard = guards.Guard(("x",), "text", lambda: "does not hold")
    assert guard.answer("reason")["status"] == "wrong"
    assert guards.Guard(("x",), "text", lambda: str(1 / 0)).answer("r")["status"] == "wrong"


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.nan, 1.0], [0.0, 1.0], False),
        ([1, 2], [1.0, 2.0], False),
        ([[1.0]], [1.0], False),
        ([np.inf], [3e38], False),
    ],
)
def test_differences(ours, theirs, same):
    found = run_one.difference([np.array(ours)], [np.array(theirs)], (1e-4, 1e-5))
    assert (found is None) is same
    assert run_one.difference([], [np.zeros(1)], (0, 0))


CASES = [
    (module, case["id"])
    for module, case in check.listed(check.HERE)
    if case["kind"] in ("onnx", "torch", "relax")
]


def test_ids_are_unique():
    ids = [name for _, name in CASES]
    assert len(set(ids)) == len(ids) > 200


@pytest.mark.parametrize(("module", "name"), CASES[::STRIDE])
def test_sample(module, name):
    case = run_one.find_case(check.HERE, module, name)
    row = run_one.run_case(case, [2])
    assert row["status"] in run_one.RIGHT, row
