"""Schedule selection: first rule that applies and builds; faults cost speed, not the export."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.models import fake_target
from uif_tvm.compiler.select import select
from uif_tvm.errors import CompileError
from uif_tvm.target.schedule import Scheduled
from uif_tvm.target.spec import Refusal


def rule(name, answer):
    def apply(func, target):
        assert target.id == "fake"
        if isinstance(answer, Exception):
            raise answer
        return answer(func) if callable(answer) else answer

    return SimpleNamespace(name=name, version=1, kind="hand-written", apply=apply)


def pick(*rules, build=lambda func: b"code of " + func):
    return select(b"f", "kernel_1", fake_target(schedules=rules), build)


TAKES = rule("takes", lambda func: Scheduled(b"tiled " + func, "tile 4x4"))


def test_first_that_applies_wins_and_the_rest_is_not_asked():
    chosen = pick(TAKES, rule("never", RuntimeError("asked")))
    assert chosen.rule.name == "takes"
    assert chosen.code == b"code of tiled f"
    assert chosen.scheduled.detail == "tile 4x4"
    assert (chosen.declined, chosen.crashed) == ((), ())


def test_refusals_are_kept_with_their_codes():
    chosen = pick(
        rule("a", Refusal("shape", "n is odd")), rule("b", Refusal("dtype", "f16")), TAKES
    )
    assert chosen.declined == ("a: shape: n is odd", "b: dtype: f16")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ValueError("bad loop"), "x: ValueError: bad loop"),
        (None, "x: TypeError: returned NoneType, not Scheduled or Refusal"),
        (True, "x: TypeError: returned bool, not Scheduled or Refusal"),
    ],
)
def test_rule_that_crashes_gives_way(answer, text):
    chosen = pick(rule("x", answer), TAKES)
    assert chosen.rule.name == "takes"
    assert chosen.crashed == (text,)


def test_kernel_that_does_not_build_gives_way():
    def build(func):
        if func == b"broken":
            raise MemoryError("no registers left")
        return b"ok"

    chosen = pick(rule("x", Scheduled(b"broken")), TAKES, build=build)
    assert chosen.code == b"ok"
    assert chosen.crashed == ("x: MemoryError: no registers left",)


def test_nothing_applies():
    with pytest.raises(CompileError) as caught:
        pick(rule("a", Refusal("shape", "odd")), rule("b", KeyError("k")))
    error = caught.value
    assert error.code == "UIF-COMPILE-SCHEDULE"
    assert (error.op, error.target) == ("kernel_1", "fake")
    assert "\n  - a: shape: odd" in str(error)
    assert "\n  - b: KeyError: 'k'" in str(error)


def test_interrupts_are_not_faults_of_a_rule():
    def stop(func):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pick(rule("x", stop), TAKES)
