"""The sweep's machinery: crashes, hangs, the strict list, the figures."""

from __future__ import annotations

import os
import time

import pytest

from tests.onnx_backend import cases, known, sweep
from tests.onnx_backend.judge import CRASHED, FAILED, HUNG, PASSED, REFUSED, WRONG, Verdict, judge
from tests.onnx_backend.pool import run_jobs


def misbehave(how, name):
    """What a test can do to its process."""
    if how == "crash":
        os.kill(os.getpid(), 11)
    if how == "hang":
        time.sleep(3600)
    return Verdict(PASSED, name)


def test_a_crash_and_a_hang_cost_one_test_each():
    jobs = [("fine", "a"), ("crash", "b"), ("fine", "c"), ("hang", "d"), ("fine", "e")]
    ended = {job[1]: verdict for job, verdict, _ in run_jobs(jobs, 1, 2.0, misbehave)}
    statuses = {name: verdict.status for name, verdict in ended.items()}
    assert statuses == {"a": PASSED, "b": CRASHED, "c": PASSED, "d": HUNG, "e": PASSED}
    assert ended["b"].message == "exit code -11"


def test_processes_share_the_jobs():
    jobs = [("fine", str(number)) for number in range(6)]
    ended = [job[1] for job, verdict, _ in run_jobs(jobs, 2, 60.0, misbehave)]
    assert sorted(ended) == [name for _, name in jobs]


def test_the_list_is_strict_both_ways():
    listed = {"mended": "was wrong", "broken": "a reason", "elsewhere": "not run today"}
    statuses = {"mended": PASSED, "broken": WRONG, "new": FAILED, "fine": PASSED}
    assert known.departures(statuses, listed) == [
        "mended passes: take it off the list",
        "new failed",
    ]


def test_the_list_names_tests_that_exist_and_gives_reasons():
    listed = known.known_failures()
    assert set(listed) <= set(cases.load_cases())
    assert all(len(reason) > 20 for reason in listed.values())


def test_summary():
    rows = [
        {"status": PASSED, "host_ops": [], "ort": PASSED},
        {"status": PASSED, "host_ops": ["Det"], "ort": FAILED},
        {"status": REFUSED, "host_ops": [], "ort": PASSED},
        {"status": CRASHED, "host_ops": []},
    ]
    assert sweep.summary(rows) == {
        "passed": 2,
        "total": 4,
        "native_or_composed": 1,
        "ort_passed": 2,
        "crashes": 1,
        "hangs": 0,
    }


def test_shards_and_filters():
    every = sweep.chosen("", "0/1")
    shards = [sweep.chosen("", f"{number}/3") for number in range(3)]
    assert sorted(name for shard in shards for name in shard) == sorted(every)
    assert sweep.chosen("^test_relu$", "0/1") == ["test_relu"]
    with pytest.raises(SystemExit, match="give I/N"):
        sweep.chosen("", "3/3")


class TestJudging:
    """What is right and what is not, on the real thing."""

    @pytest.mark.parametrize("runtime", ["uif", "ort"])
    @pytest.mark.parametrize("name", ["test_relu", "test_cast_FLOAT_to_BFLOAT16"])
    def test_right(self, runtime, name):
        assert judge(runtime, name) == Verdict(PASSED)

    def test_host_operators_are_told(self):
        assert judge("uif", "test_string_concat") == Verdict(PASSED, "", ("StringConcat",))

    @pytest.mark.parametrize("runtime", ["uif", "ort"])
    def test_wrong(self, runtime, monkeypatch):
        case = cases.load_cases()["test_relu"]
        ((inputs, (expected,)),) = case.data_sets
        monkeypatch.setattr(case, "data_sets", [(inputs, [expected + 1])])
        verdict = judge(runtime, "test_relu")
        assert verdict.status == WRONG
        assert "Mismatched elements" in verdict.message

    def test_wrong_dtype_shape_or_number(self, monkeypatch):
        case = cases.load_cases()["test_relu"]
        ((inputs, (expected,)),) = case.data_sets
        for wanted in ([expected.astype("float64")], [expected[:1]], [expected, expected]):
            monkeypatch.setattr(case, "data_sets", [(inputs, wanted)])
            assert judge("uif", "test_relu").status == WRONG
